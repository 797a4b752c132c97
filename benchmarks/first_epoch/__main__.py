"""``python -m benchmarks.first_epoch``: the first epoch of a dataset behind a slow source.

Every run has its own daemon and tier. Some runs are paired with a run without the library on the
same source. The kernel does not keep pages of the source between runs. The source counts the
requests. Needs FUSE. The run with a limit on dirty pages needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import Daemon, build, plain_environment, scratch, write_list
from benchmarks.numbers import Result, describe_machine, file_system, report
from monarch_py.demo.slowsource import SlowSource, find_slowsource, why_unavailable

MIB = 1 << 20
BLOCK, SMALL_BLOCK = 256 * 1024, 64 * 1024
VM = Path("/proc/sys/vm")
# The names of the settings for the kernel's two limits on dirty pages. Each limit has two settings:
# in bytes, and as a share of memory. The kernel uses the setting that was written last, and shows
# the other setting as 0.
DIRTY = (("dirty_background_bytes", "dirty_background_ratio"), ("dirty_bytes", "dirty_ratio"))
Run = dict[str, Any]


def make_dataset(root: Path, files: int, size: int) -> list[str]:
    """Writes `files` files of `size` random bytes. Returns the names of the files."""
    root.mkdir()
    content = os.urandom(MIB)
    names = [f"shard-{number:05d}.tar" for number in range(files)]
    for name in names:
        with (root / name).open("xb") as file:
            for at in range(0, size, MIB):
                file.write(content[: min(MIB, size - at)])
    return names


class FirstEpoch:
    """The measurements. Each measurement adds Result objects to `results`."""

    def __init__(self, args: argparse.Namespace, place: Path, slow: SlowSource) -> None:
        self.args, self.place, self.slow = args, place, slow
        self.results: list[Result] = []
        self.curves: dict[str, list[int]] = {}
        self.reader = build(Path(__file__).with_name("reader.c"), place, "-pthread")
        self.bytes = args.mib * MIB
        self.lists: dict[str, Path] = {}
        for kind, files in (("many", args.files), ("four", 4)):
            names = make_dataset(slow.backing / kind, files, self.bytes // files)
            paths = [f"{slow.mountpoint}/{kind}/{name}" for name in names]
            self.lists[kind] = write_list(place / f"{kind}.list", paths)

    def document(self) -> dict[str, Any]:
        return {
            "benchmark": "first_epoch",
            "machine": describe_machine(),
            "files": self.args.files,
            "bytes": self.bytes,
            "source_bytes_per_s": self.args.rate * 1e6,
            "tier_file_system": file_system(self.args.tier or self.place),
            "span_s": 0.05,
            "curves": self.curves,
        }

    # --- runs ---------------------------------------------------------------------------------

    def _read(
        self, how: str, environment: dict[str, str], *, threads: int = 8, kind: str = "many"
    ) -> Run:
        block = SMALL_BLOCK if how == "random" else BLOCK
        argv = [str(self.reader), how, str(self.lists[kind]), str(threads), str(block)]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        run: Run = json.loads(done.stdout)
        if run["failed"] or run["bytes"] != self.bytes:
            raise RuntimeError(f"{how} read {run['bytes']} of {self.bytes} bytes: {done.stderr}")
        return run

    @contextmanager
    def _daemon(self, *, room: float = 2.0, kind: str = "many", **more: Any) -> Iterator[Daemon]:
        tier = Path(tempfile.mkdtemp(prefix="tier-", dir=self.args.tier or self.place))
        settings = {"shared_tpool_size": 16, **more}
        source = self.slow.mountpoint / kind
        try:
            with Daemon(
                self.place, source, tier, int(room * self.bytes) + 8 * MIB, **settings
            ) as daemon:
                daemon.wait_scanned(60)
                yield daemon
        finally:
            shutil.rmtree(tier, ignore_errors=True)

    def _plain(self, how: str, **more: Any) -> Run:
        return self._read(how, plain_environment(), **more)

    def _ours(self, how: str, **more: Any) -> Run:
        """Runs one first epoch with the library, and waits until all files are copied. In the
        returned dictionary, `served` is the number of bytes that the source sent in this time,
        divided by the dataset's size."""
        kind = more.get("kind", "many")
        with self._daemon(kind=kind) as daemon:
            self.slow.reset()
            run = self._read(how, daemon.environment(), **more)
            daemon.wait_present(self.args.files if kind == "many" else 4, 120)
            run["served"] = self.slow.counts()["bytes_read"] / self.bytes
            run["totals"] = daemon.status()["totals"]
        said = {key: run[key] for key in ("seconds", "first_s", "p50_s", "p99_s", "served")}
        print(f"  {how} {more}: {json.dumps(said)}", file=sys.stderr)
        return run

    def _add(self, name: str, what: str, value: float, limit: float | None, unit: str = "") -> None:
        self.results.append(Result(name, what, unit, value, limit))

    # --- measurements ---------------------------------------------------------------------------

    def run(self) -> None:
        self.slow.rate(self.args.rate * 1e6)
        self.slow.latency(read=0.0005, open=0.0005)
        self._each_byte_once()
        self._bandwidth_bound()
        self._stopped_daemon()
        self._too_large()
        self._dirty_pages()
        self.slow.rate(1e9)
        self.slow.latency(read=0.004, open=0.004)
        self._latency_bound()

    def _each_byte_once(self) -> None:
        ways = [
            ("pread", "8 sequential readers, pread", "many", 1.02),
            ("read", "8 sequential readers, read", "many", 1.02),
            ("random", "random 64 KiB preads over 4 files", "four", 1.05),
            ("mmap", "8 sequential readers, mmap", "many", 1.5),
            ("fread", "8 sequential readers, fread", "many", 1.5),
        ]
        for how, what, kind, limit in ways:
            served = [self._ours(how, kind=kind)["served"] for _ in range(self.args.rounds)]
            median = statistics.median(served)
            self._add(
                f"served_{how}", f"{what}: bytes that the source sent / dataset", median, limit
            )

    def _bandwidth_bound(self) -> None:
        best = self.bytes / (self.args.rate * 1e6)
        pairs = [(self._ours("read"), self._plain("read")) for _ in range(self.args.rounds)]
        self.curves = {"under the library": pairs[0][0]["spans"], "direct": pairs[0][1]["spans"]}

        def median(of: str, over: str | None = None) -> float:
            return float(statistics.median(a[of] / (b[over] if over else 1) for a, b in pairs))

        self._add(
            "bandwidth",
            "time of the first epoch / time to send the dataset at the source's rate",
            median("seconds") / best,
            1.05,
        )
        self._add(
            "bandwidth_direct",
            "  time of the first epoch / of an epoch without the library",
            median("seconds", "seconds"),
            None,
        )
        self._add(
            "first_block",
            "time until all 8 readers have 256 KiB / without the library",
            median("first_s", "first_s"),
            1.5,
        )
        for key, words in (("p50_s", "median"), ("p99_s", "99th percentile")):
            with_it = statistics.median(a[key] for a, _ in pairs) * 1e3
            without = statistics.median(b[key] for _, b in pairs) * 1e3
            self._add(
                f"read_{key}", f"time of a read in the first epoch, {words}", with_it, None, "ms"
            )
            self._add(f"read_{key}_direct", "  the same without the library", without, None, "ms")

    def _latency_bound(self) -> None:
        ratios = []
        for _ in range(self.args.rounds):
            ours, plain = self._ours("read", threads=1), self._plain("read", threads=1)
            ratios.append(ours["seconds"] / plain["seconds"])
        self._add(
            "latency",
            "1 reader, latency 4 ms: time of the first epoch / without the library",
            statistics.median(ratios),
            0.5,
        )

    def _stopped_daemon(self) -> None:
        plain = self._plain("read")
        with self._daemon() as daemon:
            stop = threading.Timer(
                plain["seconds"] / 3, daemon.process.send_signal, (signal.SIGSTOP,)
            )
            stop.start()
            try:
                run = self._read("read", daemon.environment())
            finally:
                stop.cancel()
                stop.join()
                daemon.process.send_signal(signal.SIGCONT)
        self._add(
            "stopped_wait",
            "daemon stopped in the middle of an epoch: longest read",
            run["longest_s"],
            2,
            "s",
        )
        self._add(
            "stopped",
            "  time of that epoch / without the library",
            run["seconds"] / plain["seconds"],
            1.1,
        )

    def _too_large(self) -> None:
        with self._daemon(room=0.5) as daemon:
            self._read("read", daemon.environment())
            fits = int(daemon.status()["sources"][0]["present_bytes"])
            self.slow.reset()
            for _ in range(2):
                self._read("read", daemon.environment())
            served = self.slow.counts()["bytes_read"]
        self._add(
            "too_large",
            "tier for half of the dataset, epochs 2-3: source bytes / bytes that do not fit",
            served / (2 * (self.bytes - fits)),
            1.01,
        )

    def _dirty_pages(self) -> None:
        """Compares the times of the first and the second half of an epoch. The limit on dirty pages
        is a quarter of the dataset's size, so the kernel must write pages back during the epoch."""
        if not os.access(VM / "dirty_bytes", os.W_OK):
            print(
                "  no run with a limit on dirty pages: only root can set the limit", file=sys.stderr
            )
            return
        with dirty_limit(self.bytes // 4):
            runs = [self._ours("read") for _ in range(self.args.rounds)]
        ratios = [halves(run["spans"]) for run in runs]
        self._add(
            "dirty",
            "limit on dirty pages: time of an epoch's second half / of its first half",
            statistics.median(ratios),
            1.1,
        )


@contextmanager
def dirty_limit(limit_bytes: int) -> Iterator[None]:
    """Inside the `with` block, limits the machine's dirty pages to `limit_bytes`. The kernel begins
    to write pages back in the background at half of this limit."""
    before = [(name, (VM / name).read_text()) for pair in DIRTY for name in pair]
    try:
        for (name, _), limit in zip(DIRTY, (limit_bytes // 2, limit_bytes), strict=True):
            (VM / name).write_text(str(limit))
        yield
    finally:
        for name, value in before:
            if int(value):
                (VM / name).write_text(value)


def halves(spans: list[int]) -> float:
    """Returns the time for the second half of the bytes, divided by the time for the first half.

    spans : the number of bytes read in each span of 50 ms
    """
    half, seen = sum(spans) / 2, 0
    for number, count in enumerate(spans):
        if seen + count >= half:
            first = number + (half - seen) / count
            return (len(spans) - first) / first
        seen += count
    raise ValueError("nothing was read")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_epoch", description=__doc__)
    parser.add_argument("--files", type=int, default=64, help="files of the dataset")
    parser.add_argument("--mib", type=int, default=1024, help="size of the dataset [MiB]")
    parser.add_argument("--rate", type=float, default=200, help="speed of the source [MB/s]")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each measurement")
    parser.add_argument("--dir", type=Path, help="where the dataset is made")
    parser.add_argument("--tier", type=Path, help="directory of the copies; default: --dir")
    parser.add_argument("--json", type=Path, help="write the JSON here, not to standard output")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    args = parser.parse_args()
    binary, problem = find_slowsource(), why_unavailable()
    if binary is None or problem:
        sys.exit(f"benchmarks.first_epoch: {problem}")
    started = time.monotonic()
    with scratch(args.dir) as place:
        (place / "backing").mkdir()
        (place / "source").mkdir()
        with SlowSource(place / "backing", place / "source", binary=binary) as slow:
            measured = FirstEpoch(args, place, slow)
            measured.run()
    print(f"  {time.monotonic() - started:.0f} s in all", file=sys.stderr)
    met = report(measured.document(), measured.results, args.json)
    return 1 if args.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
