"""``python -m benchmarks.first_epoch.warm``: how long `monarch warm` takes for many small files.

When the command begins, a daemon with default settings has just started, and its scan is in
progress. Each run has an empty tier in RAM and its own mount of the source. Needs FUSE.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common import Daemon, scratch
from benchmarks.numbers import Result, describe_machine, report
from monarch_py.demo.slowsource import SlowSource, find_slowsource, why_unavailable

FILES, DIRECTORIES, SIZE = 4000, 40, 4 << 10
LATENCY_S, RATE = 0.004, 1e9
LIMIT_S = 1.8
# The time [s] that `make` waits after it has written the dataset. If a directory changed less than
# 2 s before the scan, the daemon would compare the directory with the source again.
SETTLES_S = 2.1


def make(backing: Path) -> None:
    content = os.urandom(SIZE)
    for number in range(FILES):
        directory = backing / f"{number % DIRECTORIES:02d}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number:06d}").write_bytes(content)
    time.sleep(SETTLES_S)


def once(place: Path, backing: Path) -> tuple[float, dict[str, int]]:
    """Runs the command. Returns its time [s], and the number of requests to the source for each
    kind of request."""
    binary = find_slowsource()
    assert binary is not None
    mountpoint = place / "source"
    mountpoint.mkdir(exist_ok=True)
    with ExitStack() as stack:
        tier = Path(tempfile.mkdtemp(prefix="monarch-warm-", dir="/dev/shm"))
        stack.callback(shutil.rmtree, tier, ignore_errors=True)
        slow = stack.enter_context(SlowSource(backing, mountpoint, binary=binary))
        slow.rate(RATE)
        slow.latency(open=LATENCY_S, getattr=LATENCY_S, read=LATENCY_S)
        daemon = stack.enter_context(Daemon(place, mountpoint, tier, FILES * SIZE * 2 + (64 << 20)))
        began_s = time.monotonic()
        argv = [sys.executable, "-m", "monarch_py", "warm", "-c", str(daemon.config)]
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
        took_s = time.monotonic() - began_s
        if done.returncode or not done.stdout.startswith(f"{FILES:,} files"):
            raise RuntimeError(f"warm: status {done.returncode}, {done.stdout}{done.stderr}")
        return took_s, slow.counts()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_epoch.warm", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where the dataset is made")
    parser.add_argument("--json", type=Path, help="write the JSON here, not to standard output")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    args = parser.parse_args()
    if problem := why_unavailable():
        sys.exit(f"benchmarks.first_epoch.warm: {problem}")
    with scratch(args.dir) as place:
        backing = place / "backing"
        make(backing)
        runs = [once(place, backing) for _ in range(args.rounds)]
    times = sorted(took_s for took_s, _ in runs)
    dataset = f"{FILES} files of {SIZE >> 10} KiB, latency {LATENCY_S * 1e3:g} ms"
    what = f"time of `monarch warm` for {dataset}"
    results = [
        Result(
            "warm",
            what,
            "s",
            statistics.median(times),
            LIMIT_S,
            ci95=(times[0], times[-1]),
            rounds=len(times),
        ),
        Result(
            "warm_opens",
            "  opens at the source per file",
            "",
            statistics.median(counts["open"] / FILES for _, counts in runs),
            None,
        ),
    ]
    document = {"benchmark": "first_epoch.warm", "machine": describe_machine()}
    met = report(document, results, args.json)
    return 1 if args.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
