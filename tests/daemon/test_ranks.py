"""How the engine's thread time is divided among the ranks of a node. A rank's share depends on the
number of bytes for which the rank has found no copies, or on what the plan predicts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

from monarch_py.daemon.copies.ranks import (
    LEAST_LOAD,
    MEMORY_S,
    MOST_SEARCHED,
    SLICES,
    WINDOW_S,
    Ranks,
    shares_of,
)
from monarch_py.daemon.plans.tracker import Found, PlanTracker
from monarch_py.native import ffi, lib
from monarch_py.plan import Loader, Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.samplers import DistributedSampler

MIB = 1 << 20
LOADS = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1e9)), min_size=1, max_size=MOST_SEARCHED + 3
)

# --- shares -----------------------------------------------------------------------------------


@settings(max_examples=examples(50), deadline=None)
@given(LOADS)
def test_nobody_is_left_out_and_no_slice_is_given_twice(loads: list[float]) -> None:
    shares = shares_of(np.array(loads))
    assert shares.min() / shares.mean() >= LEAST_LOAD / 2
    assert shares.min() >= 1
    # The shares of up to MOST_SEARCHED ranks add up to at most SLICES per rank. With more ranks,
    # each share is rounded and is at least 1, which may add as much as 1.5 slices per rank.
    spare = 0 if len(loads) <= MOST_SEARCHED else len(loads) * 1.5
    assert shares.sum() <= SLICES * len(loads) + spare
    for a, b in zip(shares[np.argsort(loads)], shares[np.argsort(loads)][1:], strict=False):
        assert a <= b, "a rank that loads more has a smaller share"


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.floats(0.05, 1), min_size=2, max_size=MOST_SEARCHED))
def test_the_slowest_rank_is_no_further_from_the_others_than_with_equal_shares(
    misses: list[float],
) -> None:
    loads = np.maximum(misses, LEAST_LOAD * np.mean(misses))
    seconds = loads / shares_of(loads)
    assert np.ptp(seconds) <= np.ptp(loads / SLICES) * 1.000001
    # A rank's share is rounded to a whole number of slices, and there are only eight slices per
    # rank. Because of the rounding, the slowest rank may take up to 1.4 times the mean time.
    assert seconds.max() / seconds.mean() <= 1.4


def test_shares_worked_out_by_hand() -> None:
    assert shares_of(np.array([0.2, 0.4, 0.6, 0.8])).tolist() in (
        [1, 2, 3, 4],
        [2, 4, 6, 8],
        [3, 6, 9, 12],
    )
    assert shares_of(np.zeros(3)).tolist() == [1, 1, 1]
    # A load counts as at least a quarter of the mean load. Here the mean load is 2.5, so the load 0
    # counts as 0.625.
    assert shares_of(np.array([0.0, 5.0])).tolist() == [1, 8]
    assert len(set(shares_of(np.full(MOST_SEARCHED + 1, 3.0)).tolist())) == 1


# --- who is told --------------------------------------------------------------------------------


@dataclass
class Node:
    """The ranks of a node. The test sets the clock and the ranks' counters."""

    is_on: bool = True
    now: float = 100.0
    told: list[dict[int, int]] = field(default_factory=list)
    plan: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        self.clients: Any = ffi.new("struct monarch_clients *")
        node: Any = self
        self.ranks = Ranks(node, node, is_on=self.is_on, clock=lambda: self.now)

    def share(self, shares: npt.NDArray[np.uint32]) -> None:
        self.told.append({rank: int(n) for rank, n in enumerate(shares) if n})

    def read(self, rank: int, opened: int, missed: int) -> None:
        self.clients.rank[rank].opened_bytes += opened * MIB
        self.clients.rank[rank].missed_bytes += missed * MIB

    def step(self, seconds: float = WINDOW_S) -> None:
        self.now += seconds
        self.ranks.step(lambda: self.plan)

    @property
    def share_of(self) -> dict[int, float]:
        return {each["rank"]: each["share"] for each in self.ranks.told()}


