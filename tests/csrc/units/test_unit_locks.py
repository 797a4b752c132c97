"""Tests that the library closes its own descriptors without losing the process's locks. The kernel
drops all POSIX locks that a process has on a file when the process closes any descriptor of that
file."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import is_open, open_descriptors

READ, WRITE = fcntl.F_RDLCK, fcntl.F_WRLCK
Lock = tuple[int, int, int]  # type, start and length; length 0: up to the end of the file
LOCKS: list[Lock] = [(READ, 0, 10), (WRITE, 20, 5), (READ, 100, 2**40), (WRITE, 2**41, 0)]
OTHERS: list[Lock] = [(READ, 1000, 1), (WRITE, 1, 7)]


class Files:
    """The files f and g, with the descriptors self.f and self.g, through which the test takes locks
    as a program does. `open` makes a further descriptor of f, for the program or for the library.
    self.watcher is a descriptor of f that shows whether f is locked."""

    def __init__(self, lib: Any, directory: Path) -> None:
        self.lib, self.path = lib, directory / "f"
        self.made: list[int] = []
        self.f, self.g = self._open(self.path, os.O_RDWR), self._open(directory / "g", os.O_RDWR)
        self.watcher = self.open(os.O_RDWR)
        lib.locked_note(self.f)
        lib.locked_note(self.g)

    def _open(self, path: Path, flags: int) -> int:
        fd = os.open(path, flags | os.O_CREAT, 0o600)
        self.made.append(fd)
        return fd

    def open(self, flags: int = os.O_RDONLY) -> int:
        return self._open(self.path, flags)

    def lock(self, fd: int, *locks: Lock) -> None:
        for kind, start, n in locks:
            fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhqqi", kind, os.SEEK_SET, start, n, 0))

    def locks(self, *fds: int) -> list[Lock]:
        """Returns the locks that were taken through the descriptors."""
        out = ffi.new("int64_t[]", 3 * 128)
        found: list[Lock] = []
        for fd in fds:
            n = self.lib.locked_ranges(fd, out)
            found += [(out[3 * i], out[3 * i + 1], out[3 * i + 2]) for i in range(n)]
        return sorted(found, key=lambda one: one[1])

    def close(self, fd: int, kept: int = -1) -> None:
        """Closes the descriptor as the library closes its own descriptors. kept: another descriptor
        of the file, which stays open, or -1."""
        self.lib.locked_close(fd, kept, self.watcher)
        assert not is_open(fd)


@pytest.fixture
def files(lib: Any, tmp_path: Path) -> Iterator[Files]:
    lib.locked_forget()
    one = Files(lib, tmp_path)
    yield one
    for fd in one.made:
        if is_open(fd):
            os.close(fd)
    lib.locked_forget()


@pytest.mark.parametrize("has_kept", [False, True])
def test_each_file_keeps_its_own_locks(files: Files, has_kept: bool) -> None:
    """If the library is given another descriptor of the file, which stays open (`kept`), the read
    locks may move to that descriptor. Locks on other files do not change."""
    files.lock(files.f, *LOCKS)
    files.lock(files.g, *OTHERS)
    kept = files.open() if has_kept else -1
    before, mask = open_descriptors(), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    fd = files.open()
    files.close(fd, kept)
    assert files.locks(files.f, *[kept] * has_kept) == LOCKS
    assert files.locks(files.g) == sorted(OTHERS, key=lambda one: one[1])
    assert open_descriptors() == before
    assert os.fsencode(files.path) not in Path("/proc/self/maps").read_bytes()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


def test_read_locks_are_in_force_all_the_time(files: Files) -> None:
    """Read locks stay in force while the library closes a descriptor. During the close, the
    thread's signals are blocked, and other threads see that a closing is under way. A write lock,
    by contrast, is dropped for a moment."""
    files.lock(files.f, (READ, 0, 1))
    files.close(files.open())
    assert files.lib.locked_moments() >= 2
    assert files.lib.locked_free_moments() == files.lib.locked_open_to_signals() == 0
    assert files.lib.locked_unannounced() == 0
    files.lock(files.f, (WRITE, 0, 1))
    files.close(files.open())
    assert files.lib.locked_free_moments() and files.locks(files.f) == [(WRITE, 0, 1)]


def test_locks_that_were_taken_through_several_descriptors_are_kept(files: Files) -> None:
    """After the close, each write lock is taken again through the same descriptor as before. If the
    library is given a descriptor that stays open, that descriptor gets the read locks."""
    second, third = files.open(os.O_RDWR), files.open()
    files.lock(files.f, (WRITE, 0, 5))
    files.lock(second, (WRITE, 10, 5))
    files.lock(third, (READ, 20, 5))
    files.close(files.open())
    assert [files.locks(fd) for fd in (files.f, second, third)] == [
        [(WRITE, 0, 5)], [(WRITE, 10, 5)], [(READ, 20, 5)]]  # fmt: skip
    kept = files.open()
    files.close(files.open(), kept)
    assert [files.locks(fd) for fd in (files.f, second, third, kept)] == [
        [(WRITE, 0, 5)], [(WRITE, 10, 5)], [], [(READ, 20, 5)]]  # fmt: skip


def test_up_to_128_locked_ranges_are_kept(files: Files) -> None:
    """If a process has locked more than 128 ranges of a file, it keeps the locks on 128 of them and
    loses the others. Nothing else goes wrong."""
    ranges = [(READ, 2 * i, 1) for i in range(128)]
    files.lock(files.f, *ranges)
    files.close(files.open())
    assert files.locks(files.f) == ranges
    files.lock(files.f, *[(READ, 2 * i, 1) for i in range(128, 140)])
    files.close(files.open())
    assert len(files.locks(files.f)) == 128


def test_a_file_without_locks_is_only_closed(files: Files) -> None:
    before = open_descriptors()
    files.close(files.open())
    assert open_descriptors() == before and files.lib.locked_moments() == 1
    files.lib.locked_forget()
    files.lock(files.f, (READ, 0, 1))
    files.close(files.open())
    assert files.lib.locked_moments() == 1, "the library did not know of the lock"
    before = open_descriptors()
    files.lib.locked_close(999, -1, -1)
    assert open_descriptors() == before


def test_few_other_files_are_taken_for_locked_ones(lib: Any) -> None:
    """The library always recognizes a file on which it has noted locks. It mistakes only a few
    other files for such a file."""
    lib.locked_forget()
    known = [(dev, 1000 + ino) for dev in (1, 2**40) for ino in range(30)]
    for one in known:
        lib.locked_note_file(*one)
    assert all(lib.locked_has(*one) for one in known)
    others = [(dev, ino) for dev in (1, 2, 2**40) for ino in range(2000, 3000)]
    assert sum(lib.locked_has(*one) for one in others) < 30
    lib.locked_forget()
    assert not any(lib.locked_has(*one) for one in known)


def test_closings_are_counted_for_each_process(lib: Any) -> None:
    """A forked child has a copy of its parent's count. The child ignores this count, because no
    thread of the child ends the parent's closings."""
    lib.locked_under_way(0, 0, 0)
    assert [lib.locked_count(more) for more in (1, 1, 0, 1, 0, 0)] == [1, 2, 1, 2, 1, 0]
    assert lib.locked_count(0) == 0
    lib.locked_under_way(os.getppid(), 3, 0)
    assert [lib.locked_count(more) for more in (0, 1, 0, 0)] == [0, 1, 0, 0]


def test_a_lock_call_waits_for_closings(lib: Any) -> None:
    """A lock call waits until no closing is under way, but for at most 5 s. It also notices a
    closing that begins during the call."""
    closings = ffi.new("uint32_t *")
    lib.locked_under_way(0, 0, 0)
    assert lib.locked_await(closings) == 0
    assert not lib.locked_has_closed_since(closings[0])
    lib.locked_count(1)
    assert lib.locked_has_closed_since(closings[0])
    lib.locked_under_way(0, 1, 3)
    assert lib.locked_await(closings) == 3
    assert not lib.locked_has_closed_since(closings[0])
    lib.locked_under_way(0, 2, 3)
    assert lib.locked_await(closings) in (-6, -5)
    lib.locked_under_way(os.getppid(), 1, 0)
    assert lib.locked_await(closings) == 0
    lib.locked_under_way(0, 0, 0)
