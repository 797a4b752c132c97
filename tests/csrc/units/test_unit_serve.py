"""Tests what the library does with a file that was opened at the source: what it counts, and
whether it follows the program's reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import Made, ffi

from monarch_py.native import Reason, State
from monarch_py.native import lib as native

ABSENT, WANTED, FILLING, PRESENT, BYPASS = State
COMING = (ABSENT, WANTED, FILLING, PRESENT)
UNIT = native.MONARCH_UNIT
SMALL, LARGE = 1000, UNIT + 1
ENTRY, RANK = 5, 3
PLAIN = (os.O_RDONLY, os.O_CLOEXEC, os.O_NOFOLLOW, os.O_NOCTTY, os.O_NONBLOCK)
OTHER = (os.O_DIRECT, os.O_SYNC, os.O_NOATIME, os.O_DIRECT | os.O_CLOEXEC)
UNKNOWN_FILE = 77  # size of the file that has no entry


class Opens:
    def __init__(self, lib: Any, session: Made, path: Path) -> None:
        self.lib, self.session, self.path = lib, session, path
        self.entry, self.clients = session.entries[ENTRY], session.clients
        path.write_bytes(b"x" * UNKNOWN_FILE)
        self.fd = os.open(path, os.O_RDONLY)
        self.answers()
        self.before = self._counts()

    def answers(
        self, *, direct: bool = False, at_hand: bool = False, tracks: bool = True,
        unmet: bool = False,
    ) -> None:  # fmt: skip
        """Sets what the library finds out about the next opens.

        direct : whether the program's reads can serve as the fill
        at_hand : whether the source returns data as fast as the page cache
        tracks : whether the descriptor can be tracked
        unmet : whether the reads of a file without an entry can be followed
        """
        self.lib.serve_answers(direct, at_hand, tracks, unmet)

    def opened(
        self, size: int = SMALL, state: int = ABSENT, *, claimed: bool = False,
        alone: bool = False, flags: int = 0,
    ) -> str:  # fmt: skip
        """Acts as if a file with an entry had been opened. Returns the steps of the library.

        claimed : whether this open has claimed the file
        alone : whether the descriptor must not be tracked
        """
        self.entry.size, self.entry.word = size, state | 9 << 12
        self.lib.serve_opened(self.session.s, ENTRY, claimed, alone, flags, self.fd)
        return os.fsdecode(ffi.string(self.lib.serve_steps()))

    def opened_unknown(self, flags: int = 0, fd: int = -1) -> str:
        """Acts as if a file without an entry had been opened. Returns the steps of the library."""
        self.lib.serve_opened(self.session.s, -1, 0, 0, flags, self.fd if fd < 0 else fd)
        return os.fsdecode(ffi.string(self.lib.serve_steps()))

    def _counts(self) -> dict[str, int]:
        names = ("hits", "misses", "bytes_from_tier", "bytes_from_source", "source_opens",
                 "source_open_ns")  # fmt: skip
        found = {name: sum(int(getattr(one, name)) for one in self.clients.stats) for name in names}
        rank = self.clients.rank[RANK]
        return {**found, "opened": int(rank.opened_bytes), "missed": int(rank.missed_bytes)}

    def counts(self) -> dict[str, int]:
        """Returns what was counted since the last call."""
        before, self.before = self.before, self._counts()
        return {name: n - before[name] for name, n in self.before.items() if n != before[name]}


@pytest.fixture
def opens(lib: Any, session: Made, tmp_path: Path) -> Iterator[Opens]:
    lib.serve_set_rank(RANK)
    one = Opens(lib, session, tmp_path / "f")
    yield one
    os.close(one.fd)
    lib.serve_set_rank(0)


def counted(size: int, missed: int | None = None) -> dict[str, int]:
    """Returns what one open at the source adds to the counts, for a file of `size` bytes. missed:
    how many bytes count as missed by the rank; None: all bytes of the file."""
    bytes_missed = size if missed is None else missed
    found = {"misses": 1, "bytes_from_source": size, "source_opens": 1, "source_open_ns": 7,
             "opened": size, "missed": bytes_missed}  # fmt: skip
    return {name: n for name, n in found.items() if n}


@pytest.mark.parametrize("size", [SMALL, UNIT, LARGE])
def test_a_file_that_gets_a_copy_is_tracked(opens: Opens, size: int) -> None:
    """The reads of a tracked file are counted when they are made. If the descriptor cannot be
    tracked, the whole file is counted at once."""
    for state in COMING:
        for flags in PLAIN:
            opens.answers()
            assert opens.opened(size, state, flags=flags) == "track"
            opens.answers(tracks=False)
            assert opens.opened(size, state, flags=flags) == f"track, count {size}"
        for flags in OTHER:
            opens.answers()
            assert opens.opened(size, state, flags=flags) == f"count {size}"
        opens.counts()
        opens.opened(size, state)
        assert opens.counts() == counted(size)


def test_a_file_that_gets_no_copy_is_only_counted(opens: Opens) -> None:
    """A file in the state BYPASS, for example one that the configuration excludes, gets no copy.
    Its bytes do not count as missed by the program's rank. An empty file gets no copy either."""
    assert opens.opened(SMALL, BYPASS) == f"count {SMALL}"
    assert opens.counts() == counted(SMALL, missed=0)
    assert opens.opened(0) == "count 0"
    assert opens.counts() == counted(0)


