"""Tests how a process reads /proc. Also tests how a process that cannot map a session's segments
tells the daemon of changes."""

from __future__ import annotations

import ctypes
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place, control, open_descriptors
from support.session import wait_until

from monarch_py.native import SessionState
from monarch_py.native import ffi as native

DEV, INO = 77, 1234
UNKNOWN = 2**64 - 1  # any file may have changed

# --- /proc ----------------------------------------------------------------------------------------


def test_every_descriptor_of_the_table_is_listed(lib: Any) -> None:
    """All descriptors are listed, even if there are so many that the kernel returns the list in
    several pieces. The descriptor by which the library reads the list is left out."""
    out = ffi.new("int[]", 4000)
    made = [os.dup(0) for _ in range(150)]
    try:
        n = lib.proc_descriptors(out, 4000)
        assert {str(out[i]) for i in range(n)} == open_descriptors()
        assert len(open_descriptors()) == n
    finally:
        for fd in made:
            os.close(fd)


def test_a_list_without_the_descriptor_that_reads_it_is_of_another_table(
    lib: Any, tmp_path: Path
) -> None:
    out = ffi.new("int[]", 4000)
    names = [str(n) for n in range(1000, 1300)]
    for name in (*names, ".hidden"):
        (tmp_path / name).touch()
    assert lib.proc_numbers(bytes(tmp_path), 0, out, 4000) == len(names)
    assert sorted(out[0 : len(names)]) == [int(name) for name in names]
    assert lib.proc_numbers(bytes(tmp_path), 1, out, 4000) == -1
    own = os.dup(0)  # the descriptor by which the library reads the list will have this number
    os.close(own)
    (tmp_path / str(own)).touch()
    assert lib.proc_numbers(bytes(tmp_path), 1, out, 4000) == len(names)
    assert own not in out[0 : len(names)]
    assert lib.proc_numbers(bytes(tmp_path), 0, out, 4000) == len(names) + 1
    assert lib.proc_numbers(bytes(tmp_path / "none"), 0, out, 4000) == -1


def test_a_thread_with_descriptors_of_its_own_is_noticed(lib: Any) -> None:
    """The library uses the system call kcmp to find out whether all threads share one table of
    descriptors. On kernels that lack kcmp, the library assumes that all threads share one table."""
    assert lib.proc_has_one_table() == 1
    begins, ends = threading.Event(), threading.Event()
    result: list[int] = []
    own: list[int] = []

    def leave() -> None:
        result.append(ctypes.CDLL(None).unshare(0x400))  # CLONE_FILES
        os.dup2(0, 950)
        out = ffi.new("int[]", 4000)
        own.extend(out[0 : lib.proc_descriptors(out, 4000)])
        begins.set()
        ends.wait(60)

    thread = threading.Thread(target=leave)
    thread.start()
    assert begins.wait(60) and result == [0]
    assert 950 in own and not is_open(950), "each thread lists its own"
    try:
        assert lib.proc_has_one_table() == (not lib.proc_can_compare())
    finally:
        ends.set()
        thread.join()


