"""``python -m benchmarks.first_epoch.delays``: how long programs wait in a first epoch.

There are two measurements, both with a daemon that has just been started:

- Readers beside fills. The configuration excludes one part of a dataset from copying. A program
  reads this part while the daemon copies the other part. The time to open and read a file is
  compared with a run of the same program without Monarch.
- First use of a copy. While the scan of a dataset of many files is in progress, one process reads a
  file for the first time. Another process then opens the same file again and again. The benchmark
  measures the time from the end of the read until the other process gets the file's copy.

The first measurement needs FUSE.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import Daemon, build, plain_environment, scratch, write_list
from benchmarks.numbers import Result, describe_machine, report
from monarch_py.demo.slowsource import SlowSource, find_slowsource, why_unavailable
from monarch_py.ipc.session import Segment, SessionDir
from monarch_py.native import lib

KIB, MIB = 1 << 10, 1 << 20
# Constants of the first measurement, readers beside fills. The daemon copies FILLED files, and the
# program reads LEFT other files with THREADS threads. FILLED is so large that the fills take longer
# than the reads. SIZE is the size of each file [bytes]. LATENCY_S and RATE are the latency [s] and
# the rate [bytes/s] of the source.
FILLED, LEFT, SIZE, THREADS = 8192, 1024, 128 * KIB, 8
LATENCY_S, RATE = 0.004, 1e9
MEDIAN_LIMIT, P99_LIMIT = 1.3, 2.0
# Constants of the second measurement: the number of files in each directory, and the limit on the
# time from the first read of a file until another process uses the file's copy [s].
A_DIRECTORY, SERVED_LIMIT_S = 1000, 0.2
OPENS = """
import os, sys, time
while True:
    os.close(os.open(sys.argv[1], os.O_RDONLY))
    time.sleep(0.001)
