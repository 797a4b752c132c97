"""Tests which files a program fills by its own reads ("direct" reads). In a direct read, the
program reads the file from the source, and the daemon makes the copy from the same pages."""

from __future__ import annotations

from typing import Any

import pytest
from csrc.units.loading import Made

from monarch_py.native import State
from monarch_py.native import lib as native

UNIT = native.MONARCH_UNIT
ENTRY, SOURCE = 5, 3
ABSENT, WANTED, FILLING, PRESENT, BYPASS = State
OWN = native.MONARCH_OWN


@pytest.fixture
def session(session: Made) -> Made:
    """A session in which ENTRY may be read directly."""
    session.control.handed_bytes = session.entries[ENTRY].size = 8 * UNIT
    session.entries[ENTRY].source, session.entries[ENTRY].ino = SOURCE, 77
    session.control.source[SOURCE].dev = 9
    return session


def test_a_file_may_be_read_directly(lib: Any, session: Made) -> None:
    """A file may be read directly if it is not empty and not larger than the configured size. If
    nodes share files, the file must be this node's own. The following files may not be read
    directly: files of a fast source, files of a source of which the kernel keeps no pages, and
    files on which a lock was seen."""
    control, entry = session.control, session.entries[ENTRY]

    def may() -> bool:
        return bool(lib.handover_may_read_direct(session.s, ENTRY))

    assert may()
    for size, is_small_enough in ((0, False), (1, True), (8 * UNIT, True), (8 * UNIT + 1, False)):
        entry.size = size
        assert may() == is_small_enough
    entry.size = UNIT
    control.shares = 1
    assert not may()
    entry.flags = OWN
    assert may()
    control.shares, entry.flags = 0, 0
    for field in ("fast_sources", "pageless_sources"):
        setattr(control, field, ~(1 << SOURCE) & 0xFFFF)
        assert may()
        setattr(control, field, 1 << SOURCE)
        assert not may()
        setattr(control, field, 0)
    setattr(control, field, 1 << SOURCE)  # the kernel keeps no pages of the source
    session.entries[128] = entry  # even so, every 128th file is read directly
    assert lib.handover_may_read_direct(session.s, 128)
    setattr(control, field, 0)
    lib.handover_note_locks(9, 78)
    lib.handover_note_locks(8, 77)
    assert may()
    entry.ino = 78
    assert not may()


@pytest.mark.parametrize(
    ("state", "wanted", "filled", "is_direct"),
    [
        (ABSENT, False, False, True),
        (ABSENT, True, False, False),
        (WANTED, True, False, True),
        (FILLING, False, False, True),
        (FILLING, False, True, False),
        (PRESENT, False, False, False),
        (BYPASS, False, False, False),
    ],
)
def test_a_file_is_read_directly_until_its_fill_is_under_way(
    lib: Any, session: Made, state: int, wanted: bool, filled: bool, is_direct: bool
) -> None:
    """A file is read directly as long as its fill is only queued, because the program's reads
    happen sooner than the fill."""
    session.entries[ENTRY].word = word = state | 9 << 12
    session.clients.wanted.word[0] = wanted << ENTRY
    session.fills.word[4] = word if filled else word + (1 << 12)
    assert lib.handover_is_read_direct(session.s, ENTRY) == is_direct


@pytest.mark.parametrize(
    ("size", "bytes_read", "n", "end", "is_at_random"),
    [
        (8 * UNIT, UNIT, UNIT, UNIT, False),
        (8 * UNIT, UNIT, UNIT, UNIT + 1, True),
        (8 * UNIT, UNIT, 1, 5 * UNIT, True),
        (8 * UNIT, UNIT - 1, 1, 5 * UNIT, False),
        (8 * UNIT, UNIT + 5, 6, 5 * UNIT, True),
        (8 * UNIT, UNIT + 5, 5, 5 * UNIT, False),
        (UNIT, UNIT // 8, 1, UNIT, False),
        (UNIT + 8, UNIT // 8 + 1, 1, UNIT, True),
    ],
)
def test_one_read_tells_whether_a_file_is_read_at_random(
    lib: Any, session: Made, size: int, bytes_read: int, n: int, end: int, is_at_random: bool
) -> None:
    """The library decides at the read that completes an eighth of the file. If the offset at which
    this read ends equals the number of bytes read so far, the file counts as read in order.
    Otherwise, it counts as read at random. A file of one unit never counts as read at random."""
    session.entries[ENTRY].size = size
    assert lib.handover_is_at_random(session.s, ENTRY, bytes_read, n, end) == is_at_random


def test_waits_in_vain_become_rarer_and_a_good_one_makes_them_usual(lib: Any) -> None:
    """Each wait that ends without a copy makes some of the following opens skip their waits: one
    open after the first wait in vain, 3 opens after the second, then 7, 15 and so on, but at most
    64. After a wait that ends with a copy, no open skips its wait."""

    def skipped() -> int:
        n = 0
        while lib.open_wait_skips():
            n += 1
        return n

    lib.open_wait_note(1)
    assert skipped() == 0
    for expected in (1, 3, 7, 15, 31, 63, 64, 64):
        lib.open_wait_note(0)
        assert skipped() == expected
    lib.open_wait_note(1)
    assert skipped() == 0
    lib.open_wait_note(0)
    assert skipped() == 1
