"""The number of reads in flight, against models of sources."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_py.daemon.width import GAIN, HOLD, LOSS, WINDOW_S, ReadsInFlight

MIB = 2**20
UNIT = 256 * 1024


def source(latency_s: float, bytes_per_s: float) -> Callable[[int], float]:
    """Width -> rate [bytes/s] of a source that needs so long for a read, and gives no more."""
    return lambda width: min(bytes_per_s, width * UNIT / latency_s)


class Clock:
    """Lets time pass at a source; remembers the widths."""

    def __init__(self, reads: ReadsInFlight) -> None:
        self.reads, self.now_s, self.bytes = reads, 0.0, 0.0
        self.widths: list[int] = []
        reads.step(0.0, 0, busy=True)

    def run(self, rate: Callable[[int], float], windows: int) -> None:
        for _ in range(windows):
            self.now_s += WINDOW_S * 1.01
            self.bytes += rate(self.reads.width) * WINDOW_S * 1.01
            self.widths.append(self.reads.step(self.now_s, int(self.bytes), busy=True))

    def usual(self) -> int:
        """The width of most of the last windows."""
        last = self.widths[-3 * HOLD :]
        return max(set(last), key=last.count)


def test_latency_is_hidden_by_many_reads() -> None:
    clock = Clock(ReadsInFlight(1, 64))
    rate = source(0.004, 1e9)  # 16 reads give it all
    clock.run(rate, 8)
    assert clock.reads.width >= 16, "not within a second"
    clock.run(rate, 10 * HOLD)
    assert clock.usual() == 16


def test_a_full_link_needs_few() -> None:
    clock = Clock(ReadsInFlight(1, 64))
    clock.run(source(0.0005, 200e6), 10 * HOLD)
    assert clock.usual() <= 2


def test_it_follows_a_source_that_changes() -> None:
    clock = Clock(ReadsInFlight(1, 64))
    clock.run(source(0.004, 1e9), 6 * HOLD)
    assert clock.usual() == 16
    clock.run(source(0.0002, 100e6), 14 * HOLD)
    assert clock.usual() <= 2
    clock.run(source(0.02, 1e9), 10 * HOLD)
    assert clock.usual() == 64


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
    rate = source(latency_s, bytes_per_s)
    clock.run(rate, 12 * HOLD)
    assert set(clock.widths) <= set(range(least, most + 1))
    # A step up is not taken for less than GAIN, one down for no more than LOSS.
    assert rate(clock.usual()) >= rate(most) * LOSS / GAIN


@pytest.mark.parametrize("busy", [True, False])
def test_a_rate_counts_only_while_reads_are_wanted(busy: bool) -> None:
    reads = ReadsInFlight(1, 64)
    for turn in range(100):
        reads.step(turn * WINDOW_S / 10, 0, busy=busy and turn % 5 < 4)
    assert reads.width == 2, "a window in which nothing was wanted has been judged"
