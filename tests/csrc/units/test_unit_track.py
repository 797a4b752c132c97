"""Tests the table of tracked descriptors, which has a word for each descriptor: how the words
change, and in which cases a thread waits for another one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import Made
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.draws import examples

OFFSET, SHARED, PINNED, SEEKING = 1, 2, 4, 8
DIRECT, HANDED, FORKED = 1 << 62, 1 << 63, 1 << 61
FLAGS = 15 | DIRECT | HANDED | FORKED
FD = 300
TRACKED = 65536  # the first number that is not tracked
LSEEK = 8 if os.uname().machine == "x86_64" else 62
NEVER = 10**6  # rounds


@pytest.fixture
def table(lib: Any) -> Iterator[Any]:
    lib.track_forget()
    yield lib
    lib.track_forget()


def word_of(entry: int, number: int = 0, opened: int = 5, flags: int = 0) -> int:
    return number << 4 | opened << 9 | (entry + 1) << 32 | flags


def blocked() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, []))


def words(lib: Any, *fds: int) -> list[int]:
    return [int(lib.track_word(fd)) for fd in fds]


def test_a_word_names_the_session_the_open_and_the_entry(table: Any, session: Made) -> None:
    """Two opens of the same file have different words in the table of tracked descriptors. A
    descriptor with a number beyond the table is not tracked. While the process cannot read
    unfinished copies, no descriptor is tracked."""
    for number in (0, 1, 31):
        table.track_number(session.s, number, 1)
        for entry in (0, 7, 2**25 - 2):
            for flags in (0, DIRECT):
                table.track_track(session.s, FD, entry, flags)
                first = table.track_word(FD)
                table.track_track(session.s, FD, entry, flags)
                second = table.track_word(FD)
                assert first != second
                for word in (first, second):
                    assert word & ~(0x7FFFFF << 9) == word_of(entry, number, 0, flags)
    table.track_set(FD, 0)
    for fd in (-1, TRACKED, 2**31 - 1):
        table.track_track(session.s, fd, 7, 0)
        assert table.track_word(fd) == 0
    table.track_track(session.s, TRACKED - 1, 7, 0)
    assert table.track_word(TRACKED - 1)
    table.track_number(session.s, 0, 0)
    table.track_track(session.s, FD, 7, 0)
    table.track_number(session.s, 0, 1)
    assert table.track_word(FD) == 0


@pytest.mark.parametrize(("old", "flags", "is_tracked"), [(0, 0, 0), (9, 0, 0), (9, DIRECT, 0),
                                                          (0, DIRECT, 1)])  # fmt: skip
def test_a_child_of_vfork_leaves_its_parents_words(
    table: Any, session: Made, old: int, flags: int, is_tracked: int
) -> None:
    """A child of vfork may write only into an empty slot of the table of descriptors. The word that
    it writes must send all reads to the source."""
    table.track_set(FD, old)
    table.track_belongs(os.getpid() + 1, 0)
    table.track_track(session.s, FD, 7, flags)
    assert (table.track_word(FD) != old) == is_tracked
    assert table.track_owner() == os.getpid() + 1


@pytest.mark.parametrize(
    ("owner", "is_forked", "is_mine"),
    [("me", 0, 1), ("me", 1, 1), ("nobody", 0, 1), ("nobody", 1, 1), ("other", 0, 0),
     ("other", 1, 1)],
)  # fmt: skip
def test_the_table_belongs_to_one_process(
    table: Any, owner: str, is_forked: int, is_mine: int
) -> None:
    """A forked child takes over the table, even if the library did not see the fork. The child
    marks all words of the table as shared, because it shares the offsets with its parent. It clears
    the flags that the parent's threads have set for calls of their own."""
    pid = {"me": os.getpid(), "nobody": 0, "other": os.getpid() + 1}[owner]
    forgotten = table.track_forgotten()
    before = word_of(7, flags=PINNED | SEEKING | DIRECT), word_of(8, flags=OFFSET)
    for i, word in enumerate(before):
        table.track_set(FD + i, word)
    table.track_belongs(pid, is_forked)
    assert table.track_is_mine() == is_mine
    assert table.track_owner() == (os.getpid() if is_mine else pid)
    now = words(table, FD, FD + 1)
    if owner == "other" and is_forked:
        assert now == [word_of(7, flags=DIRECT | SHARED | FORKED),
                       word_of(8, flags=OFFSET | SHARED | FORKED)]  # fmt: skip
    else:
        assert now == list(before)
    is_new = owner == "other" and is_forked
    assert table.track_forgotten() - forgotten == is_new
    table.track_belongs(pid, is_forked)
    expected = os.getpid() if is_forked else pid
    assert table.track_process() == expected


