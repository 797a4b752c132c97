"""Tests Lobster: its preprocessing model, how it divides threads among queues, and its evictions.

The expected values are computed by hand or by brute force."""

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
    """The fit finds both lines: -2 s per thread up to 5 threads, and +0.5 s per thread from 6
    on."""
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
    """Two GPUs read batches of six files. Source 0 is the GPUs' own node, source 1 is another node,
    and source 2 is the file system."""
    sizes = np.array([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]])
    source = np.array([[0, 0, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0]], dtype=np.int8)
    amount = queue_bytes(sizes, source, 3)
    assert amount.tolist() == [[3, 3, 15], [12, 45, 0]]
    # One thread reads 3, 1.5 and 0.5 bytes/s from the three sources. The second GPU reads nothing
    # from source 2, so source 2 may have the rate 0.
    seconds = queue_seconds(amount, np.array([3, 1.5, 0.5]), most=2)
    assert seconds[0].tolist() == [1 + 2 + 30, 16.5]
    assert seconds[1].tolist() == [4 + 30, 17]
    idle = queue_seconds(amount[1:], np.array([3, 1.5, 0]), most=1)
    assert idle.tolist() == [[34]]


def test_threads_in_proportion_where_that_balances() -> None:
    """With one thread, the two queues take 12 and 6 s; with n threads, they take 1 / n of that.

    Of 3 threads, the queues get 2 and 1, and both take 6 s. Of 6 threads, they get 4 and 2, and
    both take 3 s. Of 5 threads, they get only 2 and 1: with 3 and 2, they would take 4 and 3 s,
    which is faster but less even."""
    alone = np.array([12.0, 6.0])[:, None] / np.arange(1, 7)
    assert share_threads(alone, 3).tolist() == [2, 1]
    assert share_threads(alone, 6).tolist() == [4, 2]
    assert share_threads(alone, 5).tolist() == [2, 1]


def test_more_threads_are_not_taken_where_they_slow_a_queue_down() -> None:
    seconds = np.array([[8.0, 4.0, 6.0, 9.0], [4.0, 4.0, 4.0, 4.0]])
    assert share_threads(seconds, 8).tolist() == [2, 1]


def test_every_queue_needs_a_thread() -> None:
    with pytest.raises(PolicyError, match="2 loading threads are too few for 3 queues"):
        share_threads(np.ones((3, 4)), 2)


@settings(max_examples=examples(25), deadline=None)
@given(
    queues=st.integers(1, 4), extra=st.integers(0, 12), falling=st.booleans(), seed=st.integers(0)
)
def test_sharing_is_as_even_as_brute_force(
    queues: int, extra: int, falling: bool, seed: int
) -> None:
    """For any predicted times, the difference between the largest and the smallest time of the
    queues is as small as possible.

    The queues together never get more threads than there are."""
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
    """The test applies the rules of reuse distance and reuse count to four files.

    Epochs have I = 6 iterations. Iteration 7 is the second iteration of its epoch, so h = 2, and
    the limit of the reuse distance is 2 I - h = 10 iterations. A file whose next use is iteration
    17 stays, and a file whose next use is iteration 18 is evicted. The rule of reuse distance does
    not apply to a file that is never used again. Such a file is evicted if another node has a copy.
    """
    upcoming = np.array([8, 17, 18, NEVER])
    assert too_far(upcoming, 7, 2, 6).tolist() == [False, False, True, False]
    assert no_more_use(upcoming, np.array([2, 2, 2, 2])).tolist() == [False, False, False, True]
    assert not no_more_use(upcoming, np.array([1, 1, 1, 1])).any()


EVEN, ODD = [[0], [2], [4], [6], [8], [10]], [[1], [3], [5], [7], [9], [11]]
SWAPPED = [[[1], *EVEN[1:]], [[0], *ODD[1:]]]


def test_reuse_distance_by_hand() -> None:
    """In epochs of I iterations, a file that a node uses in iteration h of an epoch is evicted if
    its next use is more than 2 I - h iterations away.

    Two nodes have room for everything. Node 0 reads the even files, and node 1 reads the odd files.
    The third epoch is an exception: node 0 reads file 1, and node 1 reads file 0. Node 0 uses file
    0 in the first iteration of the second epoch (h = 1, I = 6). Its next use of the file is 12
    iterations away, and the limit is 11 iterations, so it evicts the file. In the same way, node 1
    evicts file 1. In the third epoch, each node loads the file that the other node evicted. Each
    node keeps the copy that it loaded, because there is no other copy of this file. The fourth
    epoch reads both files from these copies."""
    job = written([[EVEN, ODD], [EVEN, ODD], SWAPPED, [EVEN, ODD]], cluster([[12], [12]]))
    evictions = Evictions()
    decision = lobster(job, evictions)
    assert loads(job, decision) == [12, 0, 2, 0]
    assert holders(job, decision, 2)[:, 0].tolist() == [PFS, PFS]
    assert holders(job, decision, 3)[:, 0].tolist() == [1, 0]
    assert evictions.reuse_distance == 2
    assert evictions.prefetch == 0


def test_reuse_count_by_hand() -> None:
    """A file that is never used again on its node is evicted if another node has a copy.

    In the first two epochs, node 0 reads file 0 and node 1 reads file 1; later, node 1 reads file 0
    and node 0 reads file 1. After its last use of file 0, node 0 keeps the file, because this is
    the only copy. In the third epoch, node 1 reads file 0 from node 0, and makes a copy. In the
    fourth epoch, node 1 uses file 0 for the last time, and evicts its copy, because node 0 has one
    too. The same happens with file 1 in the other direction. No file is loaded twice, and no other
    copy is evicted."""
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
    """On one node, only the prefetching rule evicts. If the dataset has D files and the cache has
    room for C of them, each epoch but the first loads D - C files.

    Every file is used in every epoch, so no reuse distance goes beyond the next epoch. No other
    node has a copy, so the rule of reuse count never applies."""
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
    # The nodes together have room for 400 of the 480 files.
    assert all(count >= 480 - 400 for count in counts)


def test_threads_go_where_more_is_to_be_loaded() -> None:
    """A node without copies has two ranks and six threads. In a step, each rank reads one sample.

    In the first step, rank 0 reads 20 bytes and gets four threads; rank 1 reads 10 bytes and gets
    two threads. In the second step, both ranks read 10 bytes, and get three threads each."""
    job = written([[[[0, 1], [2, 3]]]], cluster([[0]], ranks=2, threads=[6, 1]), [20, 10, 10, 10])
    decision = lobster(job)
    assert decision.threads is not None
    assert decision.threads(0, job.orders(0)).tolist() == [[[4, 2], [3, 3]]]


def test_threads_go_where_what_is_loaded_lies_far_away() -> None:
    """A rank that reads from the file system gets more threads than a rank that reads locally.

    The node has room for one of two files of 10 bytes. In the second epoch, rank 0 finds its file
    on the node, and rank 1 reads its file from the file system. Local reads are ten times as fast,
    and preprocessing takes no time."""
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
