"""Tests the decisions of a reader: what it reads from an unfinished copy, whether it waits, whether
it requests a fill, and how fast it considers a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from csrc.units.loading import Made
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

from monarch_py.native import State
from monarch_py.native import lib as native

ABSENT, WANTED, FILLING, PRESENT, BYPASS = State
UNIT, KIB, MIB = native.MONARCH_UNIT, 1024, 1 << 20
MS, SECOND = 10**6, 10**9
ENTRY, SLOT = 5, 3
SHARES = native.MONARCH_SHARES


def word(state: int, reason: int = 0, copy: int = 9) -> int:
    return state | reason << 4 | copy << 12


@pytest.fixture(autouse=True)
def nothing_measured(lib: Any) -> Iterator[None]:
    """After each test, forgets the waits and the durations that the test has noted."""
    yield
    lib.wait_forget()
    lib.progress_forget()


def fill(session: Made, done: set[int], size: int, unit: int = UNIT) -> None:
    """Makes a fill of ENTRY in SLOT. The units in `done` are filled."""
    session.entries[ENTRY].size = size
    session.entries[ENTRY].word = session.fills.word[SLOT] = word(FILLING)
    at = session.fills.fill[SLOT]
    at.unit_bytes, at.failed = unit, 0
    for i in range(4):
        at.done[i] = sum(1 << (n % 64) for n in done if n // 64 == i)


@settings(max_examples=examples(150), deadline=None)
@given(
    done=st.sets(st.integers(0, 9)),
    at=st.integers(0, 10 * UNIT),
    n=st.one_of(st.integers(0, 3 * UNIT), st.integers(1, 10).map(lambda units: units * UNIT)),
)
def test_what_can_be_read_of_an_unfinished_copy(
    lib: Any, lasting: Made, done: set[int], at: int, n: int
) -> None:
    """A reader that wants the bytes from `at` on can read up to the first unit that is not filled.
    wait_missing returns the total size of the units that are not filled."""
    size = 10 * UNIT - 17
    fill(lasting, done, size)
    first_missing = next(unit for unit in range(at // UNIT, 20) if unit not in done)
    expected = max(min(at + n, first_missing * UNIT) - at, 0)
    assert lib.wait_ready(lasting.s, ENTRY, at, n, word(FILLING)) == expected
    assert lib.wait_is_settled(lasting.s, ENTRY, at, n) == (expected != 0)
    assert lib.wait_missing(lasting.s, ENTRY, word(FILLING)) == (10 - len(done)) * UNIT


def test_a_fill_that_failed_or_belongs_to_another_copy_gives_nothing(
    lib: Any, session: Made
) -> None:
    fill(session, {0, 1}, 4 * UNIT)
    assert lib.wait_ready(session.s, ENTRY, 0, UNIT, word(FILLING)) == UNIT
    assert lib.wait_ready(session.s, ENTRY, 0, UNIT, word(FILLING, copy=10)) == 0
    assert lib.wait_missing(session.s, ENTRY, word(FILLING, copy=10)) == 4 * UNIT
    session.fills.fill[SLOT].failed = 1
    assert lib.wait_ready(session.s, ENTRY, 0, UNIT, word(FILLING)) == -1
    session.fills.fill[SLOT].failed = 0
    session.fills.fill[SLOT].unit_bytes = 0  # the fill has not begun
    assert lib.wait_ready(session.s, ENTRY, 0, UNIT, word(FILLING)) == -1
    assert lib.wait_missing(session.s, ENTRY, word(FILLING)) == 4 * UNIT


@pytest.mark.parametrize(
    ("state", "is_settled"), [(ABSENT, 0), (WANTED, 0), (FILLING, 0), (PRESENT, 1), (BYPASS, 1)]
)
def test_a_wait_ends_when_the_copy_is_there_or_will_not_come(
    lib: Any, session: Made, state: int, is_settled: int
) -> None:
    fill(session, set(), UNIT)
    session.entries[ENTRY].word = session.fills.word[SLOT] = word(state)
    assert lib.wait_is_settled(session.s, ENTRY, 0, 1) == is_settled


def test_a_debt_is_repaid_by_time_and_has_a_limit(lib: Any) -> None:
    now = 1000 * SECOND
    assert lib.wait_owed(0, 50, now) == lib.wait_owed(now, 50, now) == 0
    assert lib.wait_owed(now + 50, 50, now) == 50
    assert lib.wait_owed(now + 51, 50, now) == 0  # impossible, so from another clock
    assert lib.wait_owe(now - 7, 20, 50, now) == now + 20
    assert lib.wait_owe(now + 10, 20, 50, now) == now + 30
    assert lib.wait_owe(now + 40, 20, 50, now) == now + 50
    assert lib.wait_owe(now + 40, 10, 50, now) == now + 50


def test_a_file_whose_waits_time_out_is_not_waited_for(lib: Any, session: Made) -> None:
    """After two waits for a file have timed out, a reader does not wait for that file any more. It
    still waits for a file whose timeouts are counted in another slot."""
    for _ in range(2):
        assert lib.wait_may_wait(session.s, ENTRY)
        lib.wait_note_timeout(session.s, ENTRY, MS, 0, 0)
    assert not lib.wait_may_wait(session.s, ENTRY)
    assert lib.wait_may_wait(session.s, ENTRY + 1)
    lib.wait_forget()
    assert lib.wait_may_wait(session.s, ENTRY)


def test_a_process_whose_waits_time_out_waits_for_no_file(lib: Any, session: Made) -> None:
    for i in range(8):
        assert lib.wait_may_wait(session.s, 100)
        lib.wait_note_timeout(session.s, i, MS, 0, 0)
    assert not lib.wait_may_wait(session.s, 100)


def test_a_process_loses_only_so_much_time_by_waits(lib: Any, session: Made) -> None:
    """If waits of a process for whole files time out, they take at most about a minute in total.
    After that, the process no longer waits. A wait that replaces an open of the source does not
    count towards this minute."""
    for _ in range(100):
        lib.wait_note_timeout(session.s, 0, 30 * SECOND, SECOND, 1)
    lasted = 0
    while lib.wait_may_wait(session.s, 0):
        lib.wait_note_timeout(session.s, 0, 5 * SECOND, SECOND, 0)
        lasted += 5
        assert lasted <= 65
    # The waits of a process count as a debt, which is paid off as time passes. On a slow machine,
    # enough time may pass here for one more wait of 5 s.
    assert lasted in (60, 65)


def test_nobody_waits_for_a_fast_source_or_a_silent_daemon(lib: Any, session: Made) -> None:
    """A reader does not wait for a small file of a fast source. After a reader has given up a wait,
    no reader waits for anything until the daemon has shown progress again."""
    entry = session.entries[ENTRY]
    entry.source, entry.size = 2, UNIT
    session.control.fast_sources = 1 << 1 | 1 << 3
    assert lib.wait_may_wait(session.s, ENTRY)
    session.control.fast_sources = 1 << 2
    assert not lib.wait_may_wait(session.s, ENTRY)
    entry.size = UNIT + 1
    assert lib.wait_may_wait(session.s, ENTRY)
    session.control.heartbeat, session.fills.units = 7, 12
    session.clients.silent_at = lib.wait_silent_sign(session.s)
    assert not lib.wait_may_wait(session.s, ENTRY)
    for progress in ("heartbeat", "units"):
        session.clients.silent_at = lib.wait_silent_sign(session.s)
        where = session.control if progress == "heartbeat" else session.fills
        setattr(where, progress, getattr(where, progress) + 1)
        assert lib.wait_may_wait(session.s, ENTRY)
        assert session.clients.silent_at == 0


@pytest.mark.parametrize(
    ("waited", "limit", "most"),
    [(0, SECOND, 200 * MS), (850 * MS, SECOND, 150 * MS), (2 * SECOND, SECOND, 0),
     (0, 999 * MS, 999 * MS), (100 * MS, 150 * MS, 50 * MS), (0, 3 * SECOND, 200 * MS),
     (2900 * MS, 3 * SECOND, 100 * MS)],
)  # fmt: skip
def test_the_last_wait_is_a_part_of_the_limit(lib: Any, waited: int, limit: int, most: int) -> None:
    """When all units are filled, a reader still waits until the daemon publishes the copy. This
    last wait may take the rest of the reader's limit, but at most 200 ms if the limit is a second
    or more."""
    before = lib.shared_now()
    left = lib.wait_left_for_word(waited, limit)
    assert most - (lib.shared_now() - before) <= left <= most


def demands(session: Made) -> list[tuple[int, int]]:
    """Returns (entry, unit) of each demand, in ascending order."""
    found = [int(d) for d in session.clients.demand if d]
    return sorted(((d >> 32 & 0x1FFFFFF) - 1, d >> 12 & 0xFFFFF) for d in found)


def test_a_demand_names_the_unit_and_rings_both_origins(lib: Any, session: Made) -> None:
    session.control.block_bytes = 4 * MIB
    session.entries[ENTRY].size = 9 * UNIT
    assert lib.wait_demand_first(session.s, ENTRY, 3 * UNIT + 5) == 1
    assert demands(session) == [(ENTRY, 3)]
    assert [int(bell.rings) for bell in session.clients.engine] == [1, 1]
    for _ in range(300):
        lib.wait_demand_first(session.s, ENTRY, 0)
    assert len(demands(session)) > 200  # all slots that a demand tries are taken
    assert demands(session).count((ENTRY, 3)) == 1


@pytest.mark.parametrize("is_filling", [False, True])
@pytest.mark.parametrize("sleeping", [(0, 0), (0, 3), (3, 0), (3, 3)])
@pytest.mark.parametrize(("home", "own"), [("", None), ("OWN", 0), ("OF_OTHERS", 1)])
def test_a_demand_rings_the_origin_that_it_knows(
    lib: Any, session: Made, home: str, own: int | None, sleeping: tuple[int, int], is_filling: bool
) -> None:
    """The threads that copy from sources have one bell, and the threads that copy from peers have
    another. As long as a file has no order, its home (if known) determines which of these two
    groups orders the fill. If a thread of this group sleeps, a demand rings only the group's bell;
    otherwise, it rings both bells. Once there is an order, a demand always rings both bells: the
    bytes may come from another place than the home, for example because a peer has failed."""
    session.control.block_bytes = 4 * MIB
    entry = session.entries[ENTRY]
    entry.size = 9 * UNIT
    entry.flags = getattr(native, f"MONARCH_{home}") if home else 0
    if is_filling:
        fill(session, set(), 9 * UNIT)
    for bell, n in zip(session.clients.engine, sleeping, strict=True):
        bell.sleeping = n
    lib.wait_demand_first(session.s, ENTRY, 0)
    rings_one = own is not None and sleeping[own] and not is_filling
    rings = [int(origin == own) if rings_one else 1 for origin in (0, 1)]
    assert [int(bell.rings) for bell in session.clients.engine] == rings


def test_a_read_demands_its_units_but_few_ahead(lib: Any, session: Made) -> None:
    """A read demands at most eight of the units that it needs. If the file is not being filled, the
    read demands only the first unit. When the read gives up, it withdraws the demand for the unit
    for which it waited, but not the demands for later units."""
    session.control.block_bytes = 4 * MIB
    fill(session, set(), 40 * UNIT)
    session.control.state = 2  # the daemon has closed the session, so each wait ends soon
    for at, n, units in ((UNIT, UNIT, []), (UNIT - 1, 2, [1]), (3 * UNIT, 30 * UNIT, range(4, 11))):
        assert lib.wait_demand_and_wait(session.s, ENTRY, at, n, MS) == 0
        assert demands(session) == [(ENTRY, unit) for unit in units]
        for i in range(256):
            session.clients.demand[i] = 0
    session.entries[ENTRY].word = word(WANTED)
    assert lib.wait_demand_and_wait(session.s, ENTRY, 0, 5 * UNIT, MS) == 0
    assert demands(session) == []


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_a_file_is_requested_when_its_share_was_asked_for(lib: Any, session: Made, by: int) -> None:
    """fill_after is a share of the file. The process requests a fill when it has read this
    share."""
    size = 1000 * KIB
    session.control.fill_on_open, session.control.fill_after = 1, SHARES // 4
    for entry in (ENTRY, ENTRY + 1024):  # the two files share a slot
        session.entries[entry].size = size
        first = 100 * KIB
        assert lib.request_fill(session.s, entry, first) == 0
        enough = lib.request_fill(session.s, entry, size // 4 - first + by * KIB)
        assert enough == (by >= 0)
        bit = session.clients.wanted.word[entry // 64] >> (entry % 64) & 1
        assert bit == enough
    session.control.fill_after = 0
    assert lib.request_fill(session.s, ENTRY, 0) == 1
    session.control.fill_on_open = 0
    assert lib.request_fill(session.s, ENTRY, size) == 0


def is_read(session: Made, entry: int) -> bool:
    return bool(session.clients.read.word[entry // 64] >> (entry % 64) & 1)


def test_reads_of_a_file_add_up_to_its_end(lib: Any, session: Made) -> None:
    """A file counts as read to its end when all its bytes were read. If the library will not see
    further reads (progress_unseen), an eighth of the bytes suffices. A count for another file in
    the same slot begins at 0."""
    session.control.follow_reads = 1
    for entry in (ENTRY, ENTRY + 1024, 8):
        session.entries[entry].size = 800
    assert lib.progress_add(session.s, ENTRY, 300) == 300
    assert lib.progress_add(session.s, ENTRY, 499) == 799
    assert not is_read(session, ENTRY)
    assert lib.progress_add(session.s, ENTRY, 1) == 800 == lib.progress_of(ENTRY)
    assert is_read(session, ENTRY)
    assert lib.progress_of(ENTRY + 1024) == 0
    lib.progress_begin_again(ENTRY + 1024)  # no effect: the slot belongs to another file
    assert lib.progress_of(ENTRY) == 800
    assert lib.progress_add(session.s, ENTRY + 1024, 5) == 5
    assert lib.progress_of(ENTRY) == 0
    lib.progress_begin_again(ENTRY + 1024)
    assert lib.progress_of(ENTRY + 1024) == 0
    lib.progress_unseen(session.s, 8, 99)
    assert not is_read(session, 8)
    lib.progress_unseen(session.s, 8, 1)
    assert is_read(session, 8)
    assert lib.progress_add(session.s, 8, 2**50) == 2**40 - 1  # the count does not overflow
    assert lib.progress_of(8) == 2**40 - 1
    session.control.follow_reads = 0
    session.entries[9].size = 1
    lib.progress_add(session.s, 9, 1)
    assert not is_read(session, 9)


def answers(call: Any) -> int:
    """Returns how many of 256 calls return 1. At most 255 do, because the library always returns 0
    for one of 256 calls, so that some reads are still timed."""
    return sum(call() for _ in range(256))


@pytest.mark.parametrize(
    ("open_ns", "read_ns", "is_at_hand", "is_near"),
    [(0, 0, 1, 0), (19_999, 19_999, 1, 0), (20_000, 1000, 0, 1), (1000, 20_000, 0, 1),
     (99_999, 299_999, 0, 1), (100_000, 1000, 0, 0), (1000, 300_000, 0, 0), (SECOND, SECOND, 0, 0)],
)  # fmt: skip
def test_what_a_source_is_follows_from_most_of_its_times(
    lib: Any, session: Made, open_ns: int, read_ns: int, is_at_hand: int, is_near: int
) -> None:
    """A source counts as "at hand" if most opens and most reads are as fast as in the page cache.
    It counts as "near" if they are as fast as on a local disk."""
    assert answers(lib.progress_is_at_hand) == answers(lib.progress_is_near) == 0
    for _ in range(3):
        lib.progress_took(open_ns, read_ns)
    assert answers(lib.progress_is_at_hand) == answers(lib.progress_is_near) == 0
    for _ in range(60):
        lib.progress_took(open_ns, read_ns)
    assert answers(lib.progress_is_at_hand) == 255 * is_at_hand
    assert answers(lib.progress_is_near) == 255 * is_near
    for _ in range(60):  # the source has become slow
        lib.progress_took(SECOND, SECOND)
    assert answers(lib.progress_is_at_hand) == answers(lib.progress_is_near) == 0


def test_the_latency_is_that_of_an_open_and_a_read(lib: Any, session: Made) -> None:
    """The latency is the moving mean of the durations of opens plus the moving mean of the
    durations of reads. In these means, an open or a read counts as at most one second."""
    assert lib.progress_latency() == 0
    lib.progress_took(3 * MS, 5 * MS)
    assert lib.progress_latency() == 8 * MS
    lib.progress_took(3 * MS + 800, 5 * MS + 1600)
    assert lib.progress_latency() == 8 * MS + 300
    for _ in range(100):
        lib.progress_took(50 * MS, 20 * MS)
    assert abs(lib.progress_latency() - 70 * MS) < MS
    lib.progress_forget()
    lib.progress_took(100 * SECOND, 100 * SECOND)
    assert lib.progress_latency() == 2 * SECOND
