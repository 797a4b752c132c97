"""``python -m benchmarks.epochs``: epochs of a dataset on a slow source that counts operations.

The benchmark first runs one epoch without the library. Then it runs epochs with the library. In
epoch 1 with the library, the program reads the source, and the daemon makes copies. In the later
epochs, the program reads the copies. Each later epoch is paired with an epoch that reads the copies
without the library. In a second part, epochs read only the names and attributes of a tree of small
files (metadata.py). The slow source counts the operations that reach it. It needs FUSE.

The later epochs are compared by their CPU times, which depend less on other users of the machine
than wall times do. This is possible because the copies are in the page cache, so no thread waits.
Wall times are reported too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common import Child, Daemon, build, lockstep, plain_environment, scratch, write_list
from benchmarks.epochs.metadata import count_metadata, make_tree
from benchmarks.numbers import Result, describe_machine, file_system, paired, report
from monarch_py.demo.slowsource import SlowSource, find_slowsource, why_unavailable

BLOCK = 256 * 1024
DAEMON_START_LIMIT_S = 60.0
NAME_EPOCHS = 11
MIB = 1 << 20
BYTES = ("bytes_read", "bytes_written")


def make_dataset(root: Path, files: int, size: int) -> None:
    """Writes `files` files of `size` random bytes."""
    root.mkdir()
    content = os.urandom(size)
    for number in range(files):
        (root / f"shard-{number:05d}.tar").write_bytes(content)


class Epochs:
    """The measurements. Each measurement adds Result objects to `results`."""

    def __init__(self, args: argparse.Namespace, place: Path, tier: Path, slow: SlowSource) -> None:
        self.args, self.place, self.tier, self.slow = args, place, tier, slow
        self.results: list[Result] = []
        self.epochs: list[dict[str, Any]] = []
        self.reader = build(Path(__file__).with_name("reader.c"), place, "-pthread")
        self.bytes = args.files * args.file_mib * MIB
        self._number = 0

    def document(self) -> dict[str, Any]:
        return {
            "files": self.args.files,
            "bytes": self.bytes,
            "threads": self.args.threads,
            "source_bytes_per_s": self.args.rate * 1e6,
            "tier_file_system": file_system(self.tier),
            "epochs": self.epochs,
        }

    def run(self) -> None:
        names = sorted(path.name for path in self.slow.backing.iterdir())
        logical = write_list(
            self.place / "logical.list", [f"{self.slow.mountpoint}/{n}" for n in names]
        )
        with Child(self._argv(logical), plain_environment()) as plain:
            self._one_epoch(plain, "without the library")
        daemon = Daemon(self.place, self.slow.mountpoint, self.tier, 2 * self.bytes + (64 << 20))
        with daemon:
            daemon.wait_scanned(DAEMON_START_LIMIT_S)
            with Child(self._argv(logical), daemon.environment()) as ours:
                self._one_epoch(ours, "under the library, epoch 1")
                self._filled(daemon)
                # The start of epoch 2 resets the counts for the last time. So the totals of the
                # later epochs also include the requests of epoch 2.
                self._one_epoch(ours, "under the library, epoch 2")
                self._later(daemon, ours)
        self._first_epochs()

    def _argv(self, listed: Path) -> list[str | Path | int]:
        return [self.reader, listed, self.args.threads, BLOCK]

    def _checked(self, answer: list[int]) -> float:
        """Returns the wall time of an epoch [s]. Raises RuntimeError if the epoch is incomplete.

        answer : the numbers that reader.c has printed
        """
        nanoseconds, _, read, failed = answer
        if failed or read != self.bytes:
            raise RuntimeError(f"an epoch read {read} of {self.bytes} bytes, {failed} files failed")
        return nanoseconds / 1e9

    def _one_epoch(self, child: Child, what: str) -> None:
        self.slow.reset()
        self._number += 1
        seconds = self._checked(child.ask(f"epoch {self._number}"))
        counts = {kind: number for kind, number in self.slow.counts().items() if number}
        self.epochs.append({"what": what, "seconds": round(seconds, 4), "source": counts})
        print(f"  {what}: {seconds:.3f} s; at the source: {json.dumps(counts)}", file=sys.stderr)

    def _filled(self, daemon: Daemon) -> None:
        daemon.wait_present(self.args.files, 60 + 4 * self.bytes / (self.args.rate * 1e6))

    def _later(self, daemon: Daemon, ours: Child) -> None:
        """Measures epochs that read the copies through the library. Each of these epochs is paired
        with an epoch that reads the copies without the library. The operations that reach the
        source are counted. File locks are not among them, because the kernel itself handles locks
        on files of this source."""
        _, copies = daemon.files()
        listed = write_list(self.place / "copies.list", copies)
        before = [self.slow.counts()]

        def lines() -> Iterator[str]:
            for _ in range(self.args.rounds + 1):
                self._number += 1
                yield f"epoch {self._number}"
                before.append(self.slow.counts())

        with Child(self._argv(listed), plain_environment()) as plain:
            answers = lockstep(ours, plain, lines())
        for answer in (each for pair in answers for each in pair):
            self._checked(answer)
        total = {kind: before[-1][kind] for kind in before[-1] if before[-1][kind]}
        self._reached(total, before)
        wall, cpu = ([(mine[i], theirs[i]) for mine, theirs in answers] for i in (0, 1))
        what = "epoch from the copies: CPU time under the library / without it"
        files = self.args.files
        self.results += [
            paired("later_epoch", what, cpu, limit=1.02, operations=files, wall=wall),
            paired(
                "later_epoch_wall",
                "  wall time under the library / without it",
                wall,
                limit=None,
                operations=files,
            ),
        ]
        self.epochs.append(
            {
                "what": f"epochs from 3 on, median of {len(wall)}",
                "seconds": round(statistics.median(mine for mine, _ in wall) / 1e9, 4),
                "source": total,
            }
        )

    def _reached(self, total: dict[str, int], counts: list[dict[str, int]]) -> None:
        """Reports the operations that reached the source from epoch 2 on.

        total : number of operations of each kind from epoch 2 on
        counts : for each epoch from 2 on, a running total: the number of operations of each kind
            from the start of epoch 2 to the end of this epoch

        The number of getattr requests is the median over the epochs, for two reasons. First, in
        some epochs the library revalidates the files, with one request for each file. Second, the
        daemon has opened the root directory of the source. So any process that examines all
        descriptors on the machine requests the attributes of this directory.
        """
        others = sum(n for kind, n in total.items() if kind not in ("getattr", *BYTES))
        asked = [after["getattr"] - before["getattr"] for before, after in pairwise(counts)]
        last = len(counts) + 1
        self.results += [
            Result(
                "source_operations",
                f"operations at the source in epochs 2-{last}, except getattr",
                "",
                others,
                0,
            ),
            Result(
                "source_attributes",
                f"getattr requests at the source per epoch, median of epochs 3-{last}",
                "",
                statistics.median(asked),
                0,
            ),
        ]

    def _first_epochs(self) -> None:
        without, first, second = (epoch["seconds"] for epoch in self.epochs[:3])
        self.results += [
            Result(
                "first_epoch",
                "time of epoch 1 / of an epoch without the library",
                "ratio",
                first / without,
                None,
            ),
            Result(
                "second_epoch",
                "time of epoch 2 / of an epoch without the library",
                "ratio",
                second / without,
                None,
            ),
        ]


def content(
    args: argparse.Namespace, binary: Path, document: dict[str, Any], results: list[Result]
) -> None:
    """Measures epochs in which every file is read to its end. Adds the measurements to `document`
    and to `results`."""
    with scratch(args.dir) as place, scratch(args.tier or place) as tier:
        make_dataset(place / "backing", args.files, args.file_mib * MIB)
        (place / "source").mkdir()
        with SlowSource(place / "backing", place / "source", binary=binary, attr_timeout=0) as slow:
            slow.rate(args.rate * 1e6)
            epochs = Epochs(args, place, tier, slow)
            epochs.run()
    document |= epochs.document()
    results += epochs.results


def metadata(
    args: argparse.Namespace, binary: Path, document: dict[str, Any], results: list[Result]
) -> None:
    """Measures epochs that access only names and attributes. Adds the results to `document` and
    `results`."""
    with scratch(args.dir) as place, scratch(args.tier or place) as tier:
        files = make_tree(place / "backing")
        (place / "source").mkdir()
        with SlowSource(place / "backing", place / "source", binary=binary, attr_timeout=0) as slow:
            result, document["metadata"] = count_metadata(slow, place, tier, files, NAME_EPOCHS)
    results.append(result)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.epochs", description=__doc__)
    parser.add_argument("--files", type=int, default=64, help="files of the dataset")
    parser.add_argument("--file-mib", type=int, default=8, help="size of a file [MiB]")
    parser.add_argument("--rate", type=float, default=200, help="speed of the source [MB/s]")
    parser.add_argument("--threads", type=int, default=8, help="reading threads")
    parser.add_argument("--rounds", type=int, default=150, help="later epochs that are compared")
    parser.add_argument(
        "--only", choices=["content", "metadata"], help="run only this half of the benchmark"
    )
    parser.add_argument("--dir", type=Path, help="where the dataset is made")
    parser.add_argument("--tier", type=Path, help="directory of the copies; default: --dir")
    parser.add_argument("--json", type=Path, help="write the JSON here, not to standard output")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    args = parser.parse_args()
    binary, problem = find_slowsource(), why_unavailable()
    if binary is None or problem:
        sys.exit(f"benchmarks.epochs: {problem}")
    document: dict[str, Any] = {"benchmark": "epochs", "machine": describe_machine()}
    results: list[Result] = []
    if args.only != "metadata":
        content(args, binary, document, results)
    if args.only != "content":
        metadata(args, binary, document, results)
    met = report(document, results, args.json)
    return 1 if args.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