def test_a_fresh_mark_is_of_no_forked_child(table: Any) -> None:
    table.track_mark_again()
    table.track_belongs(os.getpid() + 1, 0)
    table.track_mark_again()
    assert not table.track_is_mine()


@pytest.mark.parametrize("fd", [0, 1, 60000])
def test_the_first_and_the_highest_descriptor_are_of_the_table(
    table: Any, session: Made, fd: int
) -> None:
    table.track_number(session.s, 3, 1)
    table.track_track(session.s, 2, 7, 0)
    table.track_track(session.s, fd, 7, 0)
    table.track_share_all()
    assert table.track_word(fd) & (SHARED | FORKED) == SHARED | FORKED
    table.track_track(session.s, fd, 7, 0)
    table.track_belongs(os.getpid() + 1, 1)
    assert table.track_is_mine()
    assert table.track_word(fd) & (SHARED | FORKED) == SHARED | FORKED
    table.track_untrack_session(3)
    assert table.track_word(fd) == 0
    table.track_track(session.s, fd, 7, 0)
    table.track_untrack_range(fd, TRACKED)
    assert table.track_word(fd) == 0


def test_only_the_owner_removes_words(table: Any) -> None:
    """A child of vfork does not own the table. It may remove only the words of descriptors that
    were handed over to the daemon, because the parent does not need these words."""
    for flags, is_removed in ((0, 0), (HANDED, 1), (HANDED | PINNED, 0), (HANDED | SEEKING, 0)):
        table.track_set(FD, word := word_of(7, flags=flags))
        table.track_belongs(os.getpid() + 1, 0)
        table.track_untrack(FD)
        table.track_untrack_seen(FD, word_of(7)) if not flags else None
        assert (table.track_word(FD) == 0) == is_removed, flags
        if not is_removed:
            table.track_untrack_range(0, TRACKED)
            table.track_flag_slow(FD + 1, SHARED)
            assert table.track_word(FD) == word
    table.track_set(FD, word_of(7))
    assert not table.track_pin(FD, 0)
    assert table.track_seek(FD, word_of(7), 0) == -1


