"""A source is fast if reading a small file from it takes less time than waiting for the file's
copy. Examples of fast sources are local disks, and sources whose files are in the page cache."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.epoch import content, make_files
from support.files import Files, digest
from support.session import Session, wait_until

from monarch_py.arrays import pointer
from monarch_py.daemon.copies import engine as engine_module
from monarch_py.daemon.copies import idle
from monarch_py.daemon.copies.concurrency import Counted
from monarch_py.daemon.copies.idle import IdleCores
from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc.session import Segment
from monarch_py.native import ffi, lib
from monarch_py.storage import memory

Factory = Callable[..., Session]
SIZE, MANY = 20_000, 120
READ = """
import hashlib, sys
for path in sys.argv[1:]:
    print(hashlib.sha256(open(path, "rb").read()).hexdigest())
"""
SPIN = "import sys; print(flush=True)\nwhile True: pass"


def fast_sources(session: Session) -> int:
    segment = Segment.open(session.paths.control, writable=False)
    return int(segment.as_struct("struct monarch_control").fast_sources)


def read(session: Session, root: Path, *seeds: int) -> list[str]:
    said: list[str] = session.python(READ, *(root / str(seed) for seed in seeds)).split()
    return said


def right(*seeds: int) -> list[str]:
    return [digest(content(seed, SIZE)) for seed in seeds]


def test_a_reader_does_not_wait_where_the_source_is_fast(
    session_factory: Factory, tmp_path: Path
) -> None:
    root = tmp_path / "source"
    make_files(root, MANY, SIZE)
    session = session_factory(root, prefetch="on_demand").start()
    session.wait_scanned()
    assert fast_sources(session) == 0, "a source without measurements must not count as fast"
    copied = range(1, MANY - 3)
    assert read(session, root, *copied) == right(*copied)
    wait_until(lambda: fast_sources(session) == 1, what="a fast source")
    session.wait_idle()
    assert session.daemon is not None
    before = session.totals()
    session.daemon.send_signal(signal.SIGSTOP)
    try:
        assert read(session, root, MANY - 2, MANY - 1) == right(MANY - 2, MANY - 1)
    finally:
        session.daemon.send_signal(signal.SIGCONT)
    after = session.totals()
    assert after["waits"] == before["waits"]
    assert after["fallbacks"] == before["fallbacks"]
    assert after["source_bytes_read_by_programs"] == before["source_bytes_read_by_programs"] + (
        2 * SIZE
    )
    # No reader waited for copies of the two files, but the library has marked the files as wanted.
    # So they get copies.
    wait_until(lambda: session.status()["sources"][0]["present"] == MANY - 2, what="their copies")


def test_what_most_of_the_last_files_took_decides() -> None:
    fast, slow, many = 200_000, 400_000, 60
    took = np.array([slow, *[fast] * many, *[slow] * many, *[fast, slow, slow] * many], np.uint64)
    found = np.zeros(len(took), np.uint8)
    lib.monarch_fast_after(len(took), pointer(took), pointer(found))
    changes = np.flatnonzero(np.diff(found)) + 1
    assert found[0] == 0
    assert len(changes) == 2
    becomes, ends = changes.tolist()
    assert 15 <= becomes <= 30, "a few fast opens must make the source fast"
    assert many + 15 <= ends <= many + 35, "a few slow opens must make the source slow"


def test_a_slow_source_is_waited_for(
    session_factory: Factory, slow_factory: Callable[..., SlowSource]
) -> None:
    slow = slow_factory()
    make_files(slow.backing, MANY, SIZE)
    session = session_factory(slow.mountpoint, prefetch="on_demand", handover_size=0).start()
    session.wait_scanned()
    slow.latency(open=0.001)
    assert read(session, slow.mountpoint, *range(1, MANY + 1)) == right(*range(1, MANY + 1))
    assert fast_sources(session) == 0
    assert session.totals()["waits"] > 0


@contextmanager
def busy_cores() -> Iterator[None]:
    argv = [sys.executable, "-c", SPIN]
    spinning = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in os.sched_getaffinity(0)]
    try:
        for process in spinning:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in spinning:
            process.kill()
            process.communicate()


def test_busy_cores_are_not_idle() -> None:
    cores = IdleCores()
    with busy_cores():
        cores.take()
        began = time.process_time(), time.monotonic()
        wait_until(lambda: time.monotonic() - began[1] > 0.3, what="a while")
        assert cores.take() <= 0.25 * len(os.sched_getaffinity(0))


class Cores(IdleCores):
    """Reports `idle` cores as idle."""

    idle = 0.0

    def take(self) -> float:
        return self.idle


@pytest.fixture
def engine() -> engine_module.Engine:
    """An engine with two sources and without threads. It has only the attributes that these tests
    need."""
    control = ffi.new("struct monarch_control *")
    control.sources = 2

    class Shared:
        def __init__(self) -> None:
            self.control = control

    class Reads:
        most = 64

    made = engine_module.Engine.__new__(engine_module.Engine)
    made._shared, made._reads = Shared(), Reads()  # type: ignore[assignment]
    made._idle, made._spare, made._opened, made._shares = None, 1, (0, 0.0), False
    return made


def test_sources_are_fast_by_fills_and_before_by_opens(engine: engine_module.Engine) -> None:
    def are_fast(files: int, opens: int, mean_s: float) -> bool:
        return engine._are_fast(Counted(0, files, opens, opens * mean_s))

    assert not are_fast(0, 0, 0.0), "a source without measurements must not count as fast"
    assert not are_fast(0, 15, 5e-6), "so few opens must not make the source fast"
    assert are_fast(0, 16, 5e-6)
    assert not are_fast(0, 16, 40e-6), (
        "a source with the latency of a server must not count as fast"
    )
    assert not are_fast(32, 1000, 5e-6), (
        "the source must not count as fast if fills show that it is slow"
    )
    engine._shared.control.fast_sources = 1
    assert not are_fast(32, 1000, 5e-6), (
        "if only one source is fast, the two together must not count as fast"
    )
    engine._shared.control.fast_sources = 3
    assert are_fast(32, 1000, 40e-6)


def test_fills_wait_for_an_idle_core_where_the_source_is_fast(
    engine: engine_module.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "IdleCores", Cores)
    monkeypatch.setattr(idle, "LOOK_S", 0.0)
    programs = Counted()  # at first, programs open nothing at the source

    def width(now_s: float, *, is_fast: bool) -> int:
        engine._shared.control.fast_sources = 3 if is_fast else 0
        so_far = Counted(0, 1000, programs.opens, programs.open_s)
        engine._spare = engine._spare_width(now_s, so_far)
        return engine._spare

    assert width(0.0, is_fast=False) == 64
    assert not engine.stands_back
    assert width(1.0, is_fast=True) == 1, "only one fill may run before the idle cores are measured"
    assert width(2.0, is_fast=True) == 1, "only one fill may run while all cores are busy"
    assert engine.stands_back
    programs = Counted(opens=1000, open_s=1000 * 2e-6)
    assert width(3.5, is_fast=True) == 0, "no fill may run while programs measure the source"
    assert width(3.6, is_fast=True) == 1, "a fill must run when programs open nothing"
    programs = Counted(opens=1016, open_s=0.002 + 16 * 100e-6)
    assert width(3.7, is_fast=True) == 1, "a fill must run if some opens are slow"
    programs = Counted(opens=2000, open_s=programs.open_s + 984 * 2e-6)
    assert width(4.05, is_fast=True) == 1, (
        "a fill must run now and then, although all opens are fast"
    )
    programs = Counted(opens=3000, open_s=programs.open_s + 1000 * 2e-6)
    engine._shares = True
    assert width(4.5, is_fast=True) == 1, "a fill must run if other nodes may wait for it"
    monkeypatch.setattr(Cores, "idle", idle.IDLE_CORES)
    assert width(6.0, is_fast=True) == 64
    assert not engine.stands_back


def test_buffers_take_little_of_what_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reads:
        least = 4

    engine = engine_module.Engine.__new__(engine_module.Engine)
    engine._reads = Reads()  # type: ignore[assignment]
    for left_mib, width in ((70, 4), (160, 10), (1024, 64), (100_000, 6250)):
        monkeypatch.setattr(memory, "available_bytes", lambda mib=left_mib: mib << 20)
        engine._memory_room = memory.MemoryRoom()
        assert engine._affordable_width() == width


HOLD = """
import os, sys
first, *late = sys.argv[1:]
for name in sorted(os.listdir(first)):
    if os.path.join(first, name) not in late:
        with open(os.path.join(first, name), "rb", buffering=0) as file:
            file.readall()
