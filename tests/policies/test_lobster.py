"""Lobster: the model of preprocessing, threads of queues, eviction; by hand and by brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies.jobs import cluster, holders, loads, shuffled, written
from support.draws import examples

from monarch_py.errors import PolicyError
from monarch_py.plan.access import NEVER
from monarch_py.policies.lobster.policy import Evictions, lobster, no_more_use, too_far
from monarch_py.policies.lobster.preprocessing import PiecewiseLinear
from monarch_py.policies.lobster.queues import queue_bytes, queue_seconds, share_threads
from monarch_py.policies.view import PFS


def test_two_lines_are_found_where_they_meet() -> None:
    """Seconds fall by 2 a thread up to 5 threads, and rise by 0.5 from 6 on."""
    threads = np.arange(1, 13)
    seconds = np.where(threads <= 5, 20 - 2 * threads, 7 + 0.5 * threads)
    model = PiecewiseLinear.fit(threads, seconds, pieces=2)
    assert model.starts.tolist() == [1, 6]
    assert model.slope.tolist() == pytest.approx([-2, 0.5])
    assert model(threads).tolist() == pytest.approx(seconds.tolist())


def test_a_line_is_not_cut_and_never_negative() -> None:
    model = PiecewiseLinear.fit([1, 2, 3, 4, 5], [10, 8, 6, 4, 2], pieces=3)
    assert len(model.starts) == 1
    assert model([6, 7]).tolist() == pytest.approx([0, 0])


def test_one_measurement_is_a_constant() -> None:
    assert PiecewiseLinear.fit([4, 4], [2.0, 4.0], pieces=2)([1, 9]).tolist() == [3, 3]


@pytest.mark.parametrize(("x", "y", "pieces"), [([], [], 1), ([1], [1, 2], 1), ([1], [1], 0)])
def test_a_model_of_nothing_is_refused(x: list[int], y: list[int], pieces: int) -> None:
    with pytest.raises(PolicyError, match="preprocess"):
        PiecewiseLinear.fit(x, y, pieces)


def test_what_queues_load() -> None:
    """Two GPUs with batches of six, from local (0), remote (1) and file system (2)."""
    sizes = np.array([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]])
    source = np.array([[0, 0, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0]], dtype=np.int8)
    amount = queue_bytes(sizes, source, 3)
    assert amount.tolist() == [[3, 3, 15], [12, 45, 0]]
    # 3, 1.5 and 0.5 bytes/s a thread; a source that is not used may have no rate.
    seconds = queue_seconds(amount, np.array([3, 1.5, 0.5]), most=2)
    assert seconds[0].tolist() == [1 + 2 + 30, 16.5]
    assert seconds[1].tolist() == [4 + 30, 17]
    idle = queue_seconds(amount[1:], np.array([3, 1.5, 0]), most=1)
    assert idle.tolist() == [[34]]


def test_threads_in_proportion_where_that_balances() -> None:
    """12 and 6 s with one thread, time falls as 1 / threads. With 3 threads: 2 and 1, both 6 s.
    With 6: 4 and 2, both 3 s, as even and faster. With 5 there are 2 and 1 again: 3 and 2 would end
    after 4 and 3 s."""
    alone = np.array([12.0, 6.0])[:, None] / np.arange(1, 7)
    assert share_threads(alone, 3).tolist() == [2, 1]
    assert share_threads(alone, 6).tolist() == [4, 2]
    assert share_threads(alone, 5).tolist() == [2, 1]


def test_more_threads_are_not_taken_where_they_slow_a_queue_down() -> None:
    seconds = np.array([[8.0, 4.0, 6.0, 9.0], [4.0, 4.0, 4.0, 4.0]])
    assert share_threads(seconds, 8).tolist() == [2, 1]


def test_every_queue_needs_a_thread() -> None:
    with pytest.raises(PolicyError, match="2 loading threads for 3 queues"):
        share_threads(np.ones((3, 4)), 2)


@settings(max_examples=examples(25), deadline=None)
@given(
    queues=st.integers(1, 4), extra=st.integers(0, 12), falling=st.booleans(), seed=st.integers(0)
)
def test_sharing_is_as_even_as_brute_force(
    queues: int, extra: int, falling: bool, seed: int
) -> None:
    """Whatever the times: the gap between first and last is the least there is, within the sum."""
    rng = np.random.default_rng(seed)
    total = min(16, queues + extra)
    seconds = rng.uniform(1, 20, (queues, total))
    if falling:
        seconds = np.sort(seconds, axis=1)[:, ::-1]
    share = share_threads(seconds, total)
    taken = seconds[np.arange(queues), share - 1]
    assert share.sum() <= total
    best = min(
        np.ptp(seconds[np.arange(queues), np.array(each)])
        for each in product(range(total - queues + 1), repeat=queues)
        if sum(each) + queues <= total
    )
    assert np.ptp(taken) == pytest.approx(best)


def test_the_first_two_rules() -> None:
    """Epochs of I = 6 iterations; at the second one of an epoch, number 7 in all, 2 I - h = 10:
    what is used by 17, the end of the next epoch, stays, what is used at 18 goes. What is never
    used again goes where somebody else has it; it is not rule 2's."""
    upcoming = np.array([8, 17, 18, NEVER])
    assert too_far(upcoming, 7, 2, 6).tolist() == [False, False, True, False]
    assert no_more_use(upcoming, np.array([2, 2, 2, 2])).tolist() == [False, False, False, True]
    assert not no_more_use(upcoming, np.array([1, 1, 1, 1])).any()