def test_an_offset_is_what_lseek_says(lib: Any, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    fd = os.open(path, os.O_RDONLY)
    for at in (0, 1, 9, 10, 12345, 2**40 + 7):
        os.lseek(fd, at, os.SEEK_SET)
        assert lib.proc_offset(fd) == at
    os.close(fd)
    assert lib.proc_offset(fd) == 0


def test_the_name_of_a_descriptor_is_its_path(lib: Any, tmp_path: Path) -> None:
    """A pipe has no path, so the library returns no name for it."""
    out = ffi.new("char[]", 4096)
    deep = tmp_path / ("d" * 200) / ("e" * 200)
    deep.mkdir(parents=True)
    for path in (Path("/"), tmp_path, deep):
        fd = os.open(path, os.O_RDONLY)
        assert lib.proc_name(fd, out) == 1
        assert ffi.string(out) == bytes(path)
        os.close(fd)
    assert lib.proc_name(fd, out) == 0
    assert lib.proc_name(-1, out) == 0
    ends = os.pipe()
    assert lib.proc_name(ends[0], out) == 0
    for fd in ends:
        os.close(fd)


@pytest.mark.parametrize(
    ("line", "is_in_call"),
    [("8 0x5 0x1000 0x1 0x1234 0x0 0x0 0x7ff 0x7f3", 1), ("8 0x5 0x0 0x0 0x1234 0x0", 1),
     ("8 0x5 0x1000 0x1 0x12345 0x0", 0), ("8 0x5 0x1000 0x1 0x123", 0),
     ("8 0x5 0x1234 0x1 0x0", 0), ("8 0x5 0x1 0x1234 0x0 0x0", 0),
     ("8 0x5 0x1 0x1 0x1 0x1234 0x0", 0), ("8 0x55 0x1000 0x1 0x1234 0x0", 0),
     ("80 0x5 0x1000 0x1 0x1234 0x0", 0), ("running", 0), ("", 0), ("8 0x5 ", 0),
     ("8 0x5 0x1000", 0), ("8 0x5 0x1000 0x1", 0)],
)  # fmt: skip
def test_a_system_call_is_known_by_its_number_and_two_arguments(
    lib: Any, line: str, is_in_call: int
) -> None:
    assert lib.proc_is_in_call(line.encode(), b"8 0x5 ", b"0x1234 ") == is_in_call


def test_a_thread_that_a_signal_would_wake_does_not_count(lib: Any) -> None:
    """A thread counts as asleep in a system call only if no signal can end the call (state D in
    /proc). A signal can end the read here, so the thread has another state. A thread that a tracer
    or a filter has stopped before the call has another state, too."""
    ends = os.pipe()
    thread = threading.Thread(target=os.read, args=(ends[0], 1))
    thread.start()
    read = 0 if os.uname().machine == "x86_64" else 63
    try:
        assert not lib.proc_sleeps_in(read, ends[0], 0)
    finally:
        os.write(ends[1], b"x")
        thread.join()
        for fd in ends:
            os.close(fd)


def test_a_thread_that_only_the_calls_end_wakes_is_found(lib: Any) -> None:
    """A thread in a system call is found by the call's number and two of the call's arguments."""
    vfork, marked = 0x4000 | 17, 0x123456  # CLONE_VFORK | SIGCHLD
    ends = os.pipe()
    children = []
    thread = threading.Thread(
        target=lambda: children.append(lib.proc_wait_deeply(ends[0], vfork, marked))
    )
    thread.start()
    try:
        call = lib.proc_clone()
        wait_until(lambda: lib.proc_sleeps_in(call, vfork, marked), what="the thread's wait")
        assert not lib.proc_sleeps_in(call, vfork, marked + 1)
        assert not lib.proc_sleeps_in(call, vfork + 1, marked)
        assert not lib.proc_sleeps_in(call + 1, vfork, marked)
    finally:
        os.write(ends[1], b"x")
        thread.join()
        for fd in ends:
            os.close(fd)
    assert os.waitpid(children[0], 0)[1] == 0
    assert not lib.proc_sleeps_in(call, vfork, marked)


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 2049, 4096, 5000])
def test_a_file_is_read_in_pieces(lib: Any, tmp_path: Path, size: int) -> None:
    content = bytes(i % 250 + 1 for i in range(size))
    (tmp_path / "f").write_bytes(content)
    out = ffi.new("char[]", b"z" * 6000)
    before = open_descriptors()
    assert lib.proc_characters(bytes(tmp_path / "f"), out) == size
    assert bytes(ffi.buffer(out, size)) == content
    for room in (1, 2, size, size + 1, size + 2):
        if room:
            lib.proc_text(bytes(tmp_path / "f"), out, room)
            assert ffi.string(out) == content[: room - 1]
    lib.proc_text(bytes(tmp_path / "none"), out, 9)
    assert ffi.string(out) == b""
    assert lib.proc_characters(bytes(tmp_path / "none"), out) == -1
    assert open_descriptors() <= before


# --- changes that are told without a mapped session -----------------------------------------------


class Daemon:
    """The segments of a daemon with three sources."""

    def __init__(self, lib: Any, place: Place) -> None:
        self.lib, self.place = lib, place
        self.control = control(5, 6, DEV)
        place.put("clients", b"")
        os.truncate(place.directory / "clients", native.sizeof("struct monarch_clients"))
        place.put("changes", bytes(24))
        self.write()

    def write(self, mode: int = 0o600) -> None:
        self.place.put("control", self.control, mode)

    def told(self) -> int:
        at = native.offsetof("struct monarch_clients", "told")
        with (self.place.directory / "clients").open("rb") as file:
            file.seek(at)
            return int.from_bytes(file.read(8), "little")

    def records(self) -> list[tuple[int, ...]]:
        data = (self.place.directory / "changes").read_bytes()[24:]
        words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
        return [tuple(words[i : i + 3]) for i in range(0, len(words), 3)]

    def tell(self, dev: int = DEV, is_tree: int = 0) -> bool:
        before = open_descriptors()
        done = bool(self.lib.tell_change(dev, INO, is_tree))
        assert open_descriptors() <= before
        return done


