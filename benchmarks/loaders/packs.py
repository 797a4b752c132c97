"""``python -m benchmarks.loaders.packs``: `monarch warm` of many small files, with a pack.

A pack is a tar of the dataset's files, from which the daemon copies many files with one read. When
the command begins, a daemon with default settings has scanned the dataset. Each run has an empty
tier in RAM and its own mount, which contains the dataset and the pack. There are three more
variants: an empty dataset, the dataset without the pack, and the dataset with the pack while the
scan is in progress. In the last variant, the time depends mostly on the scan. Needs FUSE.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Daemon, scratch
from benchmarks.numbers import Result, describe_machine, report
from monarch_py.demo.slowsource import SlowSource, find_slowsource, why_unavailable
from monarch_py.packs.tar import write_pack

FILES, DIRECTORIES, SIZE = 4000, 40, 4 << 10
LATENCY_S, RATE = 0.004, 1e9
OPERATIONS_LIMIT, EXTRA_S_LIMIT = 0.1, 0.4
# The time [s] that the benchmark waits between writing the dataset and the first scan. If a
# directory changed less than 2 s before the scan, the daemon would compare the directory with the
# source again.
SETTLES_S = 2.1


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the command.

    took_s : the time of the command [s]
    operations : the number of requests to the source during the run, for each kind of request
    copied : the number of files that have a copy after the run
    """

    took_s: float
    operations: dict[str, int]
    copied: int

    @property
    def asked(self) -> int:
        return sum(n for kind, n in self.operations.items() if not kind.startswith("bytes"))


def make(backing: Path) -> None:
    content = os.urandom(SIZE)
    for number in range(FILES):
        directory = backing / "data" / f"{number % DIRECTORIES:02d}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number:06d}").write_bytes(content)
    (backing / "empty").mkdir()
    write_pack(backing / "data", backing / "train.tar")
    time.sleep(SETTLES_S)


def once(place: Path, backing: Path, dataset: str, *, packed: bool, scanned: bool = True) -> Run:
    binary = find_slowsource()
    assert binary is not None
    mountpoint = place / "source"
    mountpoint.mkdir(exist_ok=True)
    with ExitStack() as stack:
        tier = Path(tempfile.mkdtemp(prefix="monarch-packs-", dir="/dev/shm"))
        stack.callback(shutil.rmtree, tier, ignore_errors=True)
        slow = stack.enter_context(SlowSource(backing, mountpoint, binary=binary))
        slow.rate(RATE)
        slow.latency(open=LATENCY_S, getattr=LATENCY_S, read=LATENCY_S)
        source: dict[str, Any] = {"path": str(mountpoint / dataset)}
        if packed:
            source["pack"] = str(mountpoint / "train.tar")
        quota = FILES * SIZE * 2 + (64 << 20)
        daemon = stack.enter_context(
            Daemon(place, mountpoint / dataset, tier, quota, sources=[source])
        )
        if scanned:
            daemon.wait_scanned(60)
            slow.reset()
        began_s = time.monotonic()
        argv = [sys.executable, "-m", "monarch_py", "warm", "-c", str(daemon.config)]
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
        took_s = time.monotonic() - began_s
        if done.returncode:
            raise RuntimeError(f"warm: status {done.returncode}, {done.stdout}{done.stderr}")
        operations = slow.counts()
        status = daemon.wait_scanned(60)
        return Run(took_s, operations, int(status["sources"][0]["present"]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loaders.packs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where the dataset is made")
    parser.add_argument("--json", type=Path, help="write the JSON here, not to standard output")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    args = parser.parse_args()
    if problem := why_unavailable():
        sys.exit(f"benchmarks.loaders.packs: {problem}")
    with scratch(args.dir) as place:
        backing = place / "backing"
        backing.mkdir()
        make(backing)
        # The speed of the machine changes, so only runs at about the same time can be compared.
        # Therefore alternate the variants.
        rounds = [
            (
                once(place, backing, "data", packed=True),
                once(place, backing, "empty", packed=False),
                once(place, backing, "data", packed=False),
                once(place, backing, "data", packed=True, scanned=False),
            )
            for _ in range(args.rounds)
        ]
    for packed, _, alone, scanning in rounds:
        if any(run.copied != FILES for run in (packed, alone, scanning)):
            raise RuntimeError(
                f"not all files have copies. With the pack: {packed}; without the pack: {alone};"
                f" with the pack, during the scan: {scanning}"
            )

    def line(
        name: str, what: str, unit: str, values: list[float], limit: float | None = None
    ) -> Result:
        bounds = (min(values), max(values))
        middle = statistics.median(values)
        return Result(name, what, unit, middle, limit, ci95=bounds, rounds=len(values))

    what = f"{FILES} files of {SIZE >> 10} KiB, latency {LATENCY_S * 1e3:g} ms"
    results = [
        line(
            "packed_operations",
            f"`monarch warm` from a pack, {what}: requests to the source per file",
            "",
            [packed.asked / FILES for packed, *_ in rounds],
            OPERATIONS_LIMIT,
        ),
        line(
            "packed_extra",
            "  time from the pack, minus the time of `monarch warm` on an empty dataset",
            "s",
            [packed.took_s - empty.took_s for packed, empty, *_ in rounds],
            EXTRA_S_LIMIT,
        ),
        line("packed", "  time from the pack", "s", [packed.took_s for packed, *_ in rounds]),
        line("empty", "  time on an empty dataset", "s", [e.took_s for _, e, *_ in rounds]),
        line("alone", "  time without a pack", "s", [alone.took_s for _, _, alone, _ in rounds]),
        line(
            "alone_operations",
            "  requests to the source per file, without a pack",
            "",
            [alone.asked / FILES for _, _, alone, _ in rounds],
        ),
        line(
            "scanning", "  time from the pack during the scan", "s", [r[3].took_s for r in rounds]
        ),
    ]
    document = {
        "benchmark": "loaders.packs",
        "machine": describe_machine(),
        "operations": [run.operations for run in rounds[-1]],
    }
    met = report(document, results, args.json)
    return 1 if args.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
