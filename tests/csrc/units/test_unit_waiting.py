"""Tests which mappings of a source's file wait to be replaced by mappings of the copy, and when the
thread that replaces them is started."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import Made

PAGE = mmap.PAGESIZE
READ, WRITE, EXECUTE = mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_EXEC


class Mapping:
    """A mapping of four pages of a file."""

    def __init__(self, lib: Any, session: Made, path: Path) -> None:
        self.lib, self.session, self.is_mapped = lib, session, True
        path.write_bytes(b"x" * 4 * PAGE)
        self._libc = ctypes.CDLL(None)
        self._libc.mmap.restype = ctypes.c_size_t
        self._libc.mmap.argtypes = [*[ctypes.c_size_t] * 2, *[ctypes.c_int] * 3, ctypes.c_size_t]
        with path.open("rb") as file:
            self.at = self._libc.mmap(0, 4 * PAGE, READ, mmap.MAP_PRIVATE, file.fileno(), 0)

    def end(self) -> None:
        if self.is_mapped:
            self._libc.munmap(ctypes.c_size_t(self.at), ctypes.c_size_t(4 * PAGE))
        self.is_mapped = False

    def add(self, n: int = 4 * PAGE, first: int = 0) -> int:
        """Adds a range, as the library's mmap does: `n` bytes from byte `first` of the mapping.
        Returns how many ranges are then waiting for their copies."""
        self.lib.mappings_add(self.session.s, 5, self.at + first, n, first)
        return int(self.lib.table_waiting())

    def forget(self, first: int, n: int) -> int:
        """Makes the library forget a range, as when a program changes the range by munmap or
        mprotect. Returns how many ranges are then waiting for their copies."""
        self.lib.mappings_forget(self.at + first, n)
        return int(self.lib.table_waiting())

    def starts(self) -> int:
        """Returns how often the library has tried to start the thread since the last call. From now
        on, such an attempt succeeds."""
        return int(self.lib.mappings_cannot_start(0))


@pytest.fixture
def mapping(lib: Any, session: Made, tmp_path: Path) -> Iterator[Mapping]:
    lib.mappings_script(1)
    one = Mapping(lib, session, tmp_path / "f")
    yield one
    one.end()
    lib.mappings_helper(0)
    lib.mappings_script(0)


def test_only_a_plain_mapping_for_reading_can_wait(lib: Any, mapping: Mapping) -> None:
    """Other mappings do not wait: they may have private pages, which a replacement would lose, or
    pages that must stay in memory."""
    for flags in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
        assert lib.mappings_can_wait(READ, flags)
        for prot in (0, WRITE, READ | WRITE, READ | EXECUTE):
            assert not lib.mappings_can_wait(prot, flags)
        for name in (b"locked", b"growsdown", b"hugetlb", b"sync"):
            assert not lib.mappings_can_wait(READ, flags | lib.mappings_flag(name))


def test_the_first_mapping_starts_the_thread(mapping: Mapping) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert mapping.add(PAGE) == 1 and mapping.starts() == 1
    assert mapping.add(PAGE, 2 * PAGE) == 2 and mapping.starts() == 0, "the thread already runs"
    mapping.lib.mappings_helper(0)  # the thread has ended
    assert mapping.add(PAGE, PAGE) == 3 and mapping.starts() == 1
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


def test_without_the_thread_no_mapping_waits(mapping: Mapping) -> None:
    """If the thread that replaces mappings cannot be started, no mapping waits. When the next
    mapping is added, the library tries again to start the thread."""
    for _ in range(2):
        mapping.lib.mappings_cannot_start(1)
        assert mapping.add() == 0 and not mapping.lib.mappings_helper(0)
        assert mapping.starts() == 1
    assert mapping.add() == 1 and mapping.starts() == 1


@pytest.mark.parametrize(
    ("first", "n", "left"),
    [(0, 1, 0), (PAGE - 1, 1, 0), (PAGE, 1, 1), (PAGE + 50, 10, 1), (-1, 1, 1), (-1, 2, 0),
     (2 * PAGE, PAGE, 1), (-PAGE, 5 * PAGE, 0), (0, 2**64 - 1, 0), (PAGE, 2**64 - 1, 1)],
)  # fmt: skip
def test_a_change_concerns_whole_pages(mapping: Mapping, first: int, n: int, left: int) -> None:
    """A mapping of 100 bytes waits as one full page. The kernel, too, rounds the range of a change
    to full pages."""
    assert mapping.add(100) == 1
    assert mapping.forget(first, n) == left


def test_while_all_memory_is_locked_nothing_waits(mapping: Mapping) -> None:
    lib = mapping.lib
    assert mapping.add() == 1
    lib.mappings_refuse(1)
    assert lib.table_waiting() == 0 and not lib.mappings_can_wait(READ, mmap.MAP_PRIVATE)
    assert mapping.add() == 0, "the memory was locked between mmap and this call"
    lib.mappings_refuse(0)
    assert lib.mappings_can_wait(READ, mmap.MAP_PRIVATE) and mapping.add() == 1


def test_a_child_of_vfork_adds_nothing(mapping: Mapping) -> None:
    """The child shares its parent's memory, but a thread that the child starts would end with the
    child. So the child adds no mapping to the table."""
    assert mapping.add(PAGE) == 1
    mapping.lib.mappings_belong(os.getppid())
    assert mapping.add(PAGE, 2 * PAGE) == 1
    mapping.lib.mappings_belong(os.getpid())
    assert mapping.add(PAGE, 2 * PAGE) == 2


def test_only_mappings_of_files_wait(mapping: Mapping) -> None:
    """If another thread has unmapped the file before the library adds the mapping, the library adds
    nothing, and does not start the thread that replaces mappings."""
    mapping.end()
    assert mapping.add() == 0 and mapping.starts() == 0


def test_a_forked_child_replaces_the_mappings_that_it_has_inherited(mapping: Mapping) -> None:
    lib = mapping.lib
    lib.mappings_after_fork()
    assert mapping.starts() == 0, "no mapping was added"
    mapping.add()
    mapping.starts()
    lib.mappings_wipe()
    lib.mappings_after_fork()
    assert (lib.table_waiting(), mapping.starts()) == (1, 1)
    assert mapping.forget(0, 4 * PAGE) == 0
    lib.mappings_wipe()
    lib.mappings_after_fork()
    assert mapping.starts() == 0


def test_before_a_call_that_needs_one_thread_all_mappings_are_forgotten(mapping: Mapping) -> None:
    """No mapping waits any more, and the thread that replaces mappings is woken, so that it
    ends."""
    lib = mapping.lib
    lib.mappings_end()
    mapping.add()
    lib.mappings_helper(0)
    bell = lib.mappings_bell()
    lib.mappings_end()
    assert lib.table_waiting() == 0 and lib.mappings_bell() == bell + 1