opened = [os.open(path, os.O_RDONLY) for path in late]
print(len(opened), flush=True)
sys.stdin.readline()
for fd in opened:
    os.pread(fd, 1 << 20, 0)
"""
EARLY, LATE = 200, 200


def test_descriptors_of_a_source_at_hand_are_left_alone(
    session_factory: Factory, tmp_path: Path
) -> None:
    """A program opens files before they have copies, and reads them after the copies are made. If
    the source is fast, most of these reads still come from the source: the library follows only one
    descriptor in 256, because following a descriptor costs more than reading the file."""
    root = tmp_path / "source"
    make_files(root, EARLY + LATE, SIZE)
    session = session_factory(root, prefetch="on_demand", handover_size=0).start()
    session.wait_scanned()
    late = [str(root / str(seed)) for seed in range(1, LATE + 1)]
    argv = [sys.executable, "-I", "-S", "-c", HOLD, str(root), *late]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, env=session.env(), **pipes) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == f"{LATE}\n"
        wait_until(
            lambda: session.status()["sources"][0]["present"] == EARLY + LATE, what="all copies"
        )
        before = session.totals()["promotions"]
        program.communicate("\n", timeout=30)
    assert program.returncode == 0
    assert session.totals()["promotions"] - before <= LATE * 3 // 4


# Runs only with --long. The two tests of idle cores always run, and cover this case.
@pytest.mark.long
def test_who_fills_beside_busy_programs_rests(session_factory: Factory, tmp_path: Path) -> None:
    """Fills from a fast source leave the cores to busy programs. If no core is idle, the daemon
    uses only a small part of one core."""
    root, many = tmp_path / "source", 20_000
    make_files(root, many, 4)
    session = session_factory(root, prefetch="eager")
    with busy_cores():
        session.start()
        session.wait_scanned()
        wait_until(lambda: fast_sources(session) == 1, what="a fast source")
        assert session.daemon is not None
        daemon = psutil.Process(session.daemon.pid)

        def used_s() -> float:
            return float(sum(daemon.cpu_times()[:2]))

        present = session.status()["sources"][0]["present"]
        began_s, used = time.monotonic(), used_s()
        wait_until(
            lambda: session.status()["sources"][0]["present"] >= min(many, present + 1000),
            every=0.2,
            what="a thousand more",
        )
        assert session.status()["sources"][0]["present"] < many
        assert used_s() - used <= 0.35 * (time.monotonic() - began_s)


def test_sizes_of_files_without_an_entry_are_estimated(
    session_factory: Factory, tmp_path: Path
) -> None:
    """The library estimates the sizes of files that are not in the catalog yet. The program opens
    images and labels alternately. So the estimate would be wrong if the library considered only
    the images or only the labels."""
    source, pairs, image, label = Files(tmp_path / "source"), 100, 20_000, 100
    for i in range(pairs):
        source.add(f"{i:03d}.jpg", image)
        source.add(f"{i:03d}.txt", label)
    session = session_factory(source.root, prefetch="none", scan_rate=10, scan_threads=1).start()
    opens = read_bytes = 0

    def is_estimated() -> bool:
        """Returns whether the library has estimated the sizes of some files. If the page cache
        seems slow, for example because other processes use the processors, the library asks the
        kernel for the size of each file instead."""
        nonlocal opens, read_bytes
        session.python(READ, *sorted(source.root.iterdir()))
        opens, read_bytes = opens + 2 * pairs, read_bytes + pairs * (image + label)
        return bool(session.totals()["bytes_from_source"] != read_bytes)

    wait_until(is_estimated, what="estimates")
    totals = session.totals()
    assert not session.status()["scanned"]
    assert (totals["opens"], totals["misses"]) == (opens, opens)
    assert totals["bytes_from_source"] == pytest.approx(read_bytes, rel=0.4)
    assert totals["source_bytes_read_by_programs"] == pytest.approx(read_bytes, rel=0.4)


@pytest.mark.parametrize(
    ("settings", "meets_all"),
    [
        ({"prefetch": "auto"}, 1),
        ({"prefetch": "on_demand"}, 0),
        ({"prefetch": "auto", "scan": "lazy"}, 0),
    ],
)
def test_clients_tell_of_all_files_that_are_met_in_no_other_way(
    session_factory: Factory, tmp_path: Path, settings: dict[str, Any], meets_all: int
) -> None:
    root = tmp_path / "source"
    make_files(root, 30, SIZE)
    session = session_factory(root, scan_rate=10, scan_threads=1, **settings).start()
    segment = Segment.open(session.paths.control, writable=False)
    control = segment.as_struct("struct monarch_control")
    seen = set()

    def is_scanned() -> bool:
        seen.add(int(control.scan_meets_all))
        status = session.status()
        return bool(status["scanned"] and status["catalog_entries"] > 1)

    if "scan" in settings:
        read(session, root, *range(1, 9))
    wait_until(is_scanned, what="a scan")
    assert seen - {0} == ({1} if meets_all else set())
    wait_until(lambda: not control.scan_meets_all, what="the end of the scan")
