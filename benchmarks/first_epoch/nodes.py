"""``python -m benchmarks.first_epoch.nodes``: the first epoch of four nodes on one machine.

Every node has a mount of the slow source, a daemon, a tier, and a reader for its share of the
files. The tier has room for all files, or for 30 % of them. As with `monarch start`, one node lists
the files of the source, and all daemons start with this list. The readers start as soon as the
daemons have started. Runs with Monarch alternate with runs without Monarch. One machine runs the
source, all daemons and all readers. Needs FUSE.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import build, scratch, touch_memory
from benchmarks.nodes.testbed import Dataset, Epoch, Layout, Testbed
from benchmarks.numbers import Result, describe_machine, report
from monarch_py.demo.slowsource import find_slowsource, why_unavailable

NODES = 4
LATENCY_S, RATE = 0.0005, 200e6
KIB, MIB = 1 << 10, 1 << 20
# If a node's tier has no room for all files, the node also has a staging area (a tier for copies
# that are used once and dropped). This is its size [bytes].
STAGING_BYTES = 16 * MIB


@dataclass(frozen=True)
class Case:
    """A dataset, and the size of the tiers.

    files : the number of files
    size : the mean size of the files [bytes]
    part : the share of the dataset that fits into each node's tier; None if all files fit
    limit : the largest allowed ratio of the first epoch's times with and without Monarch; None for
        no limit
    """

    files: int
    size: int
    part: float | None = None
    limit: float | None = None

    @property
    def name(self) -> str:
        tiers = "" if self.part is None else f"_{100 * self.part:.0f}"
        return f"nodes_{self.files}x{self.size // KIB}k{tiers}"

    @property
    def title(self) -> str:
        tiers = "" if self.part is None else f", tiers of {100 * self.part:.0f} %"
        return f"{NODES} nodes, {self.files} x {self.size // KIB} KiB{tiers}"

    @property
    def epochs(self) -> int:
        return 2 if self.part is None else 4

    def layout(self, dataset: Dataset, *, ours: bool) -> Layout:
        # A copy occupies complete pages, so add the size of a page for each file.
        whole = dataset.bytes + 4 * KIB * self.files
        if self.part is not None:
            return Layout([int(self.part * whole)] * NODES, STAGING_BYTES, has_daemons=ours)
        room = 2 * whole + 64 * MIB
        return Layout([room] * NODES, room, has_daemons=ours)


CASES = (
    Case(4000, 4 * KIB, limit=2.0),
    Case(800, 128 * KIB, limit=1.15),
    Case(4000, 4 * KIB, part=0.3),
    Case(800, 128 * KIB, part=0.3),
)


@dataclass(frozen=True)
class Run:
    """One run of a case.

    scan_s : the duration of the scan [s]. One node scans the source before the daemons start
    """

    scan_s: float
    epochs: list[Epoch]

    def seconds(self, epoch: int) -> float:
        return self.epochs[epoch].seconds

    def opens(self, first: int, end: int | None = None) -> int:
        """Returns the number of opens at the source in the epochs [first, end). The first epoch of
        a run is epoch 0. If `end` is None, counts all epochs from `first` on."""
        return sum(epoch.did("opened") for epoch in self.epochs[first:end])

    @property
    def bytes(self) -> int:
        return sum(epoch.did("served") for epoch in self.epochs)

    @property
    def metadata(self) -> int:
        """The number of metadata operations, without opens, that reached the source during the scan
        and all epochs."""
        return self.epochs[-1].after["metadata"]


def run(
    place: Path, case: Case, dataset: Dataset, programs: tuple[Path, Path], *, ours: bool
) -> Run:
    here = place / "run"
    here.mkdir()
    # Each node needs memory for pages of the source's files, copies, a daemon and a program.
    touch_memory(NODES * (2 * dataset.bytes + 256 * MIB))
    orders = [dataset.shares(NODES, epoch) for epoch in range(case.epochs)]
    try:
        layout = case.layout(dataset, ours=ours)
        with Testbed(here, dataset, programs, layout, rate=RATE, latency_s=LATENCY_S) as bed:
            return Run(bed.scan_s, bed.epochs(orders))
    finally:
        shutil.rmtree(here, ignore_errors=True)


def measure(place: Path, programs: tuple[Path, Path], rounds: int) -> list[Result]:
    results = []
    for case in CASES:
        dataset = Dataset.make(place / case.name, case.files, case.size)
        pairs = []
        for _ in range(rounds):
            ours = run(place, case, dataset, programs, ours=True)
            pairs.append((ours, run(place, case, dataset, programs, ours=False)))
        shutil.rmtree(dataset.backing)
        results += compare(case, dataset, pairs)
    return results


def compare(case: Case, dataset: Dataset, pairs: list[tuple[Run, Run]]) -> list[Result]:
    """Returns the results of one case, from pairs of runs with and without Monarch."""
    ratios = sorted(ours.seconds(0) / plain.seconds(0) for ours, plain in pairs)
    first = Result(
        f"{case.name}_first",
        f"{case.title}: time of epoch 1 / without Monarch",
        "",
        statistics.median(ratios),
        case.limit,
        ci95=(ratios[0], ratios[-1]),
        rounds=len(pairs),
    )

    def row(
        key: str,
        what: str,
        unit: str,
        of: Callable[[Run, Run], float],
        limit: float | None = None,
    ) -> Result:
        median = statistics.median(of(ours, plain) for ours, plain in pairs)
        return Result(f"{case.name}_{key}", f"  {what}", unit, median, limit)

    accesses = case.files * (case.epochs - 1)
    return [
        first,
        row("plain", "time of epoch 1 without Monarch", "s", lambda _, plain: plain.seconds(0)),
        row("second", "time of epoch 2", "s", lambda ours, _: ours.seconds(1)),
        row("scan", "time of the scan before the daemons start", "s", lambda ours, _: ours.scan_s),
        row(
            "bytes",
            "bytes that the source sends in all epochs / dataset",
            "",
            lambda ours, _: ours.bytes / dataset.bytes,
            1.01,
        ),
        row(
            "opens",
            "opens at the source in epoch 1 / files of the dataset",
            "",
            lambda ours, _: ours.opens(0, 1) / case.files,
            1.02,
        ),
        row(
            "later",
            "opens at the source in later epochs / accesses in these epochs",
            "",
            lambda ours, _: ours.opens(1) / accesses,
            0.001,
        ),
        row(
            "metadata",
            "metadata operations, except opens, that Monarch adds per file",
            "",
            lambda ours, plain: (ours.metadata - plain.metadata) / case.files,
            1.1,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_epoch.nodes", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs for each case")
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path("/dev/shm"),
        help="directory for all files of the benchmark",
    )
    parser.add_argument("--json", type=Path, help="write the JSON here, not to standard output")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    args = parser.parse_args()
    slowsource = find_slowsource()
    if slowsource is None or (problem := why_unavailable()):
        sys.exit(f"benchmarks.first_epoch.nodes: {problem}")
    with scratch(args.dir) as place:
        reader = build(Path(__file__).parent.with_name("nodes") / "reader.c", place, "-pthread")
        results = measure(place, (slowsource, reader), args.rounds)
    document = {"benchmark": "first_epoch.nodes", "machine": describe_machine()}
    met = report(document, results, args.json)
    return 1 if args.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
