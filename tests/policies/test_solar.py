"""SOLAR: the order of the epochs, the choice of the node that uses a sample, the balance of the
nodes' loads, and reads of chunks.

Some tests have examples computed by hand, and others check bounds for random inputs."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies.jobs import cluster, holders, loads, order_of, shuffled, written
from support.draws import examples

from monarch_py.errors import PolicyError
from monarch_py.policies.eviction import MISS
from monarch_py.policies.solar.assignment import assign
from monarch_py.policies.solar.chunks import join
from monarch_py.policies.solar.epochs import edge_costs, lower_bound, order_epochs, path_cost
from monarch_py.policies.solar.mapping import balanced, deal
from monarch_py.policies.solar.policy import Solar, _Buffers
from monarch_py.policies.view import NO_FILE, PFS, STAGING

# Three epochs of twelve samples on one node.
A, B, C = list(range(12)), list(range(11, -1, -1)), [*range(6, 12), *range(6)]


def test_edges_by_hand() -> None:
    """The cost of two successive epochs is the number of samples that must be loaded between them:
    how many of the first 4 samples of the second epoch are not among the last 4 of the first epoch.

    The buffer has room for 4 samples. Epoch A begins with 0 1 2 3 and ends with 8 9 10 11. Epoch B
    is A reversed. Epoch C begins with 6 7 8 9 and ends with 2 3 4 5. B after A, and A after B, load
    nothing. C after A loads 6 and 7, and A after C loads 0 and 1. C after B, and B after C, load
    four samples."""
    job = written([[[A]], [[B]], [[C]]], cluster([[4]]))
    costs = edge_costs(job.orders, 3, 4, 12)
    assert costs.tolist() == [[0, 0, 2], [0, 0, 4], [2, 4, 0]]
    path = order_epochs(costs)
    assert path_cost(costs, path) == 2
    # The lower bound uses the costs of B after A and of A after B, although an order of the epochs
    # cannot have both.
    assert lower_bound(costs) == 0


def test_edges_of_shuffles_lie_where_chance_puts_them() -> None:
    """If epochs are shuffled, the cost of two successive epochs (see the test above) is random.
    Over many pairs of epochs, the mean and the standard deviation of the cost must be those that
    follow from chance.

    If the buffer has room for c of n samples, the mean is c (1 - c / n), and the standard deviation
    is c (1 - c / n) / sqrt(n)."""
    job = shuffled(4000, cluster([[1]]), epochs=40, batch=10)
    costs = edge_costs(job.orders, 40, 2000, 4000)
    edges = costs[~np.eye(40, dtype=bool)]
    assert edges.mean() == pytest.approx(1000, rel=0.005)
    assert edges.std() == pytest.approx(1000 / 4000**0.5, rel=0.1)


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**32))
def test_an_assignment_is_the_cheapest(size: int, seed: int) -> None:
    costs = np.random.default_rng(seed).integers(0, 20, (size, size)).astype(np.float64)
    columns = assign(costs)
    assert sorted(columns.tolist()) == list(range(size))
    best = min(
        sum(costs[row, column] for row, column in enumerate(each))
        for each in permutations(range(size))
    )
    assert costs[np.arange(size), columns].sum() == best


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 7), st.integers(0, 2**32))
def test_paths_are_whole_and_above_the_bound(epochs: int, seed: int) -> None:
    costs = np.random.default_rng(seed).integers(10, 100, (epochs, epochs))
    np.fill_diagonal(costs, 0)
    path = order_epochs(costs)
    assert sorted(path.tolist()) == list(range(epochs))
    best = min(path_cost(costs, np.array(each)) for each in permutations(range(epochs)))
    assert lower_bound(costs) <= best + 1e-6
    assert best <= path_cost(costs, path) <= 1.2 * best


@pytest.mark.parametrize("part", [0.25, 0.5, 0.8])
def test_the_path_is_near_its_bound(part: float) -> None:
    """SOLAR orders the epochs by a path through them. For 30 epochs of 2,000 shuffled samples, the
    path costs at most 20 % more than the lower bound."""
    job = shuffled(2000, cluster([[1]]), epochs=30, batch=10)
    costs = edge_costs(job.orders, 30, int(part * 2000), 2000)
    path = order_epochs(costs)
    assert lower_bound(costs) <= path_cost(costs, path) <= 1.2 * lower_bound(costs)
    assert path_cost(costs, path) <= path_cost(costs, np.arange(30))


def test_water_fills_alike() -> None:
    """Loads are divided as evenly as the cap of 4 samples on each node permits.

    Three nodes already have 3, 1 and 0 samples, so they can take 1, 3 and 4 more. Of 5 loads, they
    get 1, 2 and 2. Of 8 loads, they get 1, 3 and 4, which fills all nodes."""
    assert balanced(np.array([3, 1, 0]), 5, 4).tolist() == [1, 2, 2]
    assert balanced(np.array([3, 1, 0]), 8, 4).tolist() == [1, 3, 4]
    assert balanced(np.array([3, 1, 0]), 0, 4).tolist() == [0, 0, 0]
    assert balanced(np.array([0, 0]), 1, 4).sum() == 1


def test_a_step_is_dealt_by_hand() -> None:
    """A step of twelve samples is dealt to three nodes, which take at most 5 samples each.

    Node 0 holds 1 3 5 7 9 11. It takes five of these samples, and another node must load sample 11.
    Node 1 holds 2. No node holds 0 4 6 8 10. Node 0 is full, so the other nodes divide the six
    loads: node 1 loads 0 4 6, and node 2 loads 8 10 11."""
    files = np.arange(12)
    holder = np.array([PFS, 0, 1, 0, PFS, 0, PFS, 0, PFS, 0, PFS, 0])
    node, loaded = deal(files, holder, 3, 5)
    assert files[loaded].tolist() == [0, 4, 6, 8, 10, 11]
    assert node[loaded].tolist() == [1, 1, 1, 2, 2, 2]
    assert node[~loaded].tolist() == [0, 1, 0, 0, 0, 0]


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(1, 6), st.integers(1, 20), st.floats(1, 3), st.integers(0, 2**32))
def test_dealing_keeps_the_cap_and_balances(nodes: int, batch: int, cap: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    most = int(np.ceil(cap * batch))
    holder = rng.integers(PFS, nodes, nodes * batch)
    node, loaded = deal(rng.permutation(nodes * batch), holder, nodes, most)
    taken = np.bincount(node, minlength=nodes)
    counts = np.bincount(node[loaded], minlength=nodes)
    assert taken.max() <= most
    assert (node[~loaded] == holder[~loaded]).all()
    # If a node loads at least two samples fewer than another node, it has reached the cap.
    assert (taken[counts < counts.max() - 1] == most).all()


def test_reads_are_joined_by_hand() -> None:
    """Neighbouring samples of one chunk are joined into one read.

    Chunks have ten samples. Samples 3, 5 and 6 are joined into one read of four samples, of which
    sample 4 is redundant. Samples 20 and 21 are joined. Samples 9 and 10 are not joined, because
    they lie in different chunks. Sample 40 is far from all other samples."""
    reads = join(np.array([40, 5, 3, 6, 21, 20, 10, 9]), gap=1, chunk=10)
    assert reads.start.tolist() == [3, 9, 10, 20, 40]
    assert reads.count.tolist() == [4, 1, 1, 2, 1]
    assert reads.redundant.tolist() == [1, 0, 0, 0, 0]
    assert reads.read_of.tolist() == [4, 0, 0, 0, 3, 3, 2, 1]
    # If no redundant samples are allowed, sample 3 is read alone, and samples 5 and 6 are joined.
    assert join(np.array([3, 5, 6]), gap=1, chunk=10, vain=0).count.tolist() == [1, 2]


@settings(max_examples=examples(15), deadline=None)
@given(st.sets(st.integers(0, 200)), st.integers(0, 8), st.integers(1, 30))
def test_reads_bring_what_is_wanted(wanted: set[int], gap: int, chunk: int) -> None:
    samples = np.array(sorted(wanted), dtype=np.int64)
    reads = join(samples, gap, chunk)
    brought = [
        set(range(start, start + count))
        for start, count in zip(reads.start.tolist(), reads.count.tolist(), strict=True)
    ]
    assert sum(map(len, brought)) - len(wanted) == reads.redundant.sum()
    for sample, read in zip(samples.tolist(), reads.read_of.tolist(), strict=True):
        assert sample in brought[read]
    assert all(max(each) // chunk == min(each) // chunk for each in brought)


@pytest.mark.parametrize(("gap", "chunk"), [(-1, 4), (0, 0)])
def test_reads_without_sense_are_refused(gap: int, chunk: int) -> None:
    with pytest.raises(PolicyError, match="chunk"):
        Solar(gap=gap, chunk=chunk)


def test_a_cap_below_the_batch_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"solar: cap is 0\.9"):
        Solar(cap=0.9)


def test_two_epochs_by_hand() -> None:
    """Two nodes have room for 3 samples each. An epoch has two steps of six samples.

    The first epoch loads all samples. In its first step, node 0 loads 0 1 2, and node 1 loads 3 4
    5. In its second step, node 0 loads 6 7 8, and node 1 loads 9 10 11. The second epoch has the
    two steps in reverse order, so samples 6 to 11 are used sooner than samples 0 to 5. The nodes
    keep 6 to 11, and drop 0 to 5. So the second epoch finds six samples on their nodes, and loads
    six samples."""
    first, second = [[0, 2, 4], [6, 8, 10]], [[1, 3, 5], [7, 9, 11]]
    job = written([[first, second], [first[::-1], second[::-1]]], cluster([[3], [3]]))
    decision = Solar(cap=1.0)(job)
    assert order_of(job, decision, 0)[:, 0].tolist() == [[0, 1, 2], [3, 4, 5]]
    dealt = order_of(job, decision, 1)
    assert [sorted(each) for each in dealt[:, 0].tolist()] == [[6, 7, 8], [9, 10, 11]]
    assert holders(job, decision, 1).tolist() == [[0, 0, 0, PFS, PFS, PFS], [1, 1, 1] + [PFS] * 3]
    assert loads(job, decision) == [12, 6]


def used(order: npt.NDArray[Any], step: int) -> list[int]:
    flat = order[:, step].ravel()
    return sorted(flat[flat != NO_FILE].tolist())


@settings(max_examples=examples(10), deadline=None)
@given(
    nodes=st.integers(1, 4),
    part=st.floats(0.05, 1),
    cap=st.floats(1, 2),
    seed=st.integers(0, 2**32),
)
def test_the_sets_of_steps_stay(nodes: int, part: float, cap: float, seed: int) -> None:
    machine = cluster([[int(part * 120 / nodes)]] * nodes)
    job = shuffled(120, machine, epochs=3, batch=5, seed=seed)
    decision = Solar(cap=cap)(job)
    for epoch in range(3):
        given_order, dealt = job.orders(epoch), order_of(job, decision, epoch)
        for step in range(given_order.shape[1]):
            assert used(dealt, step) == used(given_order, step)
        mine = holders(job, decision, epoch)
        assert ((mine == PFS) | (mine == np.arange(nodes)[:, None])).all()


def test_what_is_read_in_vain_is_counted() -> None:
    """A read may include unwanted samples. The policy counts their bytes for each step.

    The only node keeps no samples. Chunks have twelve samples of 100 bytes, and a read may include
    one unwanted sample between two wanted samples. The first step wants 0 2 4, and also reads 1 and
    3. The second step wants 6 8 10, and also reads 7 and 9."""
    job = written([[[[0, 2, 4], [6, 8, 10], [1, 3, 11]]]], cluster([[0]]), [100] * 12)
    decision = Solar(chunk=12, gap=1, vain=1)(job)
    assert decision.served is not None
    redundant = decision.served(0, order_of(job, decision, 0)).redundant
    assert redundant is not None
    assert redundant.reshape(3, -1).sum(axis=1).tolist() == [200, 200, 100]
    # With `vain` = 1/6, one unwanted sample may be read for every six loaded samples. Each step
    # loads three samples. So only the second step may read one unwanted sample.
    frugal = Solar(chunk=12, gap=1, vain=1 / 6)(job)
    assert frugal.served is not None
    redundant = frugal.served(0, order_of(job, frugal, 0)).redundant
    assert redundant is not None
    assert redundant.reshape(3, -1).sum(axis=1).tolist() == [0, 100, 0]


def test_a_sample_that_comes_twice_in_a_step_is_held_once() -> None:
    """A file that occurs three times in a step takes the room of one file in the buffer.

    Each epoch uses file 0 three times and file 1 once. The buffer has room for two files, so the
    second epoch finds both files."""
    job = written([[[[0, 0, 0, 1]]]] * 3, cluster([[2]]))
    assert loads(job, Solar()(job)) == [4, 0, 0]


def test_reordered_epochs_are_the_same_epochs() -> None:
    job = shuffled(300, cluster([[60], [60]]), epochs=6, batch=10)
    decision = Solar(reorder=True)(job)
    given_sets = sorted(str(used(job.orders(epoch), 0)) for epoch in range(6))
    assert sorted(str(used(order_of(job, decision, epoch), 0)) for epoch in range(6)) == given_sets
    # With optimal eviction, reordering the epochs does not save any loads.
    assert loads(job, decision)[1:] == pytest.approx([180] * 5, rel=0.02)


@pytest.mark.parametrize("loaded", [True, False])
def test_what_a_load_of_its_step_has_evicted_counts_as_it_was_read(loaded: bool) -> None:
    """A sample counts as held if its node holds it at the time of its use, even if it is evicted
    later in the same step.

    File 0 occurs twice in a step. Between the two uses, the load of file 1 evicts file 0."""
    buffers = _Buffers(written([[[[0, 1]], [[2, 3]]]], cluster([[1], [1]])))
    step = {"node": np.array([0]), "loaded": np.array([True])}
    buffers.use(np.array([0]), np.array([5]), now=1, **step)
    loads = np.array([False, True, loaded])
    files, after, node = (np.array(row) for row in ([0, 1, 0], [20, 8, 20], [0, 0, 1]))
    classes, _ = buffers.use(files, after, node, loads, now=4)
    assert classes.tolist() == [1, MISS, MISS if loaded else STAGING + 1]
    assert buffers.holder[:2].tolist() == [PFS, 0]
