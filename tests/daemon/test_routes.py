"""The daemon measures the rate of each place from which files can be fetched. Based on these rates,
it chooses the place from which it fetches a file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.session import wait_until

from monarch_py.config.performance import Performance
from monarch_py.daemon.nodes.remote_copies import RouteChooser
from monarch_py.daemon.nodes.throughput import LEVELS, Throughput
from monarch_py.daemon.plans.fetch_ahead import Pace
from monarch_py.daemon.plans.tracker import Found, PlanTracker
from monarch_py.native import lib
from monarch_py.peers.status import PeerStatus
from monarch_py.plan import Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import DistributedSampler
from monarch_py.policies.node import NOBODY
from monarch_py.policies.routing import SOURCES, TRY_AGAIN_S

MB = 1e6
PEER, OTHER = 1, 2
FILE = 1_000_000
HAS_IT = lib.MONARCH_HAS_IT


class Site:
    """Node 0 of three. The test sets the time and the measured rates."""

    def __init__(self, *, chooses: bool = True, performance: Performance | None = None) -> None:
        self.now = 100.0
        self.counts = np.zeros((4, 2, LEVELS), dtype=np.uint64)
        self.queue = self.at_source = 0
        self.flows = Throughput(4, self.counts.copy, performance, lambda: self.now)
        self.peer: Any = SimpleNamespace(last_failure=PeerStatus.OK)
        engine: Any = self
        peers: Any = {PEER: self.peer, OTHER: self.peer}
        self.places = RouteChooser(
            engine, self.flows, peers, chooses=chooses, clock=lambda: self.now
        )

    # The attributes and methods below replace those of the engine.
    width, block_bytes = 4, 4 << 20

    def queues(self, _: int) -> Any:
        return np.array([0, self.queue, 0], dtype=np.uint32)

    def pending(self, *, in_use: bool) -> int:
        return 0 if in_use else self.queue + self.at_source

    def measured(self, place: int, rate: float, readers: int = 1, seconds: float = 1.0) -> None:
        """Records that each of `readers` readers has received data from a place for `seconds`, at
        the rate `rate` [bytes/s]."""
        self.now += seconds
        level = readers.bit_length() - 1
        self.counts[place, 0, level] += np.uint64(rate * seconds)
        self.counts[place, 1, level] += np.uint64(1e9 * seconds)
        self.flows.look()

    def choice(self, files: int = 1, due_s: float = 0.0, size: int = FILE) -> list[int]:
        """Returns, for each of the files 0, 1, ..., the node that the file's fill asks first."""
        ids = np.arange(files, dtype=np.uint64)
        asked = np.tile(np.array([PEER, NOBODY], dtype=np.int32), (files, 1))
        sizes = np.full(files, size, dtype=np.uint64)
        self.places.choose(ids, asked, sizes, np.full(files, due_s))
        assert (asked[:, 1] == NOBODY).all()
        return [int(each) for each in asked[:, 0]]

    def has(self, files: int = 1) -> None:
        self.places.know(np.arange(files, dtype=np.uint64), np.full(files, PEER))


def slow_peer() -> Site:
    site = Site()
    site.has(100)
    site.measured(SOURCES, 100 * MB)
    site.measured(PEER + 1, 1 * MB)
    site.choice()  # This tries the slow peer, which is then not tried again for TRY_AGAIN_S.
    return site


@pytest.mark.parametrize("first", [PEER, OTHER])
def test_the_source_is_beside_whichever_of_two_holders_is_asked_first(first: int) -> None:
    """Two other nodes may hold a file: its owner, which is known to have it, and a node that may
    have it. If both are slow, the source takes the place of the node that would be asked second, no
    matter which of the two is asked first."""
    site = slow_peer()
    site.measured(OTHER + 1, 1 * MB)
    asked = np.array([[first, PEER + OTHER - first]] * 2, dtype=np.int32)
    sizes = np.full(2, FILE, dtype=np.uint64)
    site.places.choose(np.arange(2, dtype=np.uint64), asked, sizes, np.zeros(2))
    assert (asked[1] == NOBODY).all()


def test_the_faster_of_two_holders_goes_first_and_the_slower_is_tried_again() -> None:
    site = Site()
    site.has(100)
    site.measured(SOURCES, 50 * MB)
    site.measured(PEER + 1, 100 * MB)
    site.measured(OTHER + 1, 1 * MB)

    def chosen() -> list[int]:
        asked = np.array([[OTHER, PEER]], dtype=np.int32)
        sizes = np.full(1, FILE, dtype=np.uint64)
        site.places.choose(np.zeros(1, dtype=np.uint64), asked, sizes, np.zeros(1))
        return [int(node) for node in asked[0]]

    assert chosen() == [OTHER, PEER + HAS_IT]  # OTHER was never asked before, so it goes first
    assert chosen() == [PEER + HAS_IT, OTHER]
    site.now += TRY_AGAIN_S
    assert chosen() == [OTHER, PEER + HAS_IT]