def test_a_small_file_of_a_fast_source_is_left_alone(opens: Opens) -> None:
    """A small file of a fast source counts as read to its end when it is opened, because tracking
    it would take longer than reading it. It is tracked nevertheless if the daemon fills a file only
    after programs have requested a part of it (`fill_after`)."""
    opens.answers(at_hand=True)
    for size in (SMALL, UNIT):
        assert opens.opened(size) == f"progress {size}, count {size}"
    assert opens.opened(LARGE) == "track"
    assert opens.opened(claimed=True) == "track, fill"
    opens.session.control.fill_after = 1
    assert opens.opened() == "track"
    opens.answers()
    assert opens.opened(alone=True) == f"progress {SMALL}, count {SMALL}"
    assert opens.opened(alone=True, state=BYPASS) == f"count {SMALL}"


def test_a_claimed_file_is_filled_by_the_programs_reads(opens: Opens) -> None:
    """If the library cannot follow the program's reads, or if another fill of the file has begun,
    the library asks the daemon to fill the file. For a large file, the library counts only the
    bytes that are read through this descriptor."""
    opens.answers(direct=True)
    assert opens.opened(SMALL, claimed=True) == "track direct"
    assert opens.opened(UNIT, claimed=True) == "track direct"
    assert opens.opened(LARGE, claimed=True) == "track direct, again"
    assert opens.opened(LARGE) == "track", "another open has claimed it"
    for flags in OTHER:
        assert opens.opened(claimed=True, flags=flags) == f"fill, count {SMALL}"
    assert opens.opened(claimed=True, state=BYPASS) == f"fill, count {SMALL}"
    opens.answers(direct=True, tracks=False)
    assert opens.opened(claimed=True) == f"track direct, fill, count {SMALL}"
    opens.answers(direct=False)
    assert opens.opened(claimed=True) == "track, fill"


def test_a_claimed_file_that_cannot_be_opened_is_left_to_the_daemon(opens: Opens) -> None:
    for claimed in (True, False):
        assert opens.lib.serve_not_opened(opens.session.s, ENTRY, claimed)
        assert ffi.string(opens.lib.serve_steps()) == (b"fill" if claimed else b"")


def test_a_file_without_an_entry_is_followed_or_reported(opens: Opens) -> None:
    opens.answers(unmet=True)
    for flags in PLAIN:
        assert opens.opened_unknown(flags) == "unmet"
        assert opens.counts() == counted(UNKNOWN_FILE)
    for flags in OTHER:
        assert opens.opened_unknown(flags) == f"count {UNKNOWN_FILE}, told"
    opens.answers(unmet=False)
    assert opens.opened_unknown() == f"unmet, count {UNKNOWN_FILE}, told"
    opens.answers(unmet=True, at_hand=True)
    assert opens.opened_unknown() == f"count {UNKNOWN_FILE}, told"
    opens.counts()
    directory = os.open(opens.path.parent, os.O_RDONLY)
    for fd in (directory, 999):
        assert opens.opened_unknown(fd=fd) == ""
        assert opens.counts() == {"source_opens": 1, "source_open_ns": 7}
    os.close(directory)


def test_of_many_files_that_a_scan_will_find_few_are_reported(opens: Opens) -> None:
    """Programs open files that have no entry yet. If a scan will find all of them, and the source
    is fast, the library examines and reports only a few of these files. It counts every open. For a
    file that it does not examine, it assumes the size of the file that it examined last."""
    opens.session.control.scan_meets_all = 1
    opens.answers(unmet=True)
    assert opens.opened_unknown() == "unmet", "the source is slow"
    opens.counts()
    opens.answers(at_hand=True)
    steps = [opens.opened_unknown() for _ in range(320)]
    assert opens.counts() == {name: 320 * n for name, n in counted(UNKNOWN_FILE).items()}
    told, silent = f"count {UNKNOWN_FILE}, told", f"count {UNKNOWN_FILE}"
    assert set(steps) == {told, silent} and 10 <= steps.count(told) <= 30
    os.truncate(opens.path, 99)
    steps = [opens.opened_unknown() for _ in range(320)]
    changed = steps.index("count 99, told")
    assert steps[:changed] == [silent] * changed
    assert set(steps[changed:]) == {"count 99", "count 99, told"}


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [(ABSENT, 0, "no copy yet"), (WANTED, 0, "a copy of the file is requested"),
     (FILLING, 0, "the file's copy is being made"),
     (PRESENT, 0, "the file's copy could not be opened"),
     (BYPASS, Reason.CHANGED, "the file has changed"),
     (BYPASS, Reason.FAILED, "the file's copy could not be made")],
)  # fmt: skip
def test_the_log_says_why_an_open_gets_the_source(
    opens: Opens, state: int, reason: int, text: str
) -> None:
    opens.entry.word, opens.entry.ino = state | reason << 4, 1234
    why = opens.lib.serve_why
    assert ffi.string(why(opens.session.s, ENTRY)) == f"source: {text}".encode()
    opens.lib.serve_mark_changed(opens.session.s, ENTRY)
    assert ffi.string(why(opens.session.s, ENTRY)) == b"source: the file has changed"
