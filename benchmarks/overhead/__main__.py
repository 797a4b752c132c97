"""``python -m benchmarks.overhead``: calls and programs under the library, the scan, the daemon.

The benchmark creates a dataset of tiny files and one larger file, the hot file. The daemon copies
all of them. Two processes of probe.c alternate. One of them runs with the library, and accesses the
paths of the dataset. The other runs without the library, and accesses the paths of the copies.
Programs that use no dataset also run alternately with and without the library. An import takes
seconds, in which the machine's speed may change. So the import with the library and the import
without it run at the same time. `--only` selects some of these groups:

    scanned       listings and stat of files that are scanned and not copied
    calls         calls on copied files, and the copying itself
    outside       calls outside every source, and the start of a process
    programs      starting python, git status, a compilation
    imports       import tensorflow, import torch; takes minutes
    instructions  instructions added to calls outside every source; needs valgrind

The results for calls are ratios of CPU times. The CPU time is suitable, because these calls never
wait. It does not include the time in which the machine runs other processes. The JSON also contains
the ratios of wall times.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.common import SEED, Child, Daemon, build, scratch, write_list
from benchmarks.numbers import Result, describe_machine, file_system, report
from benchmarks.overhead.calls import HOT_BYTES, Calls
from benchmarks.overhead.instructions import count_instructions, why_not_counted
from benchmarks.overhead.programs import COMPILED_FILES, Program, imports, measure, tools

GROUPS = ("scanned", "calls", "outside", "programs", "imports", "instructions")
FILES_A_DIRECTORY = 1000
DIRECTORIES_LISTED = 100
# The quota of the tier [bytes]. One million tiny files need less, even if each of them occupies a
# block of 16 KiB.
QUOTA_BYTES = 16 << 30
# The daemon may use DAEMON_BYTES of memory for a Python process with numpy. For each file, it may
# also use BYTES_A_FILE for the entries in the catalog and its indexes, and the length of the path.
DAEMON_BYTES, BYTES_A_FILE = 70 << 20, 192
SCAN_LIMIT_S_PER_FILE = 2 / 100_000
# Copying a tiny file takes 20-150 us. On a busy machine, this may take ten times longer.
PATIENCE_S_PER_FILE = 0.0015


def make_dataset(root: Path, files: int) -> tuple[Path, float]:
    """Writes `files` files of 1 to 100 bytes, and the larger hot file. Returns the path of the hot
    file and the time taken [s]."""
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
    """The measurements. Each measurement adds Result objects to `results`."""

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
            "groups": self.args.only,
            "skipped": {},
        }
        daemon = Daemon(self.place, source, self.tier, QUOTA_BYTES)
        with daemon:
            self._scan(daemon)
            self._calls(daemon, hot)
            self._programs(daemon)

    # --- the daemon -----------------------------------------------------------------------------

    def _scan(self, daemon: Daemon) -> None:
        limit = SCAN_LIMIT_S_PER_FILE * self.args.files
        status = daemon.wait_scanned(30 + PATIENCE_S_PER_FILE * self.args.files)
        seconds = status["sources"][0]["scan_seconds"]
        what = f"scan of {self.args.files} files"
        self.results.append(Result("scan", what, "s", seconds, limit))
        self._memory(daemon, "scanned", "memory of the daemon after the scan")

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
        """Opens every file in a process with the library, so that the daemon copies all files.
        Waits until all files have copies."""
        paths = [str(hot), *(f"{daemon.source}/{path}" for path in self._relative_paths())]
        listed = write_list(self.place / "source.list", paths)
        before, started = daemon.process.cpu_times(), time.monotonic()
        with Child([self.probe, listed, SEED], daemon.environment()) as child:
            _, _, failed, _ = child.ask(f"open-random {len(paths)}")
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
            Result("fill", "time of a fill", "us", seconds / len(paths) * 1e6, None)
        )
        self.results.append(
            Result(
                "fill_cpu",
                "CPU time of the daemon per fill",
                "us",
                cpu / len(paths) * 1e6,
                None,
            )
        )

    # --- the groups -----------------------------------------------------------------------------

    def _calls(self, daemon: Daemon, hot: Path) -> None:
        calls = Calls(daemon, self.place, self.probe, self.args.rounds)
        if "scanned" in self.args.only:
            files = [f"{daemon.source}/{path}" for path in self._relative_paths()]
            directories = sorted({path.rpartition("/")[0] for path in files})
            self.results += calls.scanned(directories[:DIRECTORIES_LISTED], files)
        if "calls" in self.args.only:
            self._fill(daemon, hot)
            self._memory(daemon, "filled", "memory of the daemon after all fills")
            self.results += calls.hot(hot)
            self.results += calls.random()
        if "outside" in self.args.only:
            self.results += calls.outside()
            self.results.append(calls.constructor())

    def _programs(self, daemon: Daemon) -> None:
        place, rounds = self.place / "programs", self.args.program_rounds
        place.mkdir()
        if "programs" in self.args.only:
            self._measure(daemon, tools(place, rounds, self.args.compile))
        if "imports" in self.args.only:
            self._measure(daemon, imports(rounds))
        if "instructions" in self.args.only:
            missing = why_not_counted()
            if missing is None:
                self.results += count_instructions(daemon, place)
            else:
                self._skip("instructions", missing)

    def _measure(self, daemon: Daemon, programs: Iterable[Program]) -> None:
        for program in programs:
            if program.missing is None:
                self.results.append(measure(program, daemon))
            else:
                self._skip(program.name, program.missing)

    def _skip(self, name: str, reason: str) -> None:
        self.document["skipped"][name] = reason
        print(f"  {name} is left out: {reason}", file=sys.stderr)


def groups(text: str) -> list[str]:
    """Returns the groups that `text`, a comma-separated list, names."""
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in GROUPS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown: {', '.join(unknown)}; the groups are {', '.join(GROUPS)}"
        )
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        type=groups,
        default=list(GROUPS),
        metavar="GROUP,...",
        help="what is measured; by default everything",
    )
    parser.add_argument("--files", type=int, default=100_000, help="files of the dataset")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each measurement")
    parser.add_argument(
        "--program-rounds",
        type=int,
        default=25,
        help="rounds for each program",
    )
    parser.add_argument(
        "--compile", type=int, default=COMPILED_FILES, help="C files that are compiled"
    )
    parser.add_argument("--dir", type=Path, help="where the dataset is made")
    parser.add_argument("--tier", type=Path, help="directory of the copies; default: --dir")
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