EVEN, ODD = [[0], [2], [4], [6], [8], [10]], [[1], [3], [5], [7], [9], [11]]
SWAPPED = [[[1], *EVEN[1:]], [[0], *ODD[1:]]]


def test_reuse_distance_by_hand() -> None:
    """Two nodes with room for all. Node 0 has the even files, node 1 the odd ones, but in the third
    epoch 0 and 1 change places. In the second epoch (h = 1 of I = 6), node 0 uses 0 again 12
    iterations later, more than 2 I - h = 11: it goes, and so does 1 on node 1. In the third epoch
    both are loaded by the other node; that is its last use there, but nobody else has them, so they
    stay, and the fourth epoch reads them from there."""
    job = written([[EVEN, ODD], [EVEN, ODD], SWAPPED, [EVEN, ODD]], cluster([[12], [12]]))
    evictions = Evictions()
    decision = lobster(job, evictions)
    assert loads(job, decision) == [12, 0, 2, 0]
    assert holders(job, decision, 2)[:, 0].tolist() == [PFS, PFS]
    assert holders(job, decision, 3)[:, 0].tolist() == [1, 0]
    assert evictions.reuse_distance == 2
    assert evictions.prefetch == 0


def test_reuse_count_by_hand() -> None:
    """From the third epoch on 0 and 1 have changed places for good. In the second one, node 0 uses
    0 for the last time, but it is the only copy, so it stays. In the third node 1 reads it from
    there and keeps it for the fourth; after that it is used no more, node 0 still has it: it goes
    from node 1. The same with 1. Nothing is ever loaded twice, nothing else goes."""
    job = written([[EVEN, ODD], [EVEN, ODD], SWAPPED, SWAPPED], cluster([[12], [12]]))
    evictions = Evictions()
    decision = lobster(job, evictions)
    assert loads(job, decision) == [12, 0, 0, 0]
    assert holders(job, decision, 2)[:, 0].tolist() == [1, 0]
    assert holders(job, decision, 3)[:, 0].tolist() == [0, 1]
    assert (evictions.reuse_count, evictions.reuse_distance) == (2, 0)
    assert evictions.prefetch == 0


@pytest.mark.parametrize("part", [0.25, 0.5, 0.8])
def test_on_one_node_only_prefetching_evicts(part: float) -> None:
    """Every file is used in every epoch: no distance is beyond the next one, and nobody else has a
    copy. The third rule alone then loads D - C."""
    job = shuffled(400, cluster([[int(400 * part)]]), epochs=4, batch=8)
    evictions = Evictions()
    counts = loads(job, lobster(job, evictions))
    assert (evictions.reuse_count, evictions.reuse_distance) == (0, 0)
    assert evictions.prefetch > 0
    assert counts[1:] == [400 - int(400 * part)] * 3


def test_on_several_nodes_all_three_act() -> None:
    job = shuffled(480, cluster([[100]] * 4), epochs=6, batch=4)
    evictions = Evictions()
    decision = lobster(job, evictions)
    counts = loads(job, decision)
    assert min(evictions.reuse_count, evictions.reuse_distance) > 0
    assert evictions.prefetch > 0
    # No node can serve what no node holds.
    assert all(count >= 480 - 400 for count in counts)


def test_threads_go_where_more_is_to_be_loaded() -> None:
    """A node with two ranks and six threads, two steps of a sample each, of which nothing is held.
    In the first step rank 0 has 20 bytes and rank 1 has 10: four threads and two take equally long.
    In the second both have 10: three and three."""
    job = written([[[[0, 1], [2, 3]]]], cluster([[0]], ranks=2, threads=[6, 1]), [20, 10, 10, 10])
    decision = lobster(job)
    assert decision.threads is not None
    assert decision.threads(0, job.orders(0)).tolist() == [[[4, 2], [3, 3]]]


def test_threads_go_where_what_is_loaded_lies_far_away() -> None:
    """Rank 0 has its sample on the node from the second epoch on, rank 1 never: the node has room
    for one of its two files of 10 bytes. Local bytes come ten times as fast, and samples are
    prepared in no time: rank 1 gets all threads but one."""
    machine = cluster(
        [[10]], ranks=2, threads=[12, 12], read_rate=1000, pfs=lambda clients: 100, preprocess=1e15
    )
    job = written([[[[0, 1]]], [[[0, 1]]]], machine, [10, 10])
    decision = lobster(job)
    assert decision.threads is not None
    first, second = (decision.threads(epoch, job.orders(epoch))[0, 0] for epoch in (0, 1))
    assert first.tolist() == [6, 6]
    assert second.tolist() == [1, 10]


def test_where_every_rank_has_one_thread_there_is_nothing_to_share() -> None:
    job = shuffled(48, cluster([[4]] * 3, ranks=(2, 1, 2), threads=[2, 1]), epochs=1, batch=4)
    decision = lobster(job)
    assert decision.threads is not None
    assert decision.threads(0, job.orders(0)).tolist() == np.ones((3, 4, 2)).tolist()
