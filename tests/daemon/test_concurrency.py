"""Tests how the daemon decides how many fills may be in flight. This number of fills is called the
width. The tests use models of sources."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_py.daemon.copies.concurrency import (
    FIRST,
    GAIN,
    HOLD,
    LATE,
    LOSS,
    MEMORY_S,
    SOME_OPENS,
    WINDOW_S,
    Counted,
    Delay,
    ReadsInFlight,
)

MIB = 2**20
UNIT = 256 * 1024


@dataclass
class Source:
    """A model of a source. It serves `slots` requests at a time, and each request takes
    `latency_s`. All requests together transfer at most `bytes_per_s`.

    size : the size of each file [bytes]
    readers : the number of programs' threads, each of which opens one file after the other
    """

    latency_s: float
    bytes_per_s: float = 1e12
    size: int = UNIT
    slots: int = 10**6
    readers: int = 0

    def request_s(self, width: int) -> float:
        """How long one request takes while `width` fills are in flight [s]."""
        return self.latency_s * max(1.0, (width + self.readers) / self.slots)

    def rate(self, width: int) -> float:
        """The rate of all fills together [bytes/s]."""
        return min(self.bytes_per_s, width * self.size / self.request_s(width))

    def opens_per_s(self, width: int) -> float:
        return self.readers / self.request_s(width)


class Clock:
    """Simulates how time passes at a source. After each window of time, records how many fills may
    be in flight."""

    def __init__(self, reads: ReadsInFlight) -> None:
        self.reads, self.now_s = reads, 0.0
        self.n_bytes = self.files = self.opens = self.open_s = 0.0
        self.widths: list[int] = []
        reads.step(0.0, Counted(), is_full=True)

    def run(self, source: Source, windows: int, *, is_full: bool = True) -> None:
        for _ in range(windows):
            width, seconds = self.reads.width, WINDOW_S * 1.01
            self.now_s += seconds
            if is_full:
                self.n_bytes += source.rate(width) * seconds
                self.files += source.rate(width) * seconds / source.size
            opens = source.opens_per_s(width) * seconds
            self.opens += opens
            self.open_s += opens * source.request_s(width)
            counted = Counted(int(self.n_bytes), int(self.files), int(self.opens), self.open_s)
            self.widths.append(self.reads.step(self.now_s, counted, is_full=is_full))

    def usual(self, windows: int = 3 * HOLD) -> int:
        """The most frequent number of fills in flight in the last `windows` windows."""
        last = self.widths[-windows:]
        return max(set(last), key=last.count)


def test_a_source_of_high_latency_gets_all_within_half_a_second() -> None:
    clock = Clock(ReadsInFlight(4, 64))
    clock.run(Source(0.012, size=16 * 1024), 5)
    assert clock.widths[:4] == [2 * FIRST, 4 * FIRST, 8 * FIRST, 8 * FIRST]


@pytest.mark.parametrize("size", [4096, 128 * 1024])
def test_chance_does_not_keep_it_low(size: int) -> None:
    """The number of fills in flight soon reaches its maximum, although the number of fills that end
    in a window varies at random."""
    soon = []
    for seed in range(200):
        chance = random.Random(seed)
        reads, source, now_s, files = ReadsInFlight(4, 64), Source(0.016, size=size), 0.0, 0
        reads.step(0.0, Counted(), is_full=True)
        while reads.width < 64 and now_s < 10:
            now_s += WINDOW_S * 1.01
            expected = source.rate(reads.width) / size * WINDOW_S
            files += max(0, round(chance.gauss(expected, expected**0.5)))
            reads.step(now_s, Counted(files * size, files), is_full=True)
        soon.append(now_s)
    assert sorted(soon)[180] < 1.5, "more than one run in ten takes too long"
    assert max(soon) < 4


def test_a_busy_machine_is_not_taken_for_a_crowded_source() -> None:
    """On a busy machine, every open takes longer, however few fills are in flight. So the daemon
    must not lower the number of fills."""
    clock = Clock(ReadsInFlight(4, 64))
    clock.run(Source(0.004, size=16 * 1024, readers=8), HOLD)
    assert clock.reads.width == 64
    clock.run(Source(0.008, size=16 * 1024, readers=8), 20 * HOLD)
    assert clock.usual(19 * HOLD) == 64


def test_latency_is_hidden_by_many_reads() -> None:
    clock = Clock(ReadsInFlight(1, 64))
    clock.run(Source(0.004, 1e9), 10 * HOLD)  # 16 reads in flight reach the full rate
    assert clock.usual() == 16


def test_a_full_link_needs_few() -> None:
    clock = Clock(ReadsInFlight(1, 64))
    clock.run(Source(0.0005, 200e6), 10 * HOLD)
    assert clock.usual() <= 2


def test_it_follows_a_source_that_changes() -> None:
    clock = Clock(ReadsInFlight(1, 64))
    clock.run(Source(0.004, 1e9), 6 * HOLD)
    assert clock.usual() == 16
    clock.run(Source(0.0002, 100e6), 14 * HOLD)
    assert clock.usual() <= 2
    clock.run(Source(0.02, 1e9), 10 * HOLD)
    assert clock.usual() == 64


@pytest.mark.parametrize(("before", "after"), [(4096, MIB), (MIB, 4096)])
def test_other_files_are_no_gain(before: int, after: int) -> None:
    """If the files' sizes change from one window to the next, the number of fills in flight is not
    raised. Larger files bring more bytes per window, and smaller files bring more files, but
    neither shows that more fills would help."""
    reads = ReadsInFlight(4, 64)
    bytes_per_s, n_bytes, files = 200e6, 0.0, 0.0
    reads.step(0.0, Counted(), is_full=True)
    for window, size in enumerate([before, after, after]):
        # For each file, the source takes 50 us plus the time to transfer the bytes.
        per_s = 1 / (size / bytes_per_s + 50e-6)
        files += per_s * WINDOW_S
        n_bytes += per_s * WINDOW_S * size
        reads.step((window + 1) * WINDOW_S * 1.001, Counted(int(n_bytes), int(files)), is_full=True)
    assert reads.width == FIRST


@given(
    bounds=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    latency_s=st.floats(1e-4, 0.1),
    bytes_per_s=st.floats(1e6, 1e10),
)
def test_it_stays_within_its_bounds_and_near_the_best(
    bounds: tuple[int, int], latency_s: float, bytes_per_s: float
) -> None:
    least, most = sorted(bounds)
    clock = Clock(ReadsInFlight(least, most))
    source = Source(latency_s, bytes_per_s)
    clock.run(source, 12 * HOLD)
    assert set(clock.widths) <= set(range(least, most + 1))
    # The width is the number of fills in flight. It stays raised only if the rate grows by more
    # than the factor GAIN. It stays lowered only if the rate stays above LOSS times its earlier
    # value.
    assert source.rate(clock.usual()) >= source.rate(most) * LOSS / GAIN


def test_a_rate_counts_only_while_more_is_wanted() -> None:
    """A window of time counts only if, throughout the window, more fills were wanted than were in
    flight. Otherwise a larger number of fills in flight would have gained nothing."""
    reads = ReadsInFlight(1, 64)
    for turn in range(100):
        reads.step(turn * WINDOW_S / 10, Counted(), is_full=turn % 5 < 4)
    assert reads.width == FIRST, "the width was changed, although no window of time counts"


def test_a_trial_that_nobody_filled_is_made_again() -> None:
    clock, source = Clock(ReadsInFlight(4, 64)), Source(0.012)
    clock.run(source, 1)
    assert clock.reads.width == 2 * FIRST
    clock.run(source, 3, is_full=False)
    assert clock.reads.width == FIRST
    clock.run(source, 4)
    assert clock.reads.width == 8 * FIRST


# --- programs that wait --------------------------------------------------------------------------


@pytest.mark.parametrize("readers", [1, 8, 64])
def test_who_has_slots_enough_keeps_no_program_waiting(readers: int) -> None:
    clock = Clock(ReadsInFlight(4, 64))
    clock.run(Source(0.004, 1e9, size=16 * 1024, readers=readers), 10 * HOLD)
    assert clock.usual() == 64


@pytest.mark.parametrize(("slots", "readers"), [(8, 2), (12, 8), (12, 1), (64, 8)])
def test_programs_wait_little_longer_where_slots_are_few(slots: int, readers: int) -> None:
    """The source has few slots, and each further fill takes a slot from the programs. So the daemon
    must not allow 64 fills, even if the rate is highest with 64 fills."""
    source = Source(0.004, size=16 * 1024, slots=slots, readers=readers)
    clock = Clock(ReadsInFlight(4, 64))
    clock.run(source, 10 * HOLD)
    waited = sorted(map(source.request_s, clock.widths))
    least_s = min(waited)
    assert waited[len(waited) // 2] <= LATE * least_s
    assert min(clock.widths) >= 4
    # The fills get at least half of the slots.
    assert clock.usual(10 * HOLD) >= min(64, slots // 2)


def test_what_programs_make_each_other_wait_is_their_least() -> None:
    """Programs read from a source that serves one request at a time, so they make each other wait.
    To find the cause of the waits, the daemon lowers the number of fills in flight to its
    minimum. The programs wait as long as before, so the daemon raises the number again."""
    clock = Clock(ReadsInFlight(4, 16))
    clock.run(Source(0.001, size=4096, slots=1, readers=1), 2 * HOLD)
    crowd = Source(0.001, size=4096, slots=1, readers=40)
    clock.run(crowd, HOLD)
    assert 4 in clock.widths[-HOLD:], "the width was not lowered to find the cause of the waits"
    clock.run(crowd, 20 * HOLD)
    assert max(clock.widths[-10 * HOLD :]) > 4, "the width is never raised again"


def test_opens_are_judged_by_their_least_of_the_last_minute() -> None:
    delay, now_s, opens, open_s = Delay(), 0.0, 0, 0.0

    def open_some(mean_s: float, seconds: float) -> list[bool]:
        nonlocal now_s, opens, open_s
        late = []
        for _ in range(round(seconds / WINDOW_S)):
            now_s, opens, open_s = now_s + WINDOW_S, opens + 100, open_s + 100 * mean_s
            late.append(delay.is_late(now_s, opens, open_s))
        return late

    assert not any(open_some(0.004, 5))
    assert not any(open_some(0.004 * LATE * 0.99, 5))
    assert all(open_some(0.004 * LATE * 1.01, 5))
    assert all(open_some(0.008, MEMORY_S - 12))
    assert not any(open_some(0.008, 15)[-10:]), "opens of a minute ago still count"


def test_a_few_opens_say_nothing_until_they_are_more() -> None:
    delay = Delay()
    assert not delay.is_late(0.1, SOME_OPENS, SOME_OPENS * 0.001)
    assert not delay.is_late(0.2, 2 * SOME_OPENS - 1, SOME_OPENS * 1.0)
    assert delay.is_late(0.3, 2 * SOME_OPENS, SOME_OPENS * 1.1)


def test_one_that_takes_long_is_no_reason_to_go_below_the_fewest() -> None:
    reads = ReadsInFlight(4, 64)
    for window in range(30):
        opens, mean_s = 100 * window, 0.001 * 2**window
        reads.step(window * WINDOW_S * 1.01, Counted(0, 0, opens, opens * mean_s), is_full=True)
        assert reads.width >= 4
    assert reads.width == 4
