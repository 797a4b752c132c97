"""``python -m benchmarks.first_epoch.nodes``: the first epoch of four nodes on one machine.

Every node has a mount of the slow source, a daemon that has just been started, a tier for all files
or for 30 % of them, and a reader for its share of the files. Runs alternate with runs of the same
readers without Monarch. The cores of one machine run the source, all daemons and all readers. Needs
FUSE.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import build, scratch, touch_memory
from benchmarks.nodes.testbed import Dataset, Epoch, Layout, Testbed
from benchmarks.numbers import Result, describe_machine, report
from monarch_py.demo.slowsource import find_slowsource, why_unavailable

NODES = 4
LATENCY_S, RATE = 0.0005, 200e6
KIB, MIB = 1 << 10, 1 << 20
# The size [bytes] of the staging area of nodes whose tiers do not hold everything.
STAGING_BYTES = 16 * MIB


@dataclass(frozen=True)
class Case:
    """A dataset, and the size of the tiers.

    files, size : the number of files, and their mean size [bytes]
    part : the share of the dataset that each node's tier holds, None for all
    limit : the limit on the time of the first epoch, relative to its time without Monarch
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
        # A copy occupies whole pages, and the tier needs some additional space.
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


def run(
    place: Path, case: Case, dataset: Dataset, programs: tuple[Path, Path], *, ours: bool
) -> list[Epoch]:
    """Returns the epochs of one run."""
    here = place / "run"
    here.mkdir()
    # Each node needs memory for pages of the source's files, copies, a daemon and a program.
    touch_memory(NODES * (2 * dataset.bytes + 256 * MIB))
    orders = [dataset.shares(NODES, epoch) for epoch in range(case.epochs)]
    try:
        with Testbed(here, dataset, programs, case.layout(dataset, ours=ours), rate=RATE) as bed:
            for mount in bed.mounts:
                mount.latency(open=LATENCY_S, getattr=LATENCY_S, read=LATENCY_S)
            return bed.epochs(orders)
    finally:
        shutil.rmtree(here, ignore_errors=True)


def measure(place: Path, programs: tuple[Path, Path], rounds: int) -> list[Result]:
    results = []
    for case in CASES:
        dataset = Dataset.make(place / case.name, case.files, case.size)
        pairs = [
            tuple(run(place, case, dataset, programs, ours=ours) for ours in (True, False))
            for _ in range(rounds)
        ]
        shutil.rmtree(dataset.backing)
        results += told(case, dataset, pairs)
    return results


def told(case: Case, dataset: Dataset, pairs: list[tuple[list[Epoch], ...]]) -> list[Result]:
    ratios = sorted(ours[0].seconds / plain[0].seconds for ours, plain in pairs)
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
        key: str, what: str, unit: str, values: list[float], limit: float | None = None
    ) -> Result:
        return Result(f"{case.name}_{key}", f"  {what}", unit, statistics.median(values), limit)

    def opens(epochs: list[Epoch]) -> int:
        return sum(epoch.did("opened") for epoch in epochs)

    all_ours = [ours for ours, _ in pairs]
    served = [sum(epoch.did("served") for epoch in ours) / dataset.bytes for ours in all_ours]
    accesses = case.files * (case.epochs - 1)
    return [
        first,
        row(
            "plain",
            "time of epoch 1 without Monarch",
            "s",
            [plain[0].seconds for _, plain in pairs],
        ),
        row("second", "time of epoch 2", "s", [ours[1].seconds for ours in all_ours]),
        row("bytes", "bytes that the source sends in all epochs / dataset", "", served, 1.02),
        row(
            "opens",
            "opens at the source in epoch 1 / files of the dataset",
            "",
            [opens(ours[:1]) / case.files for ours in all_ours],
            1.05,
        ),
        row(
            "later",
            "opens at the source in later epochs / accesses in these epochs",
            "",
            [opens(ours[1:]) / accesses for ours in all_ours],
            0.01,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_epoch.nodes", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=5, help="pairs of each case")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="for all files")
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