def test_who_misses_more_has_more_turns() -> None:
    node = Node()
    for _ in range(3):
        for rank in range(1, 5):
            node.read(rank, 10, 2 * rank)
        node.step()
    assert node.share_of == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4})
    # The engine is told the ranks' shares only when a share has changed. In this test, it is told
    # only once. A rank that has read nothing gets the mean of the shares of the ranks that have
    # read something.
    (shares,) = node.told
    assert set(shares) == set(range(1, lib.MONARCH_RANKS))
    assert shares[5] == round(np.mean([shares[rank] for rank in range(1, 5)]))


def test_one_rank_has_nobody_to_share_with() -> None:
    node = Node()
    for _ in range(5):
        node.read(1, 10, 9)
        node.step()
    assert not node.told


def test_switched_off() -> None:
    node = Node(is_on=False)
    for rank in (1, 2):
        node.read(rank, 10, rank)
    node.step()
    assert not node.told


def test_ranks_that_miss_alike_have_as_many_turns() -> None:
    node = Node()
    for rank in (1, 2, 3):
        node.read(rank, 10 * rank, 5 * rank)
    node.step()
    assert len(set(node.told[0].values())) == 1


def test_what_was_missed_long_ago_is_forgotten() -> None:
    node = Node()
    node.read(1, 10, 9)
    node.read(2, 10, 1)
    node.step()
    assert node.share_of[0] > 0.8
    for _ in range(round(4 * MEMORY_S / WINDOW_S)):
        node.read(1, 10, 1)
        node.read(2, 10, 9)
        node.step()
    assert node.share_of[0] < 0.2
    # A rank that opens nothing any more loses its share.
    for _ in range(60):
        node.read(1, 10, 1)
        node.step(MEMORY_S)
    assert node.told[-1] == {}
    assert node.share_of == {0: 0, 1: 0}


def test_a_plan_knows_better() -> None:
    node = Node(plan=np.array([3.0, 1.0]) * MIB)
    node.read(1, 10, 1)
    node.read(2, 10, 9)
    node.step()
    assert node.share_of == pytest.approx({0: 0.75, 1: 0.25})
    # The plan predicts nothing for the rank whose counters change here.
    node.read(3, 10, 5)
    node.step()
    assert node.share_of[1] > node.share_of[2] > node.share_of[0]


def test_counters_that_a_client_has_spoiled() -> None:
    node = Node()
    node.clients.rank[1].opened_bytes = 2**64 - 1
    node.clients.rank[2].missed_bytes = 2**64 - 1
    node.read(2, 1, 0)
    node.read(3, 10, 20)
    node.step()
    node.clients.rank[1].opened_bytes = 5
    node.step()
    assert min(node.told[-1].values()) >= 1


# --- what a plan predicts -------------------------------------------------------------------------


@pytest.mark.parametrize("node", [0, 1])
def test_what_each_rank_needs_next(node: int, tmp_path: Path) -> None:
    """Two nodes have three ranks each. DistributedSampler deals the files to the ranks in
    rotation."""
    files, ranks, epochs = 601, 6, 2
    sampler = DistributedSampler(files, ranks, seed=4)
    index = Index.of("files", tmp_path, [f"{n:04d}" for n in range(files)], [1] * files)
    parts = (PlanPart("training", 0, Loader(sampler, ranks, 4, workers=2)),)
    plan = Plan((index,), parts, epochs, 2)
    with ThreadPoolExecutor(1) as executor:
        tracker = PlanTracker(tmp_path / "plan.npz", None, plan, node, executor)
        # The numbers of the files in the catalog (`entries`) differ from those in the plan.
        entries = np.arange(files, dtype=np.uint64)[::-1] + np.uint64(7)
        tracker.begin(
            Found(entries, np.ones(files, dtype=bool), "", (tracker.draw(0), tracker.draw(1))),
            files + 7,
        )
    order = sampler.epoch(0)
    ids, rank = tracker.due()
    own = {int(entries[file]): n % ranks - 3 * node for n, file in enumerate(order[:files])}
    assert tracker.estimator is not None
    assert len(ids) == tracker.estimator.run.window
    assert [own[entry] for entry in ids.tolist()] == rank.tolist()
    assert set(rank.tolist()) == {0, 1, 2}
    # Once files are used, `due` no longer returns them.
    tracker.observe(ids[:5])
    later, _ = tracker.due()
    assert not np.isin(ids[:5], later).any()