@settings(max_examples=examples(80), deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(st.data())
def test_calls_on_many_descriptors_change_those_that_they_name(table: Any, data: Any) -> None:
    """Each call names a range of descriptors, the descriptors of a session, a single descriptor, or
    all descriptors. It changes only the words of these descriptors in the table."""
    table.track_forget()
    state = st.sampled_from([0, 0, OFFSET, SHARED, DIRECT, HANDED])
    number = st.sampled_from([3, 4, 19])
    model = {}
    for fd in range(FD, FD + 5):
        if data.draw(st.booleans()):
            model[fd] = word_of(fd, data.draw(number), flags=data.draw(state))
            table.track_set(fd, model[fd])
    what = data.draw(st.sampled_from(["range", "session", "share", "one", "flag"]))
    low, high = sorted(data.draw(st.integers(FD - 1, FD + 5)) for _ in range(2))
    if what == "range":
        table.track_untrack_range(low, high)
        model = {fd: w for fd, w in model.items() if not low <= fd <= high}
    elif what == "session":
        which = data.draw(number)
        table.track_untrack_session(which)
        model = {fd: w for fd, w in model.items() if w >> 4 & 31 != which}
    elif what == "share":
        table.track_share_all()
        model = {fd: w | SHARED | FORKED for fd, w in model.items()}
    elif what == "one":
        table.track_untrack(low)
        model.pop(low, None)
    else:
        table.track_flag(low, SHARED | OFFSET)
        if low in model:
            model[low] |= SHARED | OFFSET
    assert words(table, *range(FD - 1, FD + 6)) == [
        model.get(fd, 0) for fd in range(FD - 1, FD + 6)
    ]


def test_a_word_in_use_is_not_removed_without_a_wait(table: Any) -> None:
    """monarch_untrack_session and monarch_untrack_seen do not wait for other threads. So they keep
    a descriptor's word if another thread has pinned the descriptor, or is about to call lseek."""
    for flags, is_kept in ((0, 0), (PINNED, 1), (SEEKING, 1), (OFFSET | SHARED, 0)):
        word = word_of(7, 4, flags=flags)
        for by_session in (False, True):
            table.track_set(FD, word)
            if by_session:
                table.track_untrack_session(4)
            else:
                table.track_untrack_seen(FD, word)
            assert table.track_word(FD) == (word if is_kept else 0)
    table.track_set(FD, word_of(7))
    table.track_untrack_seen(FD, word_of(7, opened=6))
    assert table.track_word(FD) == word_of(7)
    for seen, flags, is_changed in ((1, 0, 1), (0, 0, 0), (1, PINNED, 0), (1, SEEKING, 1)):
        word = word_of(7, flags=flags)
        table.track_set(FD, word)
        assert table.track_change(FD, word if seen else word + 512, 99) == is_changed
        assert table.track_word(FD) == (99 if is_changed else word)


@pytest.mark.parametrize("call", ["flag", "untrack", "range", "pin"])
def test_a_thread_waits_until_a_descriptor_is_unpinned(table: Any, call: str) -> None:
    """While a descriptor is pinned, its word must not change. A call that changes the word waits
    until the descriptor is unpinned, and then continues with the word that it finds."""
    calls = {
        "flag": lambda: table.track_flag(FD, SHARED),
        "untrack": lambda: table.track_untrack(FD),
        "range": lambda: table.track_untrack_range(0, FD),
        "pin": lambda: table.track_pin(FD, 0),
    }
    signals = blocked()
    for then in (word_of(7), word_of(8), word_of(7, flags=SHARED | DIRECT), 0):
        table.track_set(FD, word_of(7, flags=PINNED | SHARED if call == "flag" else PINNED))
        table.track_other(5, FD, then)
        done = calls[call]()
        assert table.track_rounds() == 5
        expected = {
            "flag": then | SHARED if then else 0,
            "untrack": 0,
            "range": 0,
            "pin": then | PINNED if then and not then & SHARED else then,
        }[call]
        assert table.track_word(FD) == expected
        if call == "pin":
            assert done == (then in (word_of(7), word_of(8)))
            if done:
                assert table.track_pinned() == then
                assert blocked() > signals
                table.track_unpin(FD, 0)
        assert blocked() == signals


@pytest.mark.parametrize(
    ("case", "is_cleared"),
    [("copy", True), ("same", False), ("source", True), ("no_tier", False), ("outside", False),
     ("closed", False)],
)  # fmt: skip
def test_nobody_waits_for_the_end_of_a_promotion_that_has_succeeded(
    table: Any, session: Made, tmp_path: Path, case: str, is_cleared: bool
) -> None:
    """A promotion has succeeded once the descriptor refers to the copy. The kernel may then still
    be closing the source's file, and other threads do not wait for that. If the tier is on the same
    device as the source, only the inode tells whether the descriptor refers to the copy."""
    path = tmp_path / "f"
    path.touch()
    found = path.stat()
    session.control.tiers = session.control.sources = 1
    tier, source, entry = session.control.tier[0], session.control.source[0], session.entries[7]
    tier.usable, tier.dev = 1, found.st_dev
    source.dev, entry.ino = found.st_dev, found.st_ino
    fd = os.open(path, os.O_RDONLY)
    id_, at = 7, fd
    if case == "copy":
        entry.ino += 1
    elif case == "source":
        source.dev += 1
    elif case == "no_tier":
        tier.dev += 1
    elif case == "outside":
        id_ = 4096
    elif case == "closed":
        at = FD
    table.track_set(at, word_of(id_, flags=PINNED))
    table.track_other(80, at, word_of(9))
    table.track_flag(at, SHARED)
    assert table.track_word(at) == (0 if is_cleared else word_of(9, flags=SHARED))
    assert table.track_rounds() == (40 if is_cleared else 80)
    os.close(fd)


def test_a_pin_is_for_descriptors_that_may_be_promoted(table: Any) -> None:
    signals = blocked()
    for word, expected, is_pinned in (
        (word_of(7), 0, 1), (word_of(7), word_of(7), 1), (word_of(7), word_of(7) + 512, 0),
        (word_of(7, flags=OFFSET), 0, 0), (word_of(7, flags=SHARED), 0, 0), (0, 0, 0),
        (word_of(7, flags=DIRECT), 0, 1),
    ):  # fmt: skip
        table.track_set(FD, word)
        assert table.track_pin(FD, expected) == is_pinned
        assert table.track_word(FD) == (word | PINNED if is_pinned else word)
        if is_pinned:
            assert len(blocked()) > 50 and table.track_pinned() == word
            table.track_unpin(FD, word | SHARED)
            assert table.track_word(FD) == word | SHARED
        assert blocked() == signals
    # While the descriptor is pinned, a call that the library does not see may close it, and another
    # open may get its number. The unpin must not change the word of the new descriptor.
    table.track_set(FD, word_of(7))
    assert table.track_pin(FD, 0)
    table.track_set(FD, word_of(8, flags=PINNED))
    table.track_unpin(FD, 0)
    assert table.track_word(FD) == word_of(8, flags=PINNED)
    assert blocked() == signals


def test_a_close_waits_until_a_seek_is_inside_the_kernel(table: Any) -> None:
    """A close of a descriptor waits for a thread that is about to seek on it. Once the seek is
    inside the kernel, the kernel holds a reference to the open file, and the close may go on. If
    the library cannot see whether the seek is inside the kernel, the close waits for a limited
    time. A close of many descriptors has one limit for all of them."""
    word = word_of(7, 3, flags=SEEKING | OFFSET)
    for asleep, expected in ((0, 40), (41, 48), (48, 48), (49, 56), (NEVER, 800)):
        table.track_set(FD, word)
        table.track_sleeps_from(asleep)
        table.track_untrack(FD)
        assert table.track_word(FD) == 0
        assert table.track_rounds() == expected
    table.track_sleeps_from(0)
    table.track_set(FD, word)
    table.track_untrack(FD)
    asked = [table.track_asked(i) for i in range(3)]
    assert asked == [LSEEK, FD, word_of(7, 3, flags=SEEKING)]
    for i in range(5):
        table.track_set(FD + i, word)
    table.track_sleeps_from(NEVER)
    table.track_untrack_range(0, TRACKED)
    assert words(table, *range(FD, FD + 5)) == [0] * 5
    assert table.track_rounds() == 800 + 4 * 40
    # The close stops waiting when the seek has ended.
    table.track_set(FD, word)
    table.track_other(7, FD, word & ~SEEKING)
    table.track_untrack(FD)
    assert (table.track_word(FD), table.track_rounds()) == (0, 7)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "f").write_bytes(b"x" * 100)
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_seek_moves_the_offset_of_the_open_file_that_is_meant(table: Any, opened: int) -> None:
    """The offset is moved only if the descriptor's word, without its flags, is still the expected
    one. After the seek, the word's flags say that the offset is in use, and that no seek is under
    way."""
    signals = blocked()
    word = word_of(7, 3)
    for flags in (0, OFFSET, SHARED, OFFSET | FORKED):
        table.track_set(opened, word | flags)
        os.lseek(opened, 10, os.SEEK_SET)
        for by, at in ((5, 15), (-15, 0), (-1, -1), (0, 0), (300, 300)):
            assert table.track_seek(opened, word, by) == at
            assert table.track_word(opened) == word | flags | OFFSET
            assert os.lseek(opened, 0, os.SEEK_CUR) == max(at, 0)
    for other in (word_of(7, 3, opened=6), word_of(8, 3), word_of(7, 4), 0):
        table.track_set(opened, other)
        assert table.track_seek(opened, word, 5) == -1
        assert table.track_word(opened) == other
    assert os.lseek(opened, 0, os.SEEK_CUR) == 300
    assert blocked() == signals


