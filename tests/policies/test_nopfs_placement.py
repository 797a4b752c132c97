"""Who holds what under NoPFS: a dozen files by hand, the bound, coverage, scale."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from policies.jobs import cluster, held_by, shuffled, written
from support.draws import cases, examples

from benchmarks.policies.bound import bound, bound_of, value_of
from monarch_py.errors import PolicyError
from monarch_py.policies.filling import classes_of
from monarch_py.policies.nopfs.placement import literal, place
from monarch_py.policies.nopfs.policy import (
    nopfs,
    nopfs_literal,
    planned,
    policy_of,
    saved_by_a_copy,
)
from monarch_py.policies.nopfs.prices import Program
from monarch_py.policies.view import Policy

ONES = np.ones(12, dtype=np.int64)
# Three epochs on two nodes: what one uses n times, the other uses 3 - n times.
TABLE = np.array([[3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3]])


def used(files: int, nodes: int, epochs: int, seed: int) -> npt.NDArray[np.uint16]:
    """(nodes, files), frequencies of independent shuffles dealt in turn."""
    rng = np.random.default_rng(seed)
    table = np.zeros((nodes, files), dtype=np.uint16)
    for _ in range(epochs):
        order = rng.permutation(files)
        for node in range(nodes):
            table[node, order[node::nodes]] += 1
    return table


def test_to_the_letter_a_sixth_has_no_holder() -> None:
    """Room for 6 files each, 12 in all. Node 0 takes 0 to 3 and, of the four that it uses twice, 4
    and 5. Node 1 takes 10 11, 8 9, and of those it uses once again 4 and 5: nobody has 6 and 7."""
    held = literal(list(TABLE), ONES, np.array([6, 6]))
    assert held[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert held[1].tolist() == [10, 11, 8, 9, 4, 5]


def test_made_complete_every_file_has_an_owner() -> None:
    """The same: 0 to 3 belong to node 0, 8 to 11 to node 1, and each owns two of 4 to 7. The sum of
    frequency x size is 4 x 3 + 2 x 2 and 2 x 3 + 2 x 2 + 2 x 1: 28, which is the most there is,
    as the bound says too."""
    placed = place(list(TABLE), ONES, np.array([6, 6]))
    assert placed.owner[:4].tolist() == [0] * 4
    assert placed.owner[8:].tolist() == [1] * 4
    assert sorted(placed.owner[4:8].tolist()) == [0, 0, 1, 1]
    assert value_of(placed, list(TABLE), ONES) == 28
    assert 28 <= bound_of(list(TABLE), ONES, np.array([6, 6])) < 28.3


def test_room_left_over_takes_what_is_used_most() -> None:
    """Room for 10 and 8: node 0 can own 0 to 7 and node 1 the other four. What is left takes, on
    node 0, 8 and 9, and on node 1 the four that it uses once: 4 to 7. 20 + 2 and 10 + 4."""
    placed = place(list(TABLE), ONES, np.array([10, 8]))
    assert placed.owner.tolist() == [0] * 8 + [1] * 4
    assert [sorted(each.tolist()) for each in placed.extra] == [[8, 9], [4, 5, 6, 7]]
    assert value_of(placed, list(TABLE), ONES) == 36


def test_where_room_is_short_no_file_is_held_twice() -> None:
    """Room for 4 each: the files that somebody uses three times, and two of those used twice."""
    placed = place(list(TABLE), ONES, np.array([4, 4]))
    assert placed.owner[:4].tolist() == [0] * 4
    assert placed.owner[10:].tolist() == [1, 1]
    assert np.count_nonzero(placed.owner >= 0) == 8
    assert all(not len(each) for each in placed.extra)
    assert value_of(placed, list(TABLE), ONES) == 12 + 6 + 4


def test_what_is_used_equally_goes_where_a_copy_saves_most() -> None:
    """Both nodes use all files twice; a local copy saves node 1 four times as much."""
    placed = place([2 * ONES, 2 * ONES], ONES, np.array([8, 4]), weights=np.array([0.4, 1.6]))
    assert np.bincount(placed.owner).tolist() == [8, 4]
    worth = value_of(placed, [2 * ONES, 2 * ONES], ONES, np.array([0.4, 1.6]))
    assert worth == pytest.approx(8 * 2 * 0.4 + 4 * 2 * 1.6)
    alone = place([2 * ONES, 2 * ONES], ONES, np.array([12, 4]), weights=np.array([0.4, 1.6]))
    assert len(alone.held(1)) == 4


def test_classes_take_by_frequency_and_fill_in_order_of_use() -> None:
    """Node 0 holds 0 to 7, the fast class takes 4, the other one 3. Used 3 times: 0 to 3, fetched
    in the order in which they are used, 3 2 1 0. Used twice: 7 6 5, and 4, the last, finds no
    room."""
    twice, once = [3, 2, 1, 0, 7, 6, 5, 4], [3, 2, 1, 0, 8, 9, 10, 11]
    job = written([[[order]] for order in (twice, twice, once)], cluster([[4, 3]]))
    classes = classes_of(policy_of(job, 0, np.arange(8)), job.cluster, job.sizes)
    assert [each.tolist() for each in classes] == [[], [3, 2, 1, 0], [7, 6, 5]]


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_no_placement_is_worth_more_than_the_bound(seed: int, everything: bool) -> None:
    """Two nodes, four files, any prices: all 256 placements, of those that the program allows."""
    rng = np.random.default_rng(seed)
    values, sizes = rng.integers(0, 5, (2, 4)), rng.integers(1, 6, 4)
    quotas = rng.integers(0, 16, 2)
    program = Program(list(values), None, sizes, quotas, everything)
    most = bound(program, rng.uniform(0, 5, 2))
    for held in product((False, True), repeat=8):
        table = np.array(held).reshape(2, 4)
        count = table.sum(axis=0)
        if ((table * sizes).sum(axis=1) > quotas).any():
            continue
        if (count >= 1).all() if everything else (count <= 1).all():
            assert (table * values * sizes).sum() <= most + 1e-9


@settings(max_examples=examples(10), deadline=None)
@given(
    nodes=st.integers(1, 8),
    epochs=st.integers(1, 40),
    ratio=st.floats(0.2, 6),
    spread=st.floats(0, 0.8),
    uneven=st.floats(0, 0.7),
    seed=st.integers(0, 2**32),
)
# All files that a node uses have one value: the best price is that value.
@example(nodes=4, epochs=1, ratio=0.5, spread=0.0, uneven=0.625, seed=1)
# The files that are left out have the value 1 at both nodes, which is the best price.
@example(nodes=2, epochs=2, ratio=0.96875, spread=0.0, uneven=0.0, seed=0)
def test_a_placement_keeps_to_the_rules_and_near_the_bound(
    nodes: int, epochs: int, ratio: float, spread: float, uneven: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    files = 2000
    table = used(files, nodes, epochs, seed)
    sizes = np.maximum(1, rng.lognormal(10, spread, files)).astype(np.int64)
    weights = 1 + uneven * rng.uniform(-1, 1, nodes)
    quotas = (ratio * sizes.sum() * weights / weights.sum()).astype(np.int64)
    placed = place(list(table), sizes, quotas, seed=seed)
    for node in range(nodes):
        held = placed.held(node)
        assert len(set(held.tolist())) == len(held)
        assert sizes[held].sum() <= quotas[node]
    if ratio >= 1.05:
        assert np.count_nonzero(placed.owner < 0) == 0
    elif ratio < 1:
        # Room that is too small for what has no owner.
        assert all(sizes[each].sum() < sizes.max() for each in placed.extra)
        # Each node may have a rest that is too small for a file.
        assert sizes[placed.owner >= 0].sum() >= 0.99 * quotas.sum() - nodes * sizes.max()
    # The bound may cut files, one on each node.
    cut = sum(float((row * sizes).max()) for row in table)
    value, most = value_of(placed, list(table), sizes), bound_of(list(table), sizes, quotas, seed)
    assert 0.99 * most - cut <= value
    # Where room for all is short of a piece, what was left out has made room for second copies,
    # and the bound, in which everything has an owner, is none.
    if ratio < 1 or (placed.owner >= 0).all():
        assert value <= most * (1 + 1e-9)


@pytest.mark.parametrize(("epochs", "room"), [(10, 1500), (10, 1575), (90, 1500), (90, 1575)])
def test_where_the_tiers_just_fit_the_letter_leaves_a_sixth(epochs: int, room: int) -> None:
    """4 nodes, with exactly the room that the dataset needs, or 5 % to spare."""
    job = shuffled(6000, cluster([[room]] * 4), epochs=epochs, batch=10)
    published, ours = (each(job).copies.file for each in (nopfs_literal, nopfs))
    missing = 1 - len(np.unique(published)) / job.files
    assert 0.15 < missing < 0.19
    assert len(np.unique(ours)) == job.files


def test_the_policy_rehouses_what_the_pieces_of_room_cannot_take() -> None:
    """One node, files of 3 bytes, classes of 4 and 5: 9 bytes are room for 3 files, but in pieces
    for 2. The other one gets what it has room for."""
    orders = [[[[0, 1, 2, 3]], [[4, 5, 6, 7]]]]
    machine = cluster([[4, 5], [15, 4]])
    copies = nopfs(written(orders, machine, [3] * 8)).copies
    assert len(np.unique(copies.file)) == 8
    for node, level, room in ((0, 1, 4), (0, 2, 5), (1, 1, 15), (1, 2, 4)):
        assert 3 * np.count_nonzero((copies.node == node) & (copies.cls == level)) <= room


def test_a_plan_places_as_nopfs_does_and_its_owners_read() -> None:
    """Two epochs on two nodes. Node 0 uses 0 and 1 twice, node 1 uses 2 and 3 twice: each owns its
    two, and with room for one more holds another one besides, which it does not read."""
    orders = [[[[0, 1, 4]], [[2, 3, 5]]], [[[1, 0, 5]], [[3, 2, 4]]]]
    job = written(orders, cluster([[4], [4]]))
    ours, theirs = planned(job), nopfs(job)
    assert ours.copies.file.tolist() == theirs.copies.file.tolist()
    assert ours.copies.node.tolist() == theirs.copies.node.tolist()
    assert (theirs.owner, theirs.pfs, ours.pfs) == (None, True, False)
    assert ours.owner is not None
    assert ours.owner[:4].tolist() == [0, 0, 1, 1]
    # 4 and 5 are used once by each node: one node owns them, and both hold them.
    assert set(ours.owner[4:].tolist()) <= {0, 1}
    assert sorted(held_by(ours, 0, 1)) == [0, 1, 4, 5]
    assert sorted(held_by(ours, 1, 1)) == [2, 3, 4, 5]


def test_files_that_their_owner_never_uses_are_fetched_in_time_for_the_others() -> None:
    """Node 1 has no room, so node 0 owns all: its own files and those of node 1, by first use."""
    orders = [[[[0], [1], [2]], [[3], [4], [5]]]]
    decision = nopfs(written(orders, cluster([[6], [0]])))
    assert sorted(held_by(decision, 0, 1)[:2]) == [0, 3]
    assert sorted(held_by(decision, 0, 1)[4:]) == [2, 5]


@pytest.mark.parametrize("policy", [nopfs, nopfs_literal])
def test_whole_files_of_many_samples_are_declined(policy: Policy) -> None:
    """Six files of 400 samples on two nodes: each reads 200 samples of each file in an epoch, give
    or take ten. On one node there is nobody to share with, and it goes on."""
    rng = np.random.default_rng(1)
    orders = [rng.permutation(np.repeat(np.arange(6), 400)).reshape(2, 12, 100) for _ in range(2)]
    with pytest.raises(PolicyError, match=r"about 400 times.*grain: samples or grain: ranges"):
        policy(written(orders, cluster([[3], [3]])))
    alone = [each.reshape(1, 24, 100) for each in orders]
    assert len(policy(written(alone, cluster([[3]]))).copies.file) == 3


def test_a_copy_saves_most_behind_a_slow_link() -> None:
    """1 MB; RAM gives 100 MB/s a thread; links of 50, 50 and 25 MB/s: two nodes read from each
    other in 20 ms, the third reads in 40, instead of 10: that saves 10, 10 and 30, or 0.6, 0.6 and
    1.8 of the mean. Of two nodes the slower link is both's."""
    machine = cluster([[1]] * 3, threads=[1, 4], read_rate=400e6, network=[50e6, 50e6, 25e6])
    assert saved_by_a_copy(machine, 1e6).tolist() == pytest.approx([0.6, 0.6, 1.8])
    two = cluster([[1]] * 2, threads=[1, 4], read_rate=400e6, network=[50e6, 25e6])
    assert saved_by_a_copy(two, 1e6).tolist() == pytest.approx([1, 1])
    assert saved_by_a_copy(cluster([[1]]), 1e6).tolist() == [1.0]


