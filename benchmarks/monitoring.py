"""``python -m benchmarks.monitoring``: the cost of monitoring a daemon with a million files.

A program continuously opens files, and records the number of opens over time. The benchmark
compares this record with the numbers that `monarch top` shows. It then measures what it costs to
scrape metrics from the idle daemon, to record a run with `monarch status --json --history`, and to
create the page of `monarch report`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import Daemon, plain_environment, scratch, wait_until
from benchmarks.numbers import Result, describe_machine, report
from benchmarks.overhead.__main__ import SCAN_LIMIT_S_PER_FILE, make_dataset

# This program opens one file after the other. When it receives a line on its standard input, it
# prints all recorded pairs (time, number of opens until this time), and ends.
OPENER = """
import json, os, select, sys, time
root = sys.argv[1]
names = [os.path.join(d, f) for d, _, fs in os.walk(root) for f in fs[:20]]
print(flush=True)
noted, count = [], 0
while not select.select([sys.stdin], [], [], 0.01)[0]:
    for _ in range(5):
        os.close(os.open(names[count % len(names)], os.O_RDONLY))
        count += 1
    noted.append((time.monotonic(), count))
print(json.dumps(noted))
"""
QUOTA_BYTES = 64 << 20
PORT, SCRAPE_S = 19464, 5.0
# The project's limits for the measured values. TOP_SHARE and SCRAPE_SHARE are CPU times, as shares
# of one core. LATE_S and REPORT_S are times [s]. REPORT_BYTES is the size of the page [bytes].
TOP_SHARE, SCRAPE_SHARE, LATE_S = 0.03, 0.01, 1.0
REPORT_S, REPORT_BYTES = 5.0, 3e6
OPENS = re.compile(r"since the start .* of ([0-9,]+)\)")


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "monarch_py", *words]


@contextmanager
def opener(daemon: Daemon) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", OPENER, str(daemon.source)],
        env=daemon.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def watched(daemon: Daemon, frames: int) -> list[Result]:
    """Measures the CPU time of `monarch top`, and the age of the numbers that it shows."""
    seen: list[tuple[float, int]] = []
    words = command("top", "-c", str(daemon.config), "-n", str(frames))
    with (
        opener(daemon) as opening,
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=plain_environment()) as top,
    ):
        assert top.stdout is not None
        process, costs = psutil.Process(top.pid), []
        for line in top.stdout:
            if found := OPENS.search(line):
                seen.append((time.monotonic(), int(found[1].replace(",", ""))))
                costs.append((cpu_s(process), cpu_s(daemon.process)))
                if len(seen) == frames:
                    break
        told, _ = opening.communicate("\n")
    noted = json.loads(told)
    base = daemon.status()["totals"]["opens"] - noted[-1][1]
    counts = [count for _, count in noted]
    late = [at - noted[bisect_left(counts, opens - base)][0] for at, opens in seen[1:]]
    seconds = seen[-1][0] - seen[0][0]
    own, theirs = ((costs[-1][i] - costs[0][i]) / seconds for i in (0, 1))
    apart = max(later[0] - sooner[0] for sooner, later in pairwise(seen))
    return [
        Result("top", "CPU of `monarch top`", "cores", own, TOP_SHARE, rounds=len(seen)),
        Result(
            "top_daemon",
            "  CPU of the daemon while `top` runs, including fills",
            "cores",
            theirs,
            None,
        ),
        Result("top_late", "  largest age of a number when it is shown", "s", max(late), LATE_S),
        Result("top_apart", "  longest time between two frames", "s", apart, None),
    ]


def scraped(daemon: Daemon, seconds: float) -> list[Result]:
    """Measures how much CPU time one scrape of the metrics every 5 s costs the daemon."""

    def used(scrapes: bool) -> float:
        began, cpu = time.monotonic(), cpu_s(daemon.process)
        while time.monotonic() - began < seconds:
            if scrapes:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics") as answer:
                    assert b"monarch_up 1" in answer.read()
            time.sleep(SCRAPE_S)
        return (cpu_s(daemon.process) - cpu) / (time.monotonic() - began)

    words = command("metrics", "-c", str(daemon.config), "--port", str(PORT))
    with subprocess.Popen(words, env=plain_environment(), stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            process.stderr.readline()
            idle, busy = used(scrapes=False), used(scrapes=True)
        finally:
            process.terminate()
    return [
        Result("scrape", "CPU of the daemon with a scrape every 5 s", "cores", busy, SCRAPE_SHARE),
        Result("idle", "  CPU of the daemon without scrapes", "cores", idle, None),
    ]


def timed(words: list[str], output: Path) -> tuple[float, float, float]:
    """Runs a command. Returns its wall time and CPU time [s], and its peak memory [MiB]."""
    began = time.monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, env=plain_environment())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{words} ended with status {process.returncode}")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def reported(daemon: Daemon, place: Path) -> list[Result]:
    """Measures the cost of recording a run, and of creating the report's page."""
    recorded, page = place / "run.json", place / "report.html"
    before = cpu_s(daemon.process)
    wrote = timed(command("status", "-c", str(daemon.config), "--json", "--history"), recorded)
    asked = cpu_s(daemon.process) - before
    drew = timed(command("report", str(recorded), "-o", str(page)), place / "said")
    size = page.stat().st_size
    return [
        Result("record", "time of `monarch status --json --history`", "s", wrote[0], None),
        Result("record_cpu", "  CPU time of the command", "s", wrote[1], None),
        Result("record_daemon", "  CPU time of the daemon", "s", asked, None),
        Result("record_memory", "  peak memory, with the catalog", "MiB", wrote[2], None),
        Result("record_size", "  size of run.json", "MB", recorded.stat().st_size / 1e6, None),
        Result("report", "time of `monarch report`", "s", drew[0], REPORT_S),
        Result("report_cpu", "  CPU time of the command", "s", drew[1], None),
        Result("report_memory", "  peak memory", "MiB", drew[2], None),
        Result("report_size", "  size of the page", "MB", size / 1e6, REPORT_BYTES / 1e6),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.monitoring", description=__doc__)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=30, help="length of each measurement")
    parser.add_argument("--dir", type=Path, default="/dev/shm", help="where the dataset is made")
    parser.add_argument("--json", type=Path, help="write the JSON here, not to standard output")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    args = parser.parse_args()
    with scratch(args.dir) as place, ExitStack() as stack:
        source, tier = place / "source", place / "tier"
        make_dataset(source, args.files)
        tier.mkdir()
        more: dict[str, Any] = {"prefetch": "on_demand"}
        daemon = stack.enter_context(Daemon(place, source, tier, QUOTA_BYTES, **more))
        limit_s = 60 + args.files * SCAN_LIMIT_S_PER_FILE
        daemon.wait_scanned(limit_s)
        results = watched(daemon, args.seconds)
        wait_until(lambda: not daemon.status()["pending"], "the end of all fills", limit_s)
        results += scraped(daemon, args.seconds) + reported(daemon, place)
    document: dict[str, Any] = {"benchmark": "monitoring", "machine": describe_machine()}
    met = report(document | {"files": args.files}, results, args.json)
    return 1 if args.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