@pytest.fixture
def daemon(lib: Any, place: Place) -> Daemon:
    return Daemon(lib, place)


def test_a_change_is_written_down_before_it_is_announced(daemon: Daemon) -> None:
    """The daemon learns of each change by a mark that differs from all earlier marks. So it also
    notices a change that is recorded while it reads earlier changes."""
    marks = []
    for i, is_tree in enumerate((0, 1, 0)):
        assert daemon.tell(is_tree=is_tree)
        assert daemon.records()[i] == (DEV, INO, is_tree)
        marks.append(daemon.told())
    assert daemon.tell(5) and daemon.records()[3] == (5, INO, 0)
    assert len({*marks, daemon.told()}) == 4
    assert not any(mark % 2 or mark in (0, UNKNOWN) for mark in marks)


@pytest.mark.parametrize(
    "case",
    ["magic", "version", "state", "device", "sources", "short", "shared", "gone", "clients_short",
     "clients_shared", "clients_gone", "damaged"],
)  # fmt: skip
def test_nothing_is_told_to_what_is_no_daemon_of_the_file(daemon: Daemon, case: str) -> None:
    segments, at = daemon.place.directory, daemon.control
    dev = DEV
    if case == "magic":
        at.magic += 1
    elif case == "version":
        at.version += 1
    elif case == "state":
        at.state = SessionState.CLOSED
    elif case == "device":
        dev = DEV + 1
    elif case == "sources":
        at.sources = 2
    elif case == "damaged":
        at.sources, dev = 2**32 - 1, DEV + 1
    daemon.write(0o640 if case == "shared" else 0o600)
    if case == "short":
        os.truncate(segments / "control", native.sizeof("struct monarch_control") - 1)
    elif case == "clients_short":
        os.truncate(segments / "clients", native.sizeof("struct monarch_clients") - 1)
    elif case == "clients_shared":
        (segments / "clients").chmod(0o604)
    elif case.endswith("gone"):
        (segments / ("clients" if case == "clients_gone" else "control")).unlink()
    assert not daemon.tell(dev)
    assert daemon.records() == []
    if (segments / "clients").exists() and case != "clients_short":
        assert daemon.told() == 0


@pytest.mark.parametrize("case", ["gone", "shared", "short", "full", "last"])
def test_a_change_that_cannot_be_written_down_may_be_of_any_file(daemon: Daemon, case: str) -> None:
    """If a change cannot be written to the file `changes`, all files count as changed. Nothing is
    written to the file once it has reached its size limit."""
    path, most = daemon.place.directory / "changes", daemon.lib.tell_most()
    if case == "gone":
        path.unlink()
    elif case == "shared":
        path.chmod(0o606)
    else:
        os.truncate(path, {"short": 23, "full": most, "last": most - 1}[case])
    size = path.stat().st_size if case != "gone" else 0
    assert daemon.tell()
    assert (daemon.told() == UNKNOWN) == (case != "last")
    if case != "gone":
        assert path.stat().st_size == size + 24 * (case == "last")


@contextmanager
def free_descriptors(n: int) -> Iterator[None]:
    """Lowers the limit on descriptors, so that this process can open only `n` more."""
    free: list[int] = []
    while len(free) < n + 1:
        fd = os.dup(0)
        free.append(fd)
    for fd in free:
        os.close(fd)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[n], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("free", [0, 1, 2])
def test_a_change_is_told_once_also_without_free_descriptors(daemon: Daemon, free: int) -> None:
    """To record a change, a process needs two free descriptors at a time. If it lacks them, it
    still records the change, but uses another table of descriptors to do so."""
    with free_descriptors(free):
        done = daemon.lib.tell_change(DEV, INO, 1)
    assert done and daemon.records() == [(DEV, INO, 1)]
    assert daemon.told() not in (0, UNKNOWN)