@given(st.sampled_from([0.02, 1, 100]), st.integers(0, 100), st.integers(1, 4 << 20))
def test_a_file_up_to_the_sure_size_never_comes_from_the_source(
    rate_mb: float, queue: int, size: int
) -> None:
    site = Site()
    site.has()
    site.measured(SOURCES, 1e6 * MB)
    for readers in (1, 2, 4, 8, 16):
        site.measured(PEER + 1, rate_mb * MB, readers)
    site.queue = queue
    site.choice()  # This tries the node, so that the next choice need not try it.
    if size <= site.places.sure_bytes():
        assert site.choice(size=size) == [PEER + HAS_IT]
    elif size > 2 * site.places.sure_bytes() and size <= site.block_bytes:
        assert site.choice(size=size) == [NOBODY]


def test_the_sure_size_follows_what_is_measured_and_the_setting() -> None:
    site = Site()
    assert site.places.sure_bytes() > 1 << 40, "without measurements, the size must not be limited"
    site.measured(PEER + 1, 10 * MB)
    assert site.places.sure_bytes() == pytest.approx(1 * MB), (
        "the size must be the number of bytes that the node delivers within 0.1 s"
    )
    site.measured(PEER + 1, 1 * MB, seconds=100)
    assert site.places.sure_bytes() == pytest.approx(0.1 * MB)
    always = Site(chooses=False)
    always.measured(PEER + 1, 1 * MB)
    assert always.places.sure_bytes() > 1 << 40


def test_the_first_copy_is_the_owners_to_read_however_slow_it_is() -> None:
    site = Site()
    site.measured(SOURCES, 100 * MB)
    site.measured(PEER + 1, 0.01 * MB)
    assert site.choice() == [PEER]
    site.has()
    assert site.choice() == [PEER + HAS_IT], (
        "a node with a copy must be tried once, even if it is slow"
    )
    assert site.choice() == [NOBODY]
    assert site.choice(files=2) == [NOBODY, PEER], (
        "the node is known to have a copy of the first file only"
    )


def test_what_the_peer_brings_in_time_is_left_to_it() -> None:
    site = slow_peer()
    assert site.choice(due_s=0.9) == [NOBODY]
    assert site.choice(due_s=1.1) == [PEER + HAS_IT]
    assert site.choice(size=50_000) == [PEER + HAS_IT], (
        "for a small file, the slow node is fast enough"
    )


def test_ties_go_to_the_peer() -> None:
    site = Site()
    site.has()
    site.measured(SOURCES, 1.9 * MB)
    site.measured(PEER + 1, 1 * MB)
    site.choice()
    assert site.choice() == [PEER + HAS_IT]


def test_queues_count_now() -> None:
    site = Site()
    site.has(1000)
    site.measured(SOURCES, 20 * MB)
    site.measured(PEER + 1, 20 * MB)
    site.measured(PEER + 1, 20 * MB, readers=16)
    site.choice()
    assert site.choice() == [PEER + HAS_IT]
    site.queue = 100
    assert site.choice() == [NOBODY]
    site.at_source = 100
    assert site.choice() == [PEER + HAS_IT]
    # Fills whose places are chosen in the same turn of the daemon's loop slow each other down.
    site.queue = site.at_source = 0
    chosen = site.choice(files=1000)
    assert 10 < chosen.count(NOBODY) < 500
    assert site.places.chosen == chosen.count(NOBODY) + 1


def test_a_peer_that_lost_is_tried_again_and_wins_when_it_is_fast() -> None:
    site = slow_peer()
    assert site.choice(files=10) == [NOBODY] * 10
    site.now += TRY_AGAIN_S
    assert site.choice(files=3) == [PEER + HAS_IT, NOBODY, NOBODY]
    assert site.choice() == [NOBODY]
    site.measured(PEER + 1, 100 * MB, seconds=TRY_AGAIN_S)
    assert site.choice(files=3) == [PEER + HAS_IT] * 3


def test_a_source_of_which_nothing_is_known_is_tried_once_in_a_while() -> None:
    site = Site()
    site.has(3)
    site.measured(PEER + 1, 1 * MB)
    site.choice()
    assert site.choice() == [NOBODY]
    assert site.choice() == [PEER + HAS_IT]
    known = Site(performance=Performance(source=100 * MB, link=1 * MB))
    known.has(3)
    known.choice()
    assert known.choice(files=3) == [NOBODY] * 3


def test_a_peer_that_was_cut_off_may_have_lost_it() -> None:
    site = slow_peer()
    site.peer.last_failure = PeerStatus.TIMEOUT
    assert site.choice() == [NOBODY]
    site.peer.last_failure = PeerStatus.CUT
    assert site.choice() == [PEER]
    site.peer.last_failure = PeerStatus.OK
    assert site.choice() == [PEER]
    site.has()
    assert site.choice() == [NOBODY]


