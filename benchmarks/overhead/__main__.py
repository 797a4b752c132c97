"""``python -m benchmarks.overhead``: calls under the library, the scan, the daemon's memory.

Makes a dataset of tiny files and one larger file, has the daemon copy all of it, and lets two
processes of probe.c take turns: one under the library on the dataset's paths, one without it on the
paths of the copies. The larger file is the hot one.

Ratios of calls are those of CPU times: nothing here waits, and time that the machine gave to others
in the middle of a round is neither's. The JSON has those of the wall times beside them.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common import (
    SEED,
    Child,
    Daemon,
    build,
    lockstep,
    plain_environment,
    scratch,
    write_list,
)
from benchmarks.numbers import Result, describe_machine, file_system, paired, report

FILES_A_DIRECTORY = 1000
HOT_BYTES = 64 * 1024
# Beyond what one million files take with the largest block of a common file system [bytes].
QUOTA_BYTES = 16 << 30
# What the daemon may take: a Python process with numpy, and a catalog entry with its indexes.
DAEMON_BYTES, BYTES_A_FILE = 70 << 20, 192
SCAN_LIMIT_S_PER_FILE = 2 / 100_000
# A tiny file is copied in 20-150 us; a crowded machine may take ten times that.
PATIENCE_S_PER_FILE = 0.0015


def make_dataset(root: Path, files: int) -> tuple[Path, float]:
    """Writes `files` files of 1 to 100 bytes and the hot one; returns it and the seconds taken."""
    started = time.monotonic()
    root.mkdir()
    content = bytes(range(100))
    for number in range(files):
        directory = root / f"train{number // FILES_A_DIRECTORY:05d}"
        if number % FILES_A_DIRECTORY == 0:
            directory.mkdir()
        with open(f"{directory}/sample-{number:08d}.bin", "xb", buffering=0) as file:
            file.write(content[: 1 + number % 100])
    hot = root / "hot.bin"
    hot.write_bytes(b"\0" * HOT_BYTES)
    return hot, time.monotonic() - started


class Overhead:
    """The measurements; each adds its lines to `results`."""

    def __init__(self, args: argparse.Namespace, place: Path, tier: Path) -> None:
        self.args, self.place, self.tier = args, place, tier
        self.results: list[Result] = []
        self.document: dict[str, Any] = {}
        self.probe = build(Path(__file__).with_name("probe.c"), place)

    def run(self) -> None:
        source = self.place / "source"
        hot, creating = make_dataset(source, self.args.files)
        self.document = {
            "benchmark": "overhead",
            "machine": describe_machine(),
            "files": self.args.files,
            "source_file_system": file_system(source),
            "tier_file_system": file_system(self.tier),
            "seconds_to_create": round(creating, 3),
        }
        daemon = Daemon(self.place, source, self.tier, QUOTA_BYTES)
        with daemon:
            self._scan(daemon)
            self._fill(daemon, hot)
            self._memory(daemon, "filled", "daemon's memory, all copied")
            self._hot(daemon, hot)
            self._random(daemon)
            self._outside(daemon)
            self._constructor(daemon)

    # --- the daemon -----------------------------------------------------------------------------

    def _scan(self, daemon: Daemon) -> None:
        limit = SCAN_LIMIT_S_PER_FILE * self.args.files
        status = daemon.wait_scanned(30 + PATIENCE_S_PER_FILE * self.args.files)
        seconds = status["sources"][0]["scan_seconds"]
        what = f"scan of {self.args.files} files"
        self.results.append(Result("scan", what, "s", seconds, limit))
        self._memory(daemon, "scanned", "daemon's memory, scanned")

    def _memory(self, daemon: Daemon, when: str, what: str) -> None:
        found = daemon.memory()
        paths = sum(len(path) + 1 for path in self._relative_paths())
        entries = self.args.files + 1 + -(-self.args.files // FILES_A_DIRECTORY)
        limit = DAEMON_BYTES + BYTES_A_FILE * entries + paths
        mib = 1 << 20
        self.results.append(
            Result(f"memory_{when}", what, "MiB", found["rss_bytes"] / mib, limit / mib)
        )
        self.document[f"daemon_{when}"] = found

    def _relative_paths(self) -> list[str]:
        return [
            f"train{number // FILES_A_DIRECTORY:05d}/sample-{number:08d}.bin"
            for number in range(self.args.files)
        ]

    def _fill(self, daemon: Daemon, hot: Path) -> None:
        """Opens every file once under the library; the daemon copies them all."""
        paths = [str(hot), *(f"{daemon.source}/{path}" for path in self._relative_paths())]
        listed = write_list(self.place / "source.list", paths)
        before, started = daemon.process.cpu_times(), time.monotonic()
        with Child([self.probe, listed, SEED], daemon.environment()) as child:
            _, _, failed = child.ask(f"open-random {len(paths)}")
        if failed:
            raise RuntimeError(f"{failed} files of the dataset could not be opened")
        daemon.wait_present(len(paths), 60 + PATIENCE_S_PER_FILE * len(paths))
        seconds, after = time.monotonic() - started, daemon.process.cpu_times()
        cpu = after.user + after.system - before.user - before.system
        self.document["fill"] = {
            "files": len(paths),
            "seconds": round(seconds, 3),
            "daemon_cpu_seconds": round(cpu, 3),
            "daemon_cpu_share": round(cpu / seconds, 3),
        }
        self.results.append(
            Result("fill", "filling, a file", "us", seconds / len(paths) * 1e6, None)
        )
        self.results.append(
            Result(
                "fill_cpu",
                "filling, the daemon's CPU time a file",
                "us",
                cpu / len(paths) * 1e6,
                None,
            )
        )

    # --- calls ----------------------------------------------------------------------------------

    def _pair(
        self, daemon: Daemon, logical: Path, copies: Path, operations: list[tuple[Any, ...]]
    ) -> None:
        """operations : (name, what, operation, its number in a round, rounds, limit).

        Each process has an order of its own: the second to come to a file would find in the
        processor's caches what the first has brought there.
        """
        with (
            Child([self.probe, logical, SEED], daemon.environment()) as ours,
            Child([self.probe, copies, SEED + 1], plain_environment()) as plain,
        ):
            for name, what, operation, number, rounds, limit in operations:
                answers = lockstep(ours, plain, [f"{operation} {number}"] * (rounds + 1))
                failed = sum(mine[2] + theirs[2] for mine, theirs in answers)
                if failed:
                    raise RuntimeError(f"{what}: {failed} operations failed")
                wall, cpu = ([(mine[i], theirs[i]) for mine, theirs in answers] for i in (0, 1))
                self.results.append(
                    paired(name, what, cpu, limit=limit, operations=number, wall=wall)
                )
                print(f"  {what}: {self.results[-1].value:.3f}", file=sys.stderr)

    def _lists(self, daemon: Daemon) -> dict[str, str]:
        return dict(zip(*daemon.files(), strict=True))

    def _hot(self, daemon: Daemon, hot: Path) -> None:
        copy = self._lists(daemon)[str(hot)]
        logical = write_list(self.place / "hot.list", [str(hot)])
        copies = write_list(self.place / "hot-copy.list", [copy])
        n, rounds = 20_000, self.args.rounds
        self._pair(
            daemon,
            logical,
            copies,
            [
                ("open_hot", "open+close of one hot file", "open", n, rounds, 1.20),
                ("pread", "pread of 4 KiB", "pread", n, rounds, 1.03),
                ("stat_hot", "stat of one hot path", "stat", n, rounds, 1.0),
                ("fstat", "fstat of a copy's descriptor", "fstat", n, rounds, 1.25),
            ],
        )

    def _random(self, daemon: Daemon) -> None:
        logical, copies = daemon.files()
        lists = (
            write_list(self.place / "logical.list", logical),
            write_list(self.place / "copies.list", copies),
        )
        # Long enough that a round's first files, with cold caches, do not count.
        n, files, rounds = min(20_000, len(logical)), len(logical), 2 * self.args.rounds
        self._pair(
            daemon,
            *lists,
            [
                (
                    "open_random",
                    f"open+close of {files} files at random",
                    "open-random",
                    n,
                    rounds,
                    1.20,
                ),
                ("stat_random", f"stat of {files} paths at random", "stat-random", n, rounds, 1.0),
            ],
        )

    def _outside(self, daemon: Daemon) -> None:
        outside = self.place / "outside.bin"
        outside.write_bytes(b"\0" * HOT_BYTES)
        listed = write_list(self.place / "outside.list", [str(outside)])
        n, rounds = 20_000, self.args.rounds
        self._pair(
            daemon,
            listed,
            listed,
            [
                (
                    "outside_read",
                    "open+close outside every source, to read",
                    "open",
                    n,
                    rounds,
                    1.05,
                ),
                (
                    "outside_write",
                    "open+close outside every source, to write",
                    "open-write",
                    n,
                    rounds,
                    1.35,
                ),
                ("outside_stat", "stat outside every source", "stat", n, rounds, None),
                ("outside_pread", "pread of 4 KiB outside every source", "pread", n, rounds, None),
                ("outside_fstat", "fstat outside every source", "fstat", n, rounds, None),
            ],
        )

    def _constructor(self, daemon: Daemon) -> None:
        """Neither launcher is under the library: only what they start is."""
        listed = self.place / "outside.list"
        environment = daemon.environment()
        ours_more = [f"{name}={environment[name]}" for name in ("LD_PRELOAD", "MONARCH_CONFIG")]
        number, rounds = 20, 2 * self.args.rounds
        with (
            Child([self.probe, listed, SEED, *ours_more], plain_environment()) as ours,
            Child([self.probe, listed, SEED], plain_environment()) as plain,
        ):
            answers = lockstep(ours, plain, [f"spawn {number}"] * (rounds + 1))
        if any(mine[2] or theirs[2] for mine, theirs in answers):
            raise RuntimeError("/bin/true could not be started")
        pairs = [(mine[0], theirs[0]) for mine, theirs in answers]
        self.results.append(
            paired(
                "constructor",
                "start of a process, the difference",
                pairs,
                limit=1.0,
                operations=number,
                difference_in="ms",
            )
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--files", type=int, default=100_000, help="files of the dataset")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each measurement")
    parser.add_argument("--dir", type=Path, help="where the dataset is made")
    parser.add_argument("--tier", type=Path, help="where the copies are made; by default as --dir")
    parser.add_argument("--json", type=Path, help="write the JSON here, not to standard output")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    args = parser.parse_args()
    with scratch(args.dir) as place, scratch(args.tier or place) as tier:
        overhead = Overhead(args, place, tier)
        overhead.run()
        met = report(overhead.document, overhead.results, args.json)
    return 1 if args.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
