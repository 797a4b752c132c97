"""``python -m benchmarks.first_epoch.cold``: first epochs of small files, as a user sees them.

When ``monarch run`` starts, there is only a configuration with a source and a tier. No daemon runs,
nothing is scanned, and no copy exists. After each run with ``monarch run``, the same program runs
without Monarch. Most datasets are on a FUSE file system. It is mounted again for each run, so that
the kernel has cached no part of it. Two datasets are on the local disk. Before each run, the pages
of the first dataset are dropped from the page cache, and the pages of the second dataset are read
into the page cache.

The benchmark also compares the second epoch with the first epoch of another run, before which
``monarch warm`` has made all copies. In both of these epochs, the program reads each copy for the
first time. This is important, because the first read of a file on tmpfs costs the kernel more time
than later reads.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import (
    build,
    metadata_operations,
    plain_environment,
    scratch,
    touch_memory,
    write_list,
)
from benchmarks.numbers import Result, describe_machine, report
from monarch_py.demo.slowsource import SlowSource, find_slowsource, why_unavailable
from monarch_py.ipc.session import Segment, SessionDir

KIB = 1 << 10
# The number of files in the large datasets. The slow source needs a descriptor for every file that
# the kernel has cached, so this number must be below the limit on descriptors. Without
# CAP_SYS_RESOURCE, even root cannot raise this limit.
MANY = min(20000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 1000)
THREADS = 8
EPOCHS = 2
# If a program reads only a part of the dataset, the source may send at most MOST_FOR_EACH bytes for
# each byte that the program reads, plus MOST_BESIDE bytes.
MOST_FOR_EACH, MOST_BESIDE = 6, 256 << 20
# Maps a file size [bytes] to the limit on the daemon's CPU time for one file [us]. The limit
# applies to files that the daemon copies before the program opens them.
MOST_CPU_US = {4 * KIB: 120, 128 * KIB: 200}
Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A dataset, and the speed of the file system that contains it.

    latency_s : the latency of each open, look-up and read [s]
    rate : the rate of all reads together [bytes/s]
    quiet : the largest allowed ratio of the first epoch's times with and without Monarch; None for
        no limit
    busy : replaces `quiet` if the option --busy is given, with which other processes use all cores
    share : the share of the files that the program reads
    pages : "" for a dataset on the slow source. For a dataset on the local disk, `cold` if no page
        of it is in the page cache before a run, and `warm` if all pages are
    directories : the number of directories that contain the files
    is_lazy : whether the configuration sets `scan: lazy`
    """

    files: int
    size: int
    latency_s: float
    rate: float
    quiet: float | None
    busy: float | None
    share: float = 1.0
    pages: str = ""
    directories: int = 1
    is_lazy: bool = False

    @property
    def name(self) -> str:
        at = f"local_{self.pages}" if self.pages else f"{self.latency_s * 1e3:g}ms"
        return f"{self.files}x{self.size // KIB}k_{at}" + "_lazy" * self.is_lazy

    @property
    def what(self) -> str:
        at = f"latency {self.latency_s * 1e3:g} ms, {self.rate / 1e6:g} MB/s"
        if self.pages:
            at = f"local disk, {self.pages} page cache"
        part = f", {self.share:.0%} of them" if self.share < 1 else ""
        lazy = f", {self.directories} directories, scan: lazy" if self.is_lazy else ""
        return f"{self.files} x {self.size // KIB} KiB{part}, {at}{lazy}"

    @property
    def bytes_read(self) -> int:
        return int(self.files * self.share) * self.size

    @property
    def memory_bytes(self) -> int:
        """The memory that a run needs for the pages of the source's files, for the copies, for the
        program and for the daemon [bytes]."""
        return 2 * self.files * max(self.size, 4 * KIB) + (512 << 20)

    @property
    def fills_all(self) -> bool:
        """Whether every file has a copy after the first epoch. If so, the benchmark compares the
        second epoch with an epoch before which `monarch warm` has copied all files."""
        return self.share == 1 and not self.pages

    @property
    def most_bytes(self) -> float | None:
        """The limit on the number of bytes that the source sends for each byte that the program
        reads in an epoch; None if the program reads the whole dataset."""
        return MOST_FOR_EACH + MOST_BESIDE / self.bytes_read if self.share < 1 else None

    @property
    def most_cpu_us(self) -> float | None:
        """The limit on the daemon's CPU time per file [us]; None for no limit."""
        return MOST_CPU_US.get(self.size) if not self.pages else None


