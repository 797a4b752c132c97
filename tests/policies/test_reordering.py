"""Baselines that change which node uses which sample: examples computed by hand, and properties
that hold for all orders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies.jobs import cluster, held_by, shuffled, written
from support.draws import examples

from monarch_py.errors import PolicyError
from monarch_py.policies.reordering import (
    deepio_opportunistic,
    exchange,
    locality_aware,
    parallel_staging,
)
from monarch_py.policies.view import PFS, Policy

ORDERS = [[[[0, 7, 8], [1, 2, 3]], [[9, 4, 10], [5, 6, 11]]]]


def test_locality_aware_exchanges_within_a_step() -> None:
    """Nodes exchange samples within a step, so that as many samples as possible are read by nodes
    that hold them.

    Node 0 holds samples 0 to 5, and node 1 holds samples 6 to 11. Each node takes three samples in
    a step. Step 0 has samples 0 4 7 8 9 10: node 0 gets 0 and 4, node 1 gets three of the four
    samples that it holds (7 8 9), and the rest (10) goes to node 0. Step 1 has samples 1 2 3 5 6
    11: node 0 gets three of the four samples that it holds (1 2 3), and node 1 gets 5, 6 and 11."""
    job = written(ORDERS, cluster([[6], [6]]))
    decision = locality_aware(job)
    assert decision.orders is not None
    dealt = decision.orders(0)
    assert [sorted(step) for step in dealt[0].tolist()] == [[0, 4, 10], [1, 2, 3]]
    assert [sorted(step) for step in dealt[1].tolist()] == [[7, 8, 9], [5, 6, 11]]
    assert decision.remote


@settings(max_examples=examples(20))
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32))
def test_an_exchange_keeps_steps_and_moves_as_few_as_it_can(
    nodes: int, steps: int, batch: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    order = rng.permutation(nodes * steps * batch).reshape(nodes, steps, batch).astype(np.int32)
    holder = rng.integers(PFS, nodes, order.size)
    dealt = exchange(order, holder[order])
    for step in range(steps):
        assert sorted(dealt[:, step].ravel()) == sorted(order[:, step].ravel())
        owned = holder[order[:, step]].ravel()
        for node in range(nodes):
            local = np.count_nonzero(holder[dealt[node, step]] == node)
            assert local == min(batch, np.count_nonzero(owned == node))


def test_parallel_staging_uses_its_share_alone() -> None:
    """In an epoch, each node uses exactly the samples of its own share: 0 to 5, or 6 to 11."""
    job = written(ORDERS, cluster([[6], [6]]))
    decision = parallel_staging(job)
    assert decision.orders is not None
    dealt = decision.orders(0).reshape(2, -1)
    assert sorted(dealt[0]) == [0, 1, 2, 3, 4, 5]
    assert sorted(dealt[1]) == [6, 7, 8, 9, 10, 11]
    assert decision.notes == ()
    assert not decision.remote


def test_parallel_staging_says_what_it_never_uses() -> None:
    """The nodes have room for 4 and 2 of the 12 files, and never use the other 6. A note says so.

    Each node makes six accesses in an epoch. So the first node uses its 4 files one and a half
    times, and the second node uses its 2 files three times."""
    decision = parallel_staging(written(ORDERS, cluster([[4], [2]])))
    assert decision.orders is not None
    first, second = decision.orders(0).reshape(2, -1)
    assert sorted(set(first.tolist())) == [0, 1, 2, 3]
    assert sorted(second.tolist()) == [6, 6, 6, 7, 7, 7]
    assert "not the whole dataset" in decision.notes[0]


def test_deepio_opportunistic_deals_what_is_in_memory() -> None:
    """If memory holds all 12 files, an epoch uses each file once, in another order than the
    sampler's.

    If each node has memory for 3 files (0 1 2 and 6 7 8), an epoch uses each of these six files
    twice, and nothing is read from the file system."""
    job = written(ORDERS, cluster([[6], [6]]))
    whole = deepio_opportunistic(job)
    assert whole.orders is not None
    assert sorted(whole.orders(0).ravel().tolist()) == list(range(12))
    assert whole.orders(0).tolist() != job.orders(0).tolist()
    part = deepio_opportunistic(written(ORDERS, cluster([[3], [3]])))
    assert part.orders is not None
    assert sorted(part.orders(0).ravel().tolist()) == sorted([0, 1, 2, 6, 7, 8] * 2)
    assert held_by(part, 1, 1) == [6, 7, 8]
    assert "memory" in part.notes[0]


def test_deepio_opportunistic_reads_one_in_nodes_at_home() -> None:
    """Of 4,000 accesses on 4 nodes, a quarter are expected to find the file on the node that makes
    the access. The number of these accesses has a standard deviation of 27."""
    job = shuffled(4000, cluster([[1000]] * 4), epochs=1, batch=10)
    decision = deepio_opportunistic(job)
    assert decision.orders is not None
    home = decision.orders(0).reshape(4, -1) // 1000 == np.arange(4)[:, None]
    assert 850 < home.sum() < 1150


@pytest.mark.parametrize("policy", [parallel_staging, deepio_opportunistic])
def test_no_room_at_all_is_one_sentence(policy: Policy) -> None:
    with pytest.raises(PolicyError, match=r"room for any file.*raise"):
        policy(written(ORDERS, cluster([[0], [0]])))
