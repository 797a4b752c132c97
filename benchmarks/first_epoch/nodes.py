"""``python -m benchmarks.first_epoch.nodes``: the first epoch of four nodes on one machine.

Every node has a mount of the slow source, a daemon that was just started, a tier with room for all
and a reader, and reads its share. Beside it, in turn, the same readers without Monarch. The cores
of one machine carry the source, all daemons and all readers. Needs FUSE.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from pathlib import Path

from benchmarks.common import build, scratch
from benchmarks.nodes.testbed import Dataset, Epoch, Layout, Testbed
from benchmarks.numbers import Result, describe_machine, report
from monarch_py.demo.slowsource import find_slowsource, why_unavailable

NODES, EPOCHS = 4, 2
LATENCY_S, RATE = 0.0005, 200e6
KIB = 1 << 10
# Files, their mean size [bytes] and the limit of the first epoch / plain.
CASES = ((4000, 4 * KIB, 2.0), (800, 128 * KIB, 1.15))


def run(place: Path, dataset: Dataset, programs: tuple[Path, Path], *, ours: bool) -> list[Epoch]:
    """The epochs of one start."""
    here = place / "run"
    here.mkdir()
    # A copy takes whole pages, and the tier some room beside them.
    room = 2 * (dataset.bytes + 4 * KIB * len(dataset.sizes)) + (64 << 20)
    layout = Layout([room] * NODES, room, has_daemons=ours)
    orders = [dataset.shares(NODES, epoch) for epoch in range(EPOCHS)]
    try:
        with Testbed(here, dataset, programs, layout, rate=RATE) as bed:
            for mount in bed.mounts:
                mount.latency(open=LATENCY_S, getattr=LATENCY_S, read=LATENCY_S)
            return bed.epochs(orders)
    finally:
        shutil.rmtree(here, ignore_errors=True)


def measure(place: Path, programs: tuple[Path, Path], rounds: int) -> list[Result]:
    results = []
    for files, size, limit in CASES:
        dataset = Dataset.make(place / f"backing-{files}", files, size)
        pairs = [
            tuple(run(place, dataset, programs, ours=ours) for ours in (True, False))
            for _ in range(rounds)
        ]
        shutil.rmtree(dataset.backing)
        what, name = f"{NODES} nodes, {files} x {size // KIB} KiB", f"nodes_{files}x{size // KIB}k"
        ratios = sorted(ours[0].seconds / plain[0].seconds for ours, plain in pairs)
        of_source = {
            key: statistics.median(sum(each.did(key) for each in ours) for ours, _ in pairs)
            for key in ("served", "opened")
        }
        results += [
            Result(
                f"{name}_first",
                f"{what}: first epoch / plain",
                "",
                statistics.median(ratios),
                limit,
                ci95=(ratios[0], ratios[-1]),
                rounds=rounds,
            ),
            *(
                Result(f"{name}_{key}", f"  {words}", "s", statistics.median(seconds), None)
                for key, words, seconds in (
                    ("plain", "plain", [plain[0].seconds for _, plain in pairs]),
                    ("second", "epoch 2", [ours[1].seconds for ours, _ in pairs]),
                )
            ),
            Result(
                f"{name}_bytes",
                "  bytes of the source in two epochs / dataset",
                "",
                of_source["served"] / dataset.bytes,
                1.02,
            ),
            Result(
                f"{name}_opens",
                "  opens at the source in two epochs / files",
                "",
                of_source["opened"] / files,
                1.05,
            ),
        ]
    return results


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