CASES = (
    Case(4096, 128 * KIB, 0.004, 1e9, 0.25, 0.5),
    Case(MANY, 16 * KIB, 0.004, 1e9, 0.2, 0.5),
    Case(600, 32 * KIB, 0.004, 1e9, 0.4, 0.5),
    Case(MANY, 4 * KIB, 0.0005, 200e6, 1.02, 1.08),
    Case(MANY, 16 * KIB, 0.0005, 200e6, 1.02, 1.08),
    Case(4096, 128 * KIB, 0.0005, 200e6, 1.02, 1.08),
    Case(512, 1024 * KIB, 0.0005, 200e6, 1.02, 1.08),
    Case(64, 8192 * KIB, 0.0005, 200e6, 1.02, 1.08),
    Case(4096, 1024 * KIB, 0.0005, 1e9, None, None, share=0.05),
    Case(MANY, 16 * KIB, 0.004, 1e9, None, None, share=1 / 20, directories=20, is_lazy=True),
    Case(MANY, 16 * KIB, 0, 0, 1.15, 1.25, pages="cold"),
    Case(MANY, 16 * KIB, 0, 0, 1.15, 1.25, pages="warm"),
)


# The minimum age [s] of a dataset when a job begins.
OLD_S = 3.0


class Cold:
    """Runs the program of one case, with and without Monarch. `place` is a directory with space for
    the dataset. The copies are in /dev/shm."""

    def __init__(
        self,
        case: Case,
        place: Path,
        reader: Path,
        *,
        keep_pages: bool,
        settings: dict[str, Any],
    ) -> None:
        self.case, self.place, self.reader = case, place, reader
        self.keep_pages, self.settings = keep_pages, settings
        self.backing = place / f"backing-{case.name}"
        self.mountpoint = self.backing if case.pages else place / "source"
        self._make()

    def _make(self) -> None:
        content = os.urandom(self.case.size)
        self.backing.mkdir()
        each = -(-self.case.files // self.case.directories)
        names = [f"{number // each:03d}/{number:06d}" for number in range(self.case.files)]
        for name in names:
            (self.backing / name).parent.mkdir(exist_ok=True)
            (self.backing / name).write_bytes(content)
        # Wait, because the scan examines all files of a directory that has just changed.
        time.sleep(OLD_S)
        # With `scan: lazy`, the program reads the files of the first directories. Otherwise, it
        # gets the whole list, and chooses random files if `share` is below 1.
        listed = names[: int(self.case.files * self.case.share)] if self.case.is_lazy else names
        paths = [f"{self.mountpoint}/{name}" for name in listed]
        self.list = write_list(self.place / f"{self.case.name}.list", paths)

    @contextmanager
    def _source(self) -> Iterator[SlowSource | None]:
        """Yields the slow source. For a dataset on the local disk, yields None, because requests to
        a local disk are not counted."""
        if self.case.pages:
            self._prepare_pages()
            yield None
            return
        binary = find_slowsource()
        assert binary is not None
        self.mountpoint.mkdir(exist_ok=True)
        with SlowSource(
            self.backing, self.mountpoint, binary=binary, keep_pages=self.keep_pages
        ) as slow:
            latency = self.case.latency_s
            slow.rate(self.case.rate)
            slow.latency(open=latency, getattr=latency, read=latency)
            yield slow

    def _prepare_pages(self) -> None:
        is_cold = self.case.pages == "cold"
        os.sync()  # dirty pages cannot be dropped
        for path in self.backing.glob("*/*"):
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            if not is_cold:
                os.read(file, self.case.size)
            os.close(file)

    def _read(
        self,
        slow: SlowSource | None,
        command: list[str],
        environment: dict[str, str],
        cpu_s: Callable[[], float] = lambda: 0.0,
        epochs: int = EPOCHS,
    ) -> list[Run]:
        """Runs the reader, and returns its answer for each epoch. Adds these fields to each answer:
        `source` contains the source's counts of operations at the end of the epoch. `start_s` is
        the CPU time that the daemon had used when the reader started. `daemon_s` is the CPU time
        that the daemon used from then until the end of the epoch.

        cpu_s : a function that returns the CPU time that the daemon has used so far [s]
        """
        share = 1 if self.case.is_lazy else self.case.share
        argv = [self.reader, self.list, THREADS, epochs, share]
        process = subprocess.Popen(
            [*command, *map(str, argv)], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        told = []
        with process:
            for line in process.stdout:
                source = slow.counts() if slow else {}
                told.append({**json.loads(line), "source": source, "cpu_s": cpu_s()})
        runs = [
            {**epoch, "start_s": told[0]["cpu_s"], "daemon_s": epoch["cpu_s"] - told[0]["cpu_s"]}
            for epoch in told[1:]
        ]
        expected = self.case.bytes_read
        if process.returncode or any(r["failed"] or r["bytes"] != expected for r in runs):
            raise RuntimeError(f"{self.case.name}: status {process.returncode}, {runs}")
        return runs

    def plain(self) -> list[Run]:
        touch_memory(self.case.memory_bytes)
        with self._source() as slow:
            return self._read(slow, [], plain_environment())

    @contextmanager
    def _configured(self) -> Iterator[tuple[SlowSource | None, Path]]:
        """Yields the source, and a configuration with an empty tier."""
        touch_memory(self.case.memory_bytes)
        with ExitStack() as stack:
            tier = Path(tempfile.mkdtemp(prefix="monarch-cold-", dir="/dev/shm"))
            stack.callback(shutil.rmtree, tier, ignore_errors=True)
            slow = stack.enter_context(self._source())
            config = self.place / "tiers.yaml"
            room = self.case.files * max(self.case.size, 4 * KIB) * 2 + (64 << 20)
            document = {
                "sources": [str(self.mountpoint)],
                "hierarchy": [{"mount_point": str(tier), "max_storage_quota": room}],
                **({"scan": "lazy"} if self.case.is_lazy else {}),
                **self.settings,
            }
            config.write_text(yaml.safe_dump(document))
            os.environ["MONARCH_SHM"] = str(tier)
            yield slow, config

    def ours(self) -> list[Run]:
        with self._configured() as (slow, config):
            run = [*monarch("run", config), "-q", "--"]
            return self._read(slow, run, plain_environment(), lambda: daemon_cpu_s(config))

    def present(self) -> list[Run]:
        """Runs the reader for one epoch after `monarch warm` has copied the whole dataset."""
        with self._configured() as (slow, config):
            run = [*monarch("run", config), "-q", "--"]
            subprocess.run(monarch("start", config), check=True, capture_output=True)
            try:
                subprocess.run(monarch("warm", config), check=True, capture_output=True)
                return self._read(slow, run, plain_environment(), epochs=1)
            finally:
                subprocess.run(monarch("stop", config), check=True, capture_output=True)


def monarch(command: str, config: Path) -> list[str]:
    return [sys.executable, "-m", "monarch_py", command, "-c", str(config)]


def daemon_cpu_s(config: Path) -> float:
    """Returns the CPU time [s] that the daemon of a configuration has used so far.

    Reads the daemon's process id from the control segment of the session. A search for the daemon
    among all processes would slow down the epoch that has just begun, even more than the daemon
    itself does.
    """
    control = Segment.open(SessionDir.of(config).control, writable=False)
    pid = int(control.as_struct("struct monarch_control").pid)
    # The argument is the clock id that clock_getcpuclockid(3) would return for the process. Python
    # has no function for this. The clock id consists of the complement of the process id, followed
    # by three bits. The value 2 of these bits selects the CPU time of the whole process.
    return time.clock_gettime(~pid << 3 | 2)


def metadata(case: Case, ours: list[Run], plain: list[Run]) -> float:
    """Returns how many more metadata operations, without opens, a run with Monarch needs than a run
    without Monarch. The number is divided by the number of files. With `scan: lazy`, it is divided
    by the number of files that the program does not read."""
    more = metadata_operations(ours[-1]["source"]) - metadata_operations(plain[0]["source"])
    read = int(case.files * case.share)
    return more / (case.files - read if case.is_lazy else case.files)


def compare(
    case: Case, pairs: list[tuple[list[Run], list[Run]]], present: list[list[Run]], *, busy: bool
) -> list[Result]:
    """Returns the results of one case.

    pairs : for each round, the epochs with Monarch, and the epochs without Monarch
    present : for each round, an epoch before which `monarch warm` had copied all files; empty if
        such epochs were not measured
    """
    files = int(case.files * case.share)

    def median(of: Callable[[list[Run], list[Run]], float]) -> float:
        return float(statistics.median(of(ours, plain) for ours, plain in pairs))

    def line(key: str, what: str, value: float, limit: float | None, unit: str = "") -> Result:
        return Result(f"{case.name}_{key}", what, unit, value, limit)

    ratios = sorted(ours[0]["seconds"] / plain[0]["seconds"] for ours, plain in pairs)
    first = Result(
        f"{case.name}_first",
        f"{case.what}: time of epoch 1 / without Monarch",
        "",
        statistics.median(ratios),
        case.busy if busy else case.quiet,
        ci95=(ratios[0], ratios[-1]),
        rounds=len(pairs),
    )
    again = []
    if present:
        rounds = zip(pairs, present, strict=True)
        ratios = sorted(o[1]["seconds"] / e[0]["seconds"] for (o, _), e in rounds)
        again = [
            Result(
                f"{case.name}_again",
                "  time of epoch 2 / time of epoch 1 after `monarch warm`",
                "",
                statistics.median(ratios),
                1.1 if busy else 1.05,
                ci95=(ratios[0], ratios[-1]),
                rounds=len(ratios),
            )
        ]
    lines = [
        first,
        line(
            "plain",
            "  time of epoch 1 without Monarch",
            median(lambda _, p: p[0]["seconds"]),
            None,
            "s",
        ),
        line("second", "  time of epoch 2", median(lambda o, _: o[1]["seconds"]), None, "s"),
        *again,
        line(
            "daemon",
            "  CPU time of the daemon per file, epoch 1",
            median(lambda o, _: o[0]["daemon_s"] / files * 1e6),
            None if busy else case.most_cpu_us,
            "us",
        ),
        line(
            "program",
            "  CPU time of the program per file, epoch 1, minus its CPU time without Monarch",
            median(lambda o, p: (o[0]["program_s"] - p[0]["program_s"]) / files * 1e6),
            None,
            "us",
        ),
        line(
            "start",
            "  CPU time of the daemon until the program starts",
            median(lambda o, _: o[0]["start_s"]),
            None,
            "s",
        ),
    ]
    if case.pages:
        return lines
    return [
        *lines,
        line(
            "bytes",
            "  bytes that the source sends in two epochs / bytes read per epoch",
            median(lambda o, _: o[-1]["source"]["bytes_read"] / case.bytes_read),
            case.most_bytes or (1.02 if busy else 1.01),
        ),
        line(
            "opens",
            "  opens at the source per file, in two epochs together",
            median(lambda o, _: o[-1]["source"]["open"] / files),
            None if case.most_bytes else 1.05 if busy else 1.02,
        ),
        line(
            "metadata",
            "  metadata operations, except opens, that Monarch adds per file"
            + (" that is not read" if case.is_lazy else ""),
            median(lambda o, p: metadata(case, o, p)),
            0.1 if case.is_lazy else 1.1,
        ),
        line(
            "absent",
            "  opens at the source per file, in epoch 2",
            median(lambda o, _: (o[-1]["source"]["open"] - o[0]["source"]["open"]) / files),
            # If the program reads only a part of the dataset, the daemon copies other files during
            # epoch 2, and opens them at the source. So there is no limit in this case.
            None if case.share < 1 else 0.02 if busy else 0.01,
        ),
    ]


@contextmanager
def busy_cores(wanted: bool) -> Iterator[None]:
    """If `wanted` is true, runs one busy process per core inside the `with` block."""
    code = "while True: pass"
    busy = [
        subprocess.Popen([sys.executable, "-c", code])
        for _ in range(len(os.sched_getaffinity(0)) if wanted else 0)
    ]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_epoch.cold", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs for each case")
    parser.add_argument(
        "--case", action="append", help="run only the cases whose name contains this text"
    )
    parser.add_argument(
        "--busy", action="store_true", help="run one busy process per core during the measurements"
    )
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        type=lambda text: (text.partition("=")[0], yaml.safe_load(text.partition("=")[2])),
        metavar="KEY=VALUE",
        help="set a key of Monarch's configuration, to compare with a run without this option",
    )
    parser.add_argument(
        "--keep-pages", action="store_true", help="keep the source's pages in the page cache"
    )
    parser.add_argument("--dir", type=Path, help="where the dataset is made")
    parser.add_argument("--json", type=Path, help="write the JSON here, not to standard output")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    args = parser.parse_args()
    if problem := why_unavailable():
        sys.exit(f"benchmarks.first_epoch.cold: {problem}")
    results: list[Result] = []
    with scratch(args.dir) as place, busy_cores(args.busy):
        reader = build(Path(__file__).with_name("files.c"), place, "-pthread")
        for case in CASES:
            if args.case and not any(part in case.name for part in args.case):
                continue
            cold = Cold(
                case, place, reader, keep_pages=args.keep_pages, settings=dict(args.setting)
            )
            pairs, present = [], []
            for _ in range(args.rounds):
                pairs.append((cold.ours(), cold.plain()))
                if case.fills_all:
                    present.append(cold.present())
            results += compare(case, pairs, present, busy=args.busy)
            shutil.rmtree(cold.backing)
    document = {"benchmark": "first_epoch.cold", "machine": describe_machine(), "busy": args.busy}
    met = report(document, results, args.json)
    return 1 if args.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