@pytest.mark.parametrize("flag", [PINNED, SEEKING])
def test_a_seek_waits_a_little_for_another_thread(table: Any, opened: int, flag: int) -> None:
    word = word_of(7)
    table.track_set(opened, word | flag)
    table.track_other(20, opened, word | OFFSET)
    assert table.track_seek(opened, word, 5) == 5
    assert table.track_rounds() == 20
    table.track_set(opened, word | flag)
    table.track_other(NEVER, opened, word)
    assert table.track_seek(opened, word, 5) == -1
    assert table.track_rounds() == 64
    assert table.track_word(opened) == word | flag
    assert os.lseek(opened, 0, os.SEEK_CUR) == 5
    table.track_other(20, opened, word_of(8))
    assert table.track_seek(opened, word, 5) == -1
    assert table.track_rounds() == 20, "the number is another file's by now"


def test_a_duplicate_is_of_the_same_entry_and_shared(table: Any, session: Made) -> None:
    """A duplicate of a descriptor that was handed over is tracked as an ordinary descriptor if the
    file has an entry. Otherwise it is not tracked."""
    fresh, unmet = FD + 1, int(table.claims_unmet(99))
    table.track_number(session.s, 3, 1)
    for word, flags in (
        (word_of(7, 3), 0), (word_of(7, 3, flags=OFFSET), 0), (word_of(7, 3, flags=DIRECT), DIRECT),
        (word_of(7, 3, flags=DIRECT | HANDED), 0), (word_of(unmet, 3, flags=DIRECT), DIRECT),
        (word_of(7, 3, flags=FORKED), 0),
    ):  # fmt: skip
        table.track_set(FD, word)
        table.track_set(fresh, 0)
        table.track_again(FD, fresh)
        made = table.track_word(fresh)
        entry = (word >> 32 & 0x3FFFFFF) - 1
        assert made & ~(0x7FFFFF << 9) == word_of(entry, 3, 0, flags | SHARED)
        assert table.track_word(FD) == word
    for word in (word_of(unmet, 3, flags=DIRECT | HANDED), word_of(7, 4), 0):
        table.track_set(FD, word)
        table.track_set(fresh, 0)
        table.track_again(FD, fresh)
        assert table.track_word(fresh) == 0
    table.track_set(FD, word_of(7, 3))
    table.track_again(FD, -1)
    table.track_again(FD, TRACKED)
