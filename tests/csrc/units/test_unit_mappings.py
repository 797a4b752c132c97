"""Tests the table of mappings that wait for their copies. The tests compare the table with a model,
a dictionary of pages."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csrc.units.loading import ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

PAGE = 4096
PAGES = 24
FORGET = -1
FREE, WAITING, REPLACING = range(3)
NO_ADVICE = -1
MORE = PAGE * 1000  # file offsets differ from addresses by this much

Pages = dict[int, tuple[int, int, int]]  # page -> (entry, offset in the file, advice)


def slots(lib: Any) -> list[list[int]]:
    """Returns the slots that are not free: state, begin, end, offset, id, advice and number."""
    out, found = ffi.new("uint64_t[7]"), []
    for i in range(lib.table_slots()):
        lib.table_slot(i, out)
        if out[0] != FREE:
            found.append([*list(out)[:5], out[5] - 2**64 if out[5] >> 63 else out[5], out[6]])
    return found


def pages_of(lib: Any) -> Pages:
    pages: Pages = {}
    for _, begin, end, offset, entry, advice, _ in slots(lib):
        assert begin < end
        for page in range(begin // PAGE, end // PAGE):
            assert page not in pages, "two slots have this page"
            pages[page] = (entry, offset + page * PAGE - begin, advice)
    return pages


ranges = st.tuples(st.integers(1, PAGES), st.integers(1, 8))
steps = st.lists(
    st.tuples(
        ranges, st.sampled_from(["put", "put", "forget", "advise", "advise"]), st.integers(1, 3)
    ),
    max_size=30,
)


@settings(max_examples=examples(60), deadline=None)
@given(steps)
def test_each_page_of_a_range_waits_for_its_own_part_of_its_file(
    lib: Any, script: list[tuple[tuple[int, int], str, int]]
) -> None:
    """The program maps ranges, unmaps ranges, and gives advice on ranges. Afterwards, the table
    contains exactly the pages that are still mapped. For each page, it has the right entry and
    offset, and the last advice."""
    lib.table_clear()
    pages: Pages = {}
    for (first, n), what, value in script:
        here = range(first, first + n)
        begin, end = first * PAGE, (first + n) * PAGE
        assert lib.table_is_quiet(begin, end) == all(page not in pages for page in here)
        if what == "put":
            lib.table_say(begin, end, FORGET)  # a new mapping replaces the old ones
            lib.table_put(begin, end, begin + MORE, value)
            pages.update({page: (value, page * PAGE + MORE, NO_ADVICE) for page in here})
        else:
            assert lib.table_say(begin, end, FORGET if what == "forget" else value) == 1
            for page in [page for page in here if page in pages]:
                entry, offset, _ = pages.pop(page)
                if what == "advise":
                    pages[page] = (entry, offset, value)
        assert pages_of(lib) == pages
        assert lib.table_waiting() == len(slots(lib))
    numbers = [slot[-1] for slot in slots(lib)]
    assert len(set(numbers)) == len(numbers)
    lib.table_clear()
    assert lib.table_waiting() == 0


def test_a_slot_that_is_changed_gets_a_new_number(lib: Any) -> None:
    """A slot that is changed gets a new number. By this number, the thread that replaces the
    mapping notices that the slot has changed."""
    lib.table_clear()
    lib.table_put(PAGE, 5 * PAGE, 0, 1)
    (before,) = slots(lib)
    lib.table_say(PAGE, 5 * PAGE, 3)
    (after,) = slots(lib)
    assert before[1:5] == after[1:5] and before[-1] != after[-1]
    lib.table_say(2 * PAGE, 3 * PAGE, 3)  # no change: the range has this advice already
    assert slots(lib) == [after]


def test_a_full_table_takes_no_further_range_and_harms_none(lib: Any) -> None:
    """If no slot is free, the table accepts no further range, so a new range stays on the source.
    If a range is split in two, and only one slot is free, one of the two pieces stays on the
    source."""
    lib.table_clear()
    n = lib.table_slots()
    for i in range(1, n + 2):
        lib.table_put(i * 10 * PAGE, (i * 10 + 5) * PAGE, 0, i)
    assert [slot[4] for slot in slots(lib)] == list(range(1, n + 1))
    assert lib.table_waiting() == n
    # The removed page lies in the middle of a range. Two pieces of the range remain, and no slot is
    # free for the second piece.
    lib.table_say(12 * PAGE, 13 * PAGE, FORGET)
    pages = pages_of(lib)
    assert lib.table_waiting() == n
    assert [page for page in pages if page < 20] == [10, 11]
    assert len(pages) == 5 * (n - 1) + 2
    lib.table_clear()


@pytest.mark.parametrize(
    ("begin", "end", "is_done"), [(1, 3, 1), (1, 4, 0), (4, 5, 0), (6, 7, 0), (7, 9, 1)]
)
def test_a_call_waits_only_for_a_replacement_in_its_range(
    lib: Any, begin: int, end: int, is_done: int
) -> None:
    """While a thread replaces a mapping, a call on a part of the mapping leaves the table unchanged
    and returns 0. A call on another range succeeds."""
    lib.table_clear()
    lib.table_put(3 * PAGE, 7 * PAGE, 0, 1)
    lib.table_put(PAGE, 3 * PAGE, 0, 2)
    lib.table_set_state(0, REPLACING)
    before = pages_of(lib)
    assert lib.table_say(begin * PAGE, end * PAGE, FORGET) == is_done
    assert (pages_of(lib) == before) == (not is_done or begin >= 7)
    lib.table_clear()


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_forked_child_takes_over_what_is_whole(lib: Any, is_cut: bool) -> None:
    """A parent forks while one of its threads replaces a mapping. In the child, this mapping waits
    for its replacement again. If a thread of the parent was changing the table when the parent
    forked, the child forgets all ranges."""
    lib.table_clear()
    lib.table_put(PAGE, 2 * PAGE, 0, 1)
    lib.table_put(3 * PAGE, 4 * PAGE, 0, 2)
    lib.table_set_state(1, REPLACING)
    lib.table_fork(is_cut)
    assert lib.table_say(10 * PAGE, 11 * PAGE, FORGET) == 1
    assert [slot[0] for slot in slots(lib)] == ([] if is_cut else [WAITING, WAITING])
    assert lib.table_waiting() == (0 if is_cut else 2)
    # Only the child's first call takes over the table. If the child itself then replaces a mapping,
    # a later call leaves this mapping's state unchanged.
    lib.table_clear()
    lib.table_put(PAGE, 2 * PAGE, 0, 1)
    lib.table_set_state(0, REPLACING)
    lib.table_say(10 * PAGE, 11 * PAGE, FORGET)
    assert [slot[0] for slot in slots(lib)] == [REPLACING]
    lib.table_clear()


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[tuple[Path, list[mmap.mmap]]]:
    (tmp_path / "f").write_bytes(b"x" * 8 * mmap.PAGESIZE)
    maps: list[mmap.mmap] = []
    yield tmp_path / "f", maps
    for one in maps:
        one.close()


def address(memory: mmap.mmap) -> int:
    """Returns the address of a mapping. NumPy can report the address of a buffer even if the memory
    is read-only."""
    return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])


@pytest.mark.parametrize("is_shared", [True, False])
def test_what_is_mapped_is_what_the_kernel_says(
    lib: Any, mapped: tuple[Path, list[mmap.mmap]], is_shared: bool
) -> None:
    """maps_is_mapped returns true only if each page of the range is mapped from the file at the
    right offset. The pages must be readable but not writable or executable, and shared or private
    as given."""
    path, page = mapped[0], mmap.PAGESIZE
    other = path.with_name("g")
    other.write_bytes(path.read_bytes())
    flags = mmap.MAP_SHARED if is_shared else mmap.MAP_PRIVATE
    with path.open("rb") as file, other.open("rb") as file2:
        memory = mmap.mmap(file.fileno(), 4 * page, flags, mmap.PROT_READ, offset=2 * page)
        foreign = mmap.mmap(file2.fileno(), page, flags, mmap.PROT_READ)
    at, there = address(memory), address(foreign)
    assert lib.maps_file(at) == lib.maps_file(at + 4 * page - 1) == path.stat().st_ino
    assert lib.maps_file(there) == other.stat().st_ino
    assert lib.maps_file(1) == 0
    for first in range(4):
        for last in range(first + 1, 5):
            begin, end, offset = at + first * page, at + last * page, (first + 2) * page
            assert lib.maps_is_mapped(begin, end, at, offset, is_shared)
            assert not lib.maps_is_mapped(begin, end, at, offset, not is_shared)
            assert not lib.maps_is_mapped(begin, end, at, offset + page, is_shared)
            assert not lib.maps_is_mapped(begin, end, there, offset, is_shared)
    assert not lib.maps_is_mapped(at - page, at + page, at, page, is_shared)
    assert not lib.maps_is_mapped(at, at + 40 * page, at, 2 * page, is_shared)
    # If a page of the range has another protection, the result is false.
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.mprotect
    call.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    for protection in (0, 5):  # no access; read and execute
        assert call(at + page, page, protection) == 0, os.strerror(ctypes.get_errno())
        assert not lib.maps_is_mapped(at, at + 4 * page, at, 2 * page, is_shared)
        assert lib.maps_is_mapped(at + 2 * page, at + 4 * page, at, 4 * page, is_shared)
        assert call(at + page, page, 1) == 0
    assert lib.maps_is_mapped(at, at + 4 * page, at, 2 * page, is_shared)
    # Anonymous memory replaces one page. No byte of this page belongs to a file.
    put = libc.mmap
    put.restype = ctypes.c_size_t
    put.argtypes = [*[ctypes.c_size_t] * 2, *[ctypes.c_int] * 3, ctypes.c_size_t]
    fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
    assert put(at + page, page, mmap.PROT_READ, fixed, -1, 0) == at + page
    assert lib.maps_file(at + page - 1) == lib.maps_file(at + 2 * page) == path.stat().st_ino
    assert lib.maps_file(at + page) == lib.maps_file(at + 2 * page - 1) == 0
