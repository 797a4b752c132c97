"""First fit, LRU and Belady: a dozen files by hand, bounds for all."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies.jobs import cluster, held_by, holders, loads, shuffled, written
from support.draws import examples

from monarch_py.plan.access import NEVER
from monarch_py.policies.caches import belady, first_fit, hashed, lru
from monarch_py.policies.eviction import MISS, FarthestUse, LeastRecent, exchange
from monarch_py.policies.view import PFS, When

UP = [[list(range(12))]]
DOWN = [[list(range(11, -1, -1))]]


def test_first_fit_pins_what_comes_first() -> None:
    """Sizes 1, but file 1 has 3 and file 2 has 9; classes of 4 and 3. In order of use: 0 goes to
    the first (3 left), 1 too (0 left), 2 fits nowhere and stops nobody, 3 4 5 fill the second."""
    sizes = [1, 3, 9, *[1] * 9]
    decision = first_fit(written([UP, DOWN], cluster([[4, 3]]), sizes))
    assert held_by(decision, 0, 1) == [0, 1]
    assert held_by(decision, 0, 2) == [3, 4, 5]
    assert (decision.when, decision.remote) == (When.ON_USE, False)


def test_hash_has_one_owner_for_a_file() -> None:
    job = shuffled(1200, cluster([[300], [300], [600]]), epochs=2, batch=10)
    decision = hashed(job)
    assert len(set(decision.copies.file.tolist())) == len(decision.copies.file)
    # Homes in proportion to the room: 300, 300 and 600 files, give or take the hash.
    assert len(decision.copies.file) > 1150
    assert decision.remote
    # Who holds a file reads it for all, and what nobody holds everybody reads himself.
    assert decision.owner is not None
    assert decision.owner[decision.copies.file].tolist() == decision.copies.node.tolist()
    assert np.count_nonzero(decision.owner == PFS) == 1200 - len(decision.copies.file)


def test_lru_up_and_down() -> None:
    """Room for 4 of 12 files, read up, down and up. Up ends with 8 9 10 11 there: down hits these
    four and ends with 3 2 1 0 there, which the next way up hits. The same way again hits
    nothing."""
    job = written([UP, DOWN, UP, UP], cluster([[4]]))
    decision = lru(job)
    assert loads(job, decision) == [12, 8, 8, 12]
    assert np.flatnonzero(holders(job, decision, 1)[0] == 0).tolist() == [0, 1, 2, 3]


def test_lru_of_two_classes_is_one_stack() -> None:
    """Two classes of 2. After the way up the stack is 11 10 | 9 8. Down: 11 and 10 are in the
    first; 9 comes from the second, pushing 11 there, and so does 8."""
    job = written([UP, DOWN], cluster([[2, 2]]))
    decision = lru(job)
    assert decision.served is not None
    served = decision.served(1, job.orders(1))
    assert served.cls[0, :5].tolist() == [1, 1, 2, 2, 0]
    # What is not in the first class is written there, and what that pushes out to the second.
    assert served.into[0, :5].tolist() == [0, 0, 1, 1, 1]
    assert served.down[0, :5].tolist() == [0, 0, 2, 2, 2]
    # On the way up there was nothing to push out at first.
    assert decision.served(0, job.orders(0)).down[0, :4].tolist() == [1, 1, 2, 2]


def test_lru_never_hits_on_a_cyclic_scan_one_file_too_large() -> None:
    job = written([[[list(range(100))]]] * 5, cluster([[99]]))
    assert loads(job, lru(job)) == [100] * 5


def test_belady_up_down_and_up_again() -> None:
    """Room for 4 of 12. Up: file f is used again at 23 - f, so each one is nearer than those before
    it, and 8 9 10 11 stay: hit on the way down. Going down, f is used again at 24 + f: again each
    is nearer, 3 2 1 0 stay and are hit going up. Going up twice, f is used again 12 later: those
    that are there are nearer than all that come: nothing is exchanged, and the same four are
    hit."""
    job = written([UP, DOWN, UP, UP], cluster([[4]]))
    decision = belady(job)
    assert loads(job, decision) == [12, 8, 8, 8]
    assert np.flatnonzero(holders(job, decision, 3)[0] == 0).tolist() == [0, 1, 2, 3]


def test_epochs_can_be_asked_for_in_any_order() -> None:
    job = shuffled(60, cluster([[20]]), epochs=5, batch=5)
    decision = belady(job)
    forwards = [holders(job, decision, epoch).tolist() for epoch in range(5)]
    assert [holders(job, decision, epoch).tolist() for epoch in (4, 0, 3, 1, 2)] == [
        forwards[epoch] for epoch in (4, 0, 3, 1, 2)
    ]
    with pytest.raises(IndexError):
        holders(job, decision, 5)


def best_possible(files: list[int], capacity: int) -> int:
    """The most hits that any policy reaches, by trying all of them."""
    states = {frozenset[int](): 0}
    for file in files:
        later: dict[frozenset[int], int] = {}
        for held, hits in states.items():
            now = hits + (file in held)
            pool = held | {file}
            kept = [pool] if len(pool) <= capacity else map(frozenset, combinations(pool, capacity))
            for each in kept:
                later[frozenset(each)] = max(later.get(frozenset(each), 0), now)
        states = later
    return max(states.values())


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=14), st.integers(0, 4))
def test_belady_is_the_best_possible(files: list[int], capacity: int) -> None:
    after = [
        next((j for j in range(i + 1, len(files)) if files[j] == files[i]), NEVER)
        for i in range(len(files))
    ]
    cache = FarthestUse(np.array([0, capacity]), [1] * 6)
    found = cache.run(files, after, list(range(len(files)))).found
    assert len(files) - found.count(MISS) == best_possible(files, capacity)


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(10, 60), st.floats(0.05, 1.2), st.integers(2, 5), st.integers(0, 2**32))
def test_belady_hits_as_often_as_any(files: int, part: float, epochs: int, seed: int) -> None:
    """Equal sizes, one node. In every epoch from the second on exactly D - C are loaded."""
    room = int(part * files)
    job = shuffled(files, cluster([[room]]), epochs=epochs, batch=1, seed=seed)
    least = loads(job, belady(job))
    assert least == [files] + [max(0, files - room)] * (epochs - 1)
    for other in (lru,):
        assert sum(loads(job, other(job))) >= sum(least)


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(2, 4), st.floats(0.1, 0.9), st.integers(2, 5), st.integers(0, 2**32))
def test_so_it_does_on_every_node(nodes: int, part: float, epochs: int, seed: int) -> None:
    """Several nodes, each for itself: no node hits more often by pinning or by LRU."""
    job = shuffled(60, cluster([[int(part * 60)]] * nodes), epochs=epochs, batch=2, seed=seed)
    best, recent = belady(job), lru(job)
    pinned = first_fit(job).copies
    for node in range(nodes):
        mine = np.zeros(job.files, dtype=bool)
        mine[pinned.file[pinned.node == node]] = True
        seen = np.zeros(job.files, dtype=bool)
        hits = {"best": 0, "lru": 0, "pinned": 0}
        for epoch in range(epochs):
            order = job.orders(epoch)[node].ravel()
            hits["best"] += int(np.count_nonzero(holders(job, best, epoch)[node] == node))
            hits["lru"] += int(np.count_nonzero(holders(job, recent, epoch)[node] == node))
            hits["pinned"] += int(np.count_nonzero(mine[order] & seen[order]))
            seen[order] = True
        assert hits["best"] >= max(hits["lru"], hits["pinned"])


@settings(max_examples=examples(12), deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(0, 8), st.integers(0, 8))
def test_classes_of_an_lru_hit_as_one(files: list[int], fast: int, slow: int) -> None:
    """Files of one size: the classes together hold what one of their size would."""
    two = LeastRecent(np.array([0, fast, slow])).run(files, [1] * len(files))
    one = LeastRecent(np.array([0, fast + slow])).run(files, [1] * len(files))
    assert [bool(level) for level in two.found] == [bool(level) for level in one.found]


def test_a_file_goes_into_the_fastest_class_that_can_take_it() -> None:
    """File f has f + 1 bytes; classes of 2 and 4. LRU: 2 (3 bytes) goes into the second; 0 and 1
    into the first, where 1 pushes 0 down; 5 is larger than both. With Belady's rule what has its
    place keeps it: 1 is used sooner than 2, whose place in the second class it takes."""
    files, sizes = [2, 0, 1, 5], [3, 1, 2, 6]
    lru = LeastRecent(np.array([0, 2, 4])).run(files, sizes)
    assert (list(lru.into), list(lru.down)) == ([2, 1, 1, 0], [2, 1, 2, 0])
    far = FarthestUse(np.array([0, 2, 4]), list(range(1, 11))).run(
        files, [9, 8, 8, 9], [0, 1, 2, 3]
    )
    assert (list(far.into), list(far.down)) == ([2, 1, 2, 0], [2, 1, 2, 0])


@settings(max_examples=examples(12), deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(0, 40), st.integers(0, 40))
def test_no_cache_holds_more_than_its_room(files: list[int], fast: int, slow: int) -> None:
    """File f has f + 1 bytes. What is found can be read back: hits never exceed what fits."""
    after = [
        next((j for j in range(i + 1, len(files)) if files[j] == files[i]), NEVER)
        for i in range(len(files))
    ]
    farthest = FarthestUse(np.array([0, fast, slow]), list(range(1, 11)))
    for at, file in enumerate(files):
        farthest.run([file], [after[at]], [at])
        held = [(f + 1, farthest.level(f)) for f in range(10) if farthest.level(f) != MISS]
        assert sum(size for size, level in held if level == 1) <= fast
        assert sum(size for size, level in held if level == 2) <= slow


def test_nodes_that_share_load_what_one_of_their_size_would() -> None:
    """3 nodes with 100 files each of 600: D - C = 300 in all, where each alone loads far more."""
    job = shuffled(600, cluster([[100]] * 3), epochs=4, batch=10)
    together, alone = (loads(job, belady(job, shared=each)) for each in (True, False))
    assert together[1:] == [300, 300, 300]
    assert min(alone[1:3]) > 310
    assert PFS in holders(job, belady(job, shared=True), 1)


# --- eviction.exchange: what a daemon's tier does at a time ---------------------------------------

USES = st.integers(0, 1000) | st.just(int(np.iinfo(np.int64).max))
FILES = st.lists(st.tuples(USES, st.integers(1, 50)), max_size=30)


def columns(files: list[tuple[int, int]]) -> tuple[Any, Any]:
    table = np.array(files, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(FILES, FILES, st.integers(-20, 100))
def test_nothing_goes_but_for_what_is_used_sooner(
    held: list[tuple[int, int]], coming: list[tuple[int, int]], free: int
) -> None:
    held_use, held_bytes = columns(held)
    coming_use, coming_bytes = columns(coming)
    goes, stays = exchange(held_use, held_bytes, coming_use, coming_bytes, free)
    room = max(0, free) + held_bytes[goes].sum()
    assert coming_bytes[stays].sum() <= room
    if goes.any():
        # Each was farther than some that has come.
        assert held_use[goes].min() > coming_use[stays].min()


@given(st.lists(USES, max_size=20), st.lists(st.integers(0, 1000), max_size=20), st.integers(0, 5))
def test_of_equal_sizes_those_that_are_used_soonest_are_there_afterwards(
    held: list[int], coming: list[int], free: int
) -> None:
    of_held, of_coming = np.array(held, np.int64), np.array(coming, np.int64)
    ones = np.ones(50, np.int64)
    goes, stays = exchange(of_held, ones[: len(held)], of_coming, ones[: len(coming)], free)
    there = sorted([*of_held[~goes].tolist(), *of_coming[stays].tolist()])
    assert there == sorted([*held, *coming])[: len(held) + free]
    # Not one more than is needed.
    assert goes.sum() == max(0, stays.sum() - free)
