"""Rendezvous hashing: the nodes' shares, their room, and changes when nodes join or leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import draws

from monarch_py.policies import rendezvous
from monarch_py.policies.rendezvous import file_keys, first_nodes, next_nodes, owners, scores
from monarch_py.policies.view import PFS

FILES = 20_000
PLENTY = 1 << 40


def held(owner: np.ndarray, nodes: int) -> np.ndarray:
    return np.bincount(owner[owner != PFS], minlength=nodes)


@pytest.mark.parametrize("weights", [[1, 1], [1, 1, 1, 1, 1], [1, 2, 3, 4], [10, 1, 0, 5]])
def test_nodes_get_files_in_proportion_to_their_weights(weights: list[int]) -> None:
    """The number of files that a node gets has a binomial distribution. It must lie within five
    standard deviations of its mean."""
    share = np.array(weights) / sum(weights)
    first = scores(file_keys(FILES), np.array(weights, float)).argmin(axis=1)
    spread = np.sqrt(FILES * share * (1 - share))
    assert (abs(np.bincount(first, minlength=len(weights)) - FILES * share) <= 5 * spread).all()


def test_neighbours_lie_on_nodes_of_their_own() -> None:
    """With four nodes, a quarter of all files go to the same node as the preceding file."""
    first = scores(file_keys(FILES), np.ones(4)).argmin(axis=1)
    assert np.mean(first[1:] == first[:-1]) == pytest.approx(0.25, abs=0.02)


def test_only_files_of_the_node_that_goes_change_hands() -> None:
    """If one of 4 nodes leaves, its files are distributed over the other nodes. No other files
    move.

    By symmetry, if a node joins, the only files that move are the files that it gets."""
    keys, sizes = file_keys(FILES), np.ones(FILES, np.int64)
    before = owners(keys, sizes, np.full(4, PLENTY))
    after = owners(keys, sizes, np.array([PLENTY] * 3 + [0]))
    assert (before[before != 3] == after[before != 3]).all()
    assert held(after[before == 3], 3).min() > FILES / 4 / 3 * 0.8


def test_a_full_node_passes_files_on_to_the_next_of_their_list() -> None:
    """Node 0 has room for only 100 of its files, and keeps the 100 files with the smallest keys.

    Each of its other files goes to node 1 or 2, whichever comes first in the file's list of nodes.
    """
    keys, quotas = file_keys(3000), np.array([1000, 5000, 5000])
    table = scores(keys, quotas.astype(float))
    wanted = table.argmin(axis=1)
    # The files whose first node is node 0 are larger than the other files, so that node 0 has too
    # little room for them.
    sizes = np.where(wanted == 0, 10, 1)
    owner = owners(keys, sizes, quotas)
    mine = np.flatnonzero(wanted == 0)
    mine = mine[np.argsort(keys[mine])]
    assert len(mine) > 200
    assert sorted(np.flatnonzero(owner == 0)) == sorted(mine[:100])
    passed = mine[100:]
    assert (owner[passed] == 1 + table[passed][:, 1:].argmin(axis=1)).all()
    assert (owner[wanted != 0] == wanted[wanted != 0]).all()


@settings(deadline=None, max_examples=draws.examples(15))
@given(
    sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=200),
    quotas=st.lists(st.integers(0, 20_000), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
)
def test_quotas_hold_and_nothing_is_left_that_fits(
    sizes: list[int], quotas: list[int], seed: int
) -> None:
    room, bytes_ = np.array(quotas, np.int64), np.array(sizes, np.int64)
    keys = np.random.default_rng(seed).permutation(file_keys(len(sizes)))
    owner = owners(keys, bytes_, room)
    left = room - np.bincount(owner[owner != PFS], bytes_[owner != PFS], minlength=len(room))
    assert (left >= 0).all()
    # A node without a quota has the weight 0, so it is never an owner.
    missing = bytes_[owner == PFS]
    if len(missing) and (room > 0).any():
        assert missing.min() > left[room > 0].max()
    # The owners do not depend on the order of the files in a node's catalog.
    shuffled = np.random.default_rng(seed + 1).permutation(len(sizes))
    assert (owners(keys[shuffled], bytes_[shuffled], room) == owner[shuffled]).all()


def test_with_a_twentieth_to_spare_every_file_has_an_owner() -> None:
    sizes = np.random.default_rng(1).integers(1, 200_000, FILES)
    for nodes in (2, 4, 8):
        quotas = np.full(nodes, int(1.05 * sizes.sum()) // nodes)
        assert (owners(file_keys(FILES), sizes, quotas) != PFS).all()


def test_many_files_on_a_thousand_nodes_are_no_table_in_memory() -> None:
    import tracemalloc

    files = draws.sized(40_000, 100_000)
    keys, sizes = file_keys(files), np.ones(files, np.int64)
    tracemalloc.start()
    owner = owners(keys, sizes, np.full(1000, files // 1000 * 21 // 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (owner != PFS).all()
    # `owners` must not make a table of the scores of all files on all nodes. That table would
    # take 320 MB, or 800 MB with --long.
    assert peak < 240 << 20


def test_files_that_fit_nowhere_cost_no_rounds() -> None:
    """The nodes have room for half of the files. When all nodes are full, `owners` makes no further
    rounds for the files that are left."""
    rounds = []
    real = rendezvous._next_choice

    def counting(keys: Any, weights: Any, last: Any) -> Any:
        rounds.append(len(keys))
        return real(keys, weights, last)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous, "_next_choice", counting)
        owner = owners(file_keys(4000), np.full(4000, 10), np.full(64, 4000 * 10 // 128))
    # Each node has room for 312 bytes, which is 31 files.
    assert np.count_nonzero(owner != PFS) == 64 * 31
    assert len(rounds) < 64


def test_no_files_and_no_room() -> None:
    assert owners(file_keys(0), np.zeros(0, np.int64), np.array([5])).tolist() == []
    assert owners(file_keys(2), np.ones(2, np.int64), np.array([0, 0])).tolist() == [PFS, PFS]


def test_the_next_node_is_that_of_the_next_higher_score() -> None:
    keys, weights = file_keys(500), np.array([3.0, 1.0, 0.0, 2.0, 1.0])
    expected = np.argsort(scores(keys, weights), axis=1)
    nodes = first_nodes(keys, weights)
    for place in range(4):
        assert (nodes == expected[:, place]).all()
        following = np.full(len(keys), PFS, dtype=np.int32)
        for node in np.unique(nodes).tolist():
            mine = nodes == node
            following[mine] = next_nodes(keys[mine], weights, node)
        nodes = following
    # Node 2 has the weight 0, so each file's list of nodes contains only four nodes. After the
    # fourth node, next_nodes() returns PFS.
    assert (nodes == PFS).all()
