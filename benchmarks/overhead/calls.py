"""Measures single calls: two processes of probe.c alternate, one with the library, one without."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import SEED, Child, Daemon, lockstep, plain_environment, write_list
from benchmarks.numbers import Result, paired

__all__ = ["HOT_BYTES", "Calls"]

HOT_BYTES = 64 * 1024
# A round has many calls, so that its first calls, which run with cold caches, do not matter.
CALLS_A_ROUND = 20_000


@dataclass(frozen=True, slots=True)
class Operation:
    """A call to measure.

    name, what, limit : fields of the Result
    operation : the name of the call in probe.c
    number : the number of calls in a round
    rounds : a factor by which the number of rounds is multiplied
    """

    name: str
    what: str
    operation: str
    limit: float | None = None
    number: int = CALLS_A_ROUND
    rounds: int = 1


class Calls:
    """The measurements of single calls. Each measurement returns its results."""

    def __init__(self, daemon: Daemon, place: Path, probe: Path, rounds: int) -> None:
        self.daemon, self.place, self.probe, self.rounds = daemon, place, probe, rounds

    def _pair(
        self, ours_on: list[str], plain_on: list[str], operations: list[Operation]
    ) -> list[Result]:
        """Measures operations in two processes, one with and one without the library. The processes
        access the files in different orders. With the same order, one process would fill the caches
        for the other.

        ours_on : the paths that the process with the library accesses
        plain_on : the paths that the process without the library accesses
        """
        logical = write_list(self.place / "logical.list", ours_on)
        copies = write_list(self.place / "copies.list", plain_on)
        with (
            Child([self.probe, logical, SEED], self.daemon.environment()) as ours,
            Child([self.probe, copies, SEED + 1], plain_environment()) as plain,
        ):
            return [self._measure(ours, plain, operation) for operation in operations]

    def _measure(self, ours: Child, plain: Child, operation: Operation) -> Result:
        lines = [f"{operation.operation} {operation.number}"]
        answers = lockstep(ours, plain, lines * (operation.rounds * self.rounds + 1))
        failed = sum(mine[2] + theirs[2] for mine, theirs in answers)
        if failed:
            raise RuntimeError(f"{operation.what}: {failed} operations failed")
        if any(mine[3] != theirs[3] for mine, theirs in answers):
            raise RuntimeError(f"{operation.what}: the processes listed different numbers of names")
        wall, cpu = ([(mine[i], theirs[i]) for mine, theirs in answers] for i in (0, 1))
        result = paired(
            operation.name,
            operation.what,
            cpu,
            limit=operation.limit,
            operations=operation.number,
            wall=wall,
        )
        print(f"  {operation.what}: {result.value:.3f}", file=sys.stderr)
        return result

    def scanned(self, directories: list[str], files: list[str]) -> list[Result]:
        """Measures calls that ask for names and attributes before any copies exist. Both processes
        use the paths of the source, which is on a local file system. The library answers the calls
        of the first process from the catalog. The local file system answers the calls of the other
        process."""
        listed, looked_at = len(directories), min(CALLS_A_ROUND, len(files))
        return [
            *self._pair(
                directories,
                directories,
                [Operation("list", f"listing {listed} directories", "list", 1.1, listed)],
            ),
            *self._pair(
                files,
                files,
                [
                    Operation(
                        "stat_absent",
                        f"stat of {len(files)} scanned paths without copies",
                        "stat-random",
                        number=looked_at,
                    )
                ],
            ),
        ]

    def hot(self, hot: Path) -> list[Result]:
        """Measures calls on a single file that has a copy (the hot file)."""
        copy = dict(zip(*self.daemon.files(), strict=True))[str(hot)]
        return self._pair(
            [str(hot)],
            [copy],
            [
                Operation("open_hot", "open+close of one hot file", "open", 1.15),
                Operation("pread", "pread of 4 KiB", "pread", 1.02),
                Operation("stat_hot", "stat of one hot path", "stat", 1.0),
                Operation("fstat", "fstat of a copy's descriptor", "fstat", 1.2),
            ],
        )

    def random(self) -> list[Result]:
        """Measures calls on all files that have copies, in random order."""
        logical, copies = self.daemon.files()
        files = len(logical)
        number = min(CALLS_A_ROUND, files)
        opening, looking = f"open+close of {files} files", f"stat of {files} paths"
        return self._pair(
            logical,
            copies,
            [
                Operation(
                    "open_random", f"{opening} at random", "open-random", 1.15, number, rounds=2
                ),
                Operation(
                    "stat_random", f"{looking} at random", "stat-random", 1.0, number, rounds=2
                ),
            ],
        )

    def outside(self) -> list[Result]:
        """Measures calls on a file outside every source. Both processes use the same path."""
        outside = [str(self._outside_file())]
        return self._pair(
            outside,
            outside,
            [
                Operation("outside_read", "open+close outside every source, to read", "open", 1.05),
                Operation(
                    "outside_write",
                    "open+close outside every source, to write",
                    "open-write",
                    1.35,
                ),
                Operation("outside_stat", "stat outside every source", "stat"),
                Operation("outside_pread", "pread of 4 KiB outside every source", "pread"),
                Operation("outside_fstat", "fstat outside every source", "fstat"),
            ],
        )

    def _outside_file(self) -> Path:
        outside = self.place / "outside.bin"
        outside.write_bytes(b"\0" * HOT_BYTES)
        return outside

    def constructor(self) -> Result:
        """Measures the time of the library's constructor, which runs when a program starts. Two
        processes start programs. The first process preloads the library into the programs that it
        starts. The two processes themselves do not load the library."""
        listed = write_list(self.place / "outside.list", [str(self._outside_file())])
        environment = self.daemon.environment()
        ours_more = [f"{name}={environment[name]}" for name in ("LD_PRELOAD", "MONARCH_CONFIG")]
        number, rounds = 20, 2 * self.rounds
        with (
            Child([self.probe, listed, SEED, *ours_more], plain_environment()) as ours,
            Child([self.probe, listed, SEED], plain_environment()) as plain,
        ):
            answers = lockstep(ours, plain, [f"spawn {number}"] * (rounds + 1))
        if any(mine[2] or theirs[2] for mine, theirs in answers):
            raise RuntimeError("/bin/true could not be started")
        pairs = [(mine[0], theirs[0]) for mine, theirs in answers]
        return paired(
            "constructor",
            "time that the library adds to the start of a process",
            pairs,
            limit=1.0,
            operations=number,
            difference_in="ms",
        )