"""


@contextmanager
def tier() -> Iterator[Path]:
    """Yields an empty directory in RAM, which can be used as a tier."""
    place = Path(tempfile.mkdtemp(prefix="monarch-delays-", dir="/dev/shm"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


# --- readers beside fills -----------------------------------------------------------------------


def make_parts(backing: Path) -> None:
    content = os.urandom(SIZE)
    for part, files in (("filled", FILLED), ("left", LEFT)):
        (backing / part).mkdir(parents=True)
        for number in range(files):
            (backing / part / f"{number:06d}").write_bytes(content)


def readers(place: Path, backing: Path, reader: Path, *, beside: bool) -> dict[str, float]:
    """Returns the median and the 99th percentile of the time [s] to open and read a file, and the
    number of fills during these reads.

    beside : whether a daemon copies the rest of the dataset during the reads. If not, no daemon
        runs
    """
    binary = find_slowsource()
    assert binary is not None
    mountpoint = place / "source"
    mountpoint.mkdir(exist_ok=True)
    paths = [f"{mountpoint}/left/{number:06d}" for number in range(LEFT)]
    argv = [reader, write_list(place / "left.list", paths), THREADS, 1, 1]
    with ExitStack() as stack:
        slow = stack.enter_context(SlowSource(backing, mountpoint, binary=binary))
        slow.rate(RATE)
        slow.latency(open=LATENCY_S, getattr=LATENCY_S, read=LATENCY_S)
        environment = plain_environment()
        daemon = None
        if beside:
            settings: dict[str, Any] = {
                "sources": [{"path": str(mountpoint), "exclude": ["left/*"]}],
                "prefetch": "eager",
            }
            room = FILLED * SIZE * 2 + (64 << 20)
            daemon = Daemon(place, mountpoint, stack.enter_context(tier()), room, **settings)
            stack.enter_context(daemon)
            environment = daemon.environment()
        before = _present(daemon)
        done = subprocess.run(
            list(map(str, argv)), env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        told = json.loads(done.stdout.splitlines()[-1])
        if told["failed"]:
            raise RuntimeError(f"{told['failed']} files could not be read")
        fills = _present(daemon) - before
        if beside and fills >= FILLED - THREADS:
            raise RuntimeError(
                "all files were filled before the readers had ended: increase FILLED"
            )
        return {"p50_s": told["p50_s"], "p99_s": told["p99_s"], "fills": fills}


def _present(daemon: Daemon | None) -> int:
    return int(daemon.status()["sources"][0]["present"]) if daemon else 0


def beside_fills(place: Path, rounds: int) -> list[Result]:
    backing = place / "backing"
    make_parts(backing)
    reader = build(Path(__file__).with_name("files.c"), place, "-pthread")
    pairs = [
        tuple(readers(place, backing, reader, beside=beside) for beside in (True, False))
        for _ in range(rounds)
    ]
    shutil.rmtree(backing)

    def line(key: str, what: str, limit: float) -> Result:
        ratios = sorted(ours[key] / alone[key] for ours, alone in pairs)
        return Result(
            f"beside_{key.removesuffix('_s')}",
            what,
            "",
            statistics.median(ratios),
            limit,
            ci95=(ratios[0], ratios[-1]),
            rounds=rounds,
        )

    alone_s = statistics.median(alone["p50_s"] for _, alone in pairs)
    filled = statistics.median(ours["fills"] for ours, _ in pairs)
    at = f"files of {SIZE // KIB} KiB, latency {LATENCY_S * 1e3:g} ms, {RATE / 1e6:g} MB/s"
    return [
        line(
            "p50_s",
            f"{at}: median time of open and read beside fills / without fills",
            MEDIAN_LIMIT,
        ),
        line(
            "p99_s",
            "  99th percentile of the time of open and read beside fills / without fills",
            P99_LIMIT,
        ),
        Result(
            "beside_alone",
            "  median time of open and read without a daemon",
            "ms",
            alone_s * 1e3,
            None,
        ),
        Result("beside_fills", "  number of fills beside these reads", "", filled, None),
    ]


# --- a copy that serves another process ---------------------------------------------------------


def make_many(source: Path, files: int) -> Path:
    """Creates `files` files in many directories. Returns the path of a file in the middle, so that
    the scan does not find the file early."""
    for number in range(0, files, A_DIRECTORY):
        directory = source / f"{number // A_DIRECTORY:05d}"
        directory.mkdir(parents=True)
        for name in range(number, min(number + A_DIRECTORY, files)):
            fd = os.open(directory / f"{name:08d}", os.O_CREAT | os.O_WRONLY, 0o644)
            os.write(fd, b"x" * 50)
            os.close(fd)
    return source / f"{files // 2 // A_DIRECTORY:05d}" / f"{files // 2:08d}"


def hits(clients: Any) -> int:
    return sum(int(clients.stats[slot].hits) for slot in range(lib.MONARCH_STAT_SLOTS))


def served_after(place: Path, source: Path, files: int, path: Path) -> tuple[float, bool]:
    """Returns the time [s] from the end of the first read of `path` until another process uses the
    file's copy. Also returns whether the scan was complete at this time."""
    with ExitStack() as stack:
        room = files * 8 * KIB + (64 << 20)
        daemon = stack.enter_context(Daemon(place, source, stack.enter_context(tier()), room))
        environment = daemon.environment()
        segment = Segment.open(SessionDir.of(daemon.config).clients, writable=False)
        clients = segment.as_struct("struct monarch_clients")
        subprocess.run(["cat", path], env=environment, stdout=subprocess.DEVNULL, check=True)
        began_s = time.monotonic()
        other = subprocess.Popen([sys.executable, "-c", OPENS, path], env=environment)
        try:
            limit_s = began_s + 60
            while not hits(clients):
                if time.monotonic() > limit_s or other.poll() is not None:
                    raise RuntimeError(f"no copy of {path} served another process in a minute")
                time.sleep(0.001)
            took_s = time.monotonic() - began_s
        finally:
            other.kill()
            other.wait()
        del clients, segment
        return took_s, bool(daemon.status()["scanned"])


def copies_that_serve(place: Path, rounds: int, files: int) -> list[Result]:
    source = Path(tempfile.mkdtemp(prefix="monarch-many-", dir="/dev/shm"))
    try:
        path = make_many(source, files)
        runs = [served_after(place, source, files, path) for _ in range(rounds)]
    finally:
        shutil.rmtree(source, ignore_errors=True)
    times = sorted(took_s for took_s, _ in runs)
    what = f"scan of {files:,} files: time from a file's first read until a process uses its copy"
    scanned = sum(scanned for _, scanned in runs)
    return [
        Result(
            "served_after",
            what,
            "s",
            statistics.median(times),
            SERVED_LIMIT_S,
            ci95=(times[0], times[-1]),
            rounds=rounds,
        ),
        Result(
            "served_scanned",
            "  runs in which the scan ended before a process used the copy",
            "",
            scanned,
            None,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_epoch.delays",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--files", type=int, default=1_000_000, help="number of files of the large dataset"
    )
    parser.add_argument("--only", choices=("beside", "served"), help="make only this measurement")
    parser.add_argument("--dir", type=Path, help="where the smaller dataset is made")
    parser.add_argument("--json", type=Path, help="write the JSON here, not to standard output")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    args = parser.parse_args()
    if args.only != "served" and (problem := why_unavailable()):
        sys.exit(f"benchmarks.first_epoch.delays: {problem}")
    results = []
    with scratch(args.dir) as place:
        if args.only != "served":
            results += beside_fills(place, args.rounds)
        if args.only != "beside":
            results += copies_that_serve(place, args.rounds, args.files)
    document = {"benchmark": "first_epoch.delays", "machine": describe_machine()}
    met = report(document, results, args.json)
    return 1 if args.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