class Rows(list[npt.NDArray[np.uint16]]):
    """Rows of a table, and how often one was asked for."""

    asked = 0

    def __getitem__(self, node: int) -> npt.NDArray[np.uint16]:  # type: ignore[override]
        self.asked += 1
        return super().__getitem__(node)


@pytest.mark.parametrize("files", cases([5_000, 20_000], short=[5_000]))
def test_it_goes_by_rows(files: int) -> None:
    """Whatever the number of files, the row of a node is read less than thirty times, and as a
    whole: rows may be made when they are asked for, and nothing goes file by file."""
    rows = Rows(used(files, 16, 20, 1))
    sizes = np.full(files, 110_000, dtype=np.int64)
    quotas = np.full(16, int(1.05 * sizes.sum() / 16))
    placed = place(rows, sizes, quotas)
    assert rows.asked < 30 * 16
    assert np.count_nonzero(placed.owner < 0) == 0
    assert value_of(placed, rows, sizes) >= 0.99 * bound_of(rows, sizes, quotas)


# Frequencies of 40,000 files on 6 nodes, of unequal sizes; a digest of who owns what.
OWNERS = """
import hashlib
import numpy as np
from monarch_py.policies.nopfs.placement import place
rng = np.random.default_rng(3)
table = np.zeros((6, 40_000), dtype=np.uint16)
for _ in range(9):
    order = rng.permutation(40_000)
    for node in range(6):
        table[node, order[node::6]] += 1
sizes = rng.integers(50_000, 200_000, 40_000)
placed = place(list(table), sizes, np.full(6, int(sizes.sum() * 1.05 / 6)))
print(hashlib.sha256(placed.owner.tobytes()).hexdigest())
"""
OLD_PROCESSOR = {
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL",
}


def test_every_processor_comes_to_the_same_owners() -> None:
    """Nodes need not be alike, and nobody asks who owns what. NumPy and its BLAS choose their
    instructions by the processor; they can be told to take it for an older one."""
    digests = []
    for variables in ({}, OLD_PROCESSOR):
        command = [sys.executable, "-W", "ignore", "-c", OWNERS]
        done = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, check=True
        )
        digests.append(done.stdout)
    assert digests[0] == digests[1]