def test_who_wants_holders_gets_them() -> None:
    site = Site(chooses=False)
    site.has()
    site.measured(SOURCES, 100 * MB)
    site.measured(PEER + 1, 0.01 * MB)
    assert [site.choice() for _ in range(3)] == [[PEER]] * 3


# --- rates --------------------------------------------------------------------------------------

RATES = st.floats(1e4, 1e10)


@given(RATES, RATES, st.integers(1, 40))
def test_rates_follow_what_is_measured(before: float, after: float, looks: int) -> None:
    """The estimated rate approaches a new measured rate equally fast from above and from below. It
    stays between the measured rates."""
    site = Site()
    site.measured(SOURCES, before)
    for _ in range(looks):
        site.measured(SOURCES, after, seconds=0.25)
    each = site.flows.each(SOURCES, 1)
    assert each is not None
    low, high = sorted((before, after))
    assert low * 0.99 <= each <= high * 1.01
    if looks >= 30:
        assert each == pytest.approx(after, rel=0.02)


@given(st.dictionaries(st.integers(0, LEVELS - 1), RATES, min_size=1), st.integers(1, 100))
def test_rates_of_other_numbers_of_readers(seen: dict[int, float], readers: int) -> None:
    site = Site()
    for level, rate in seen.items():
        site.measured(SOURCES, rate, readers=1 << level, seconds=0.25)
    each = site.flows.each(SOURCES, readers)
    assert each is not None
    level = min(readers.bit_length() - 1, LEVELS - 1)
    below = [each for each in seen if each <= level]
    if level in seen:
        assert each == pytest.approx(seen[level], rel=0.01)
    elif below:
        assert each == pytest.approx(seen[max(below)] / 2 ** (level - max(below)), rel=0.01)
    else:
        assert each == pytest.approx(seen[min(seen)], rel=0.01)


def test_a_place_that_gives_nothing_is_slow_and_an_open_says_nothing() -> None:
    site = Site()
    site.measured(PEER + 1, 0, seconds=0.15)
    assert site.flows.each(PEER + 1, 1) is None
    site.measured(PEER + 1, 0, seconds=0.15)
    each = site.flows.each(PEER + 1, 1)
    assert each is not None
    assert each < 1e4
    # An open transfers no bytes. Its time is added to the time of the bytes that are read after it.
    site.measured(SOURCES, 0, seconds=0.1)
    site.measured(SOURCES, 10 * MB, seconds=0.1)
    assert site.flows.each(SOURCES, 1) == pytest.approx(5 * MB)


def test_what_was_seen_long_ago_of_others_does_not_count_beside_what_is_seen_now() -> None:
    site = Site()
    site.measured(SOURCES, 1 * MB, readers=2)
    assert site.flows.each(SOURCES, 2) == pytest.approx(1 * MB)
    site.measured(SOURCES, 100 * MB, seconds=5)
    assert site.flows.each(SOURCES, 2) == pytest.approx(50 * MB)


def test_pace() -> None:
    pace = Pace()
    ten = np.array([10.0])
    assert pace.seconds(ten, 0.0) == np.inf
    for turn in range(200):
        pace.note(2, turn * 0.1)
    assert pace.seconds(ten, 19.9)[0] == pytest.approx(0.5, rel=0.1)
    assert pace.seconds(ten, 25.0) == np.inf


# --- who has what -------------------------------------------------------------------------------


def test_all_nodes_are_beyond_what_anybody_used_in_the_last_run(tmp_path: Path) -> None:
    files, nodes = 400, 2
    index = Index.of("files", tmp_path, [f"{i:03}" for i in range(files)], [1] * files)
    loader = Loader(DistributedSampler(files, nodes, 5), nodes, 4, workers=1)
    plan = Plan((index,), (PlanPart("training", 0, loader),), 3, nodes)
    entries = np.arange(files, dtype=np.uint64) + 7
    with ThreadPoolExecutor(1) as executor:
        tracker = PlanTracker(tmp_path / "plan.npz", None, plan, 0, executor)
        runs = tuple(tracker.draw(number) for number in range(2))
        tracker.begin(Found(entries, np.ones(files, dtype=bool), "", runs), files + 7)

        def opens(run: int, place: int) -> list[int]:
            assert tracker.observe(entries[runs[run].units[place : place + 1]]).all()
            tracker.step()
            return [int(entry) for entry in tracker.take_used()]

        early = [opens(0, place) for place in range(len(runs[0]))]
        window = runs[1].window
        early += [opens(1, place) for place in range(window)]
        assert tracker.number == 1
        assert not any(early)
        for place in range(window, window + 40):
            opens_now = opens(1, place)
            if tracker.estimator is not None and tracker.estimator.front > window:
                break
        used = opens_now or wait_until(lambda: tracker.take_used().tolist(), what="its files")
        assert used == entries.tolist()
        assert not len(tracker.take_used())
