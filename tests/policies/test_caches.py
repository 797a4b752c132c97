"""First fit, LRU and Belady: examples computed by hand, and bounds that hold for all inputs."""

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
    """Files are pinned in the order of use, each in the first storage class that has room for it.

    File 1 has size 3, file 2 has size 9, and all other files have size 1. The classes have room for
    4 and 3. Files 0 and 1 fill the first class. File 2 fits in no class, but the files after it are
    still pinned: files 3, 4 and 5 fill the second class."""
    sizes = [1, 3, 9, *[1] * 9]
    decision = first_fit(written([UP, DOWN], cluster([[4, 3]]), sizes))
    assert held_by(decision, 0, 1) == [0, 1]
    assert held_by(decision, 0, 2) == [3, 4, 5]
    assert (decision.when, decision.remote) == (When.ON_USE, False)


def test_hash_has_one_owner_for_a_file() -> None:
    job = shuffled(1200, cluster([[300], [300], [600]]), epochs=2, batch=10)
    decision = hashed(job)
    assert len(set(decision.copies.file.tolist())) == len(decision.copies.file)
    # The nodes have room for 300, 300 and 600 files. There are 1,200 files, so at most a few
    # of them have no holder.
    assert len(decision.copies.file) > 1150
    assert decision.remote
    # The holder of a file reads it for all nodes. A file without a holder is read by each node.
    assert decision.owner is not None
    assert decision.owner[decision.copies.file].tolist() == decision.copies.node.tolist()
    assert np.count_nonzero(decision.owner == PFS) == 1200 - len(decision.copies.file)


def test_lru_up_and_down() -> None:
    """The cache has room for 4 of 12 files. Epochs 0, 2 and 3 read the files in ascending order
    (up), and epoch 1 reads them in descending order (down).

    Epoch 0 reads up and leaves files 8 to 11 in the cache, so epoch 1, which reads down, finds
    these 4. Epoch 1 leaves files 0 to 3, so epoch 2 finds these 4. Epoch 2 leaves files 8 to 11.
    Epoch 3 reads up too, and has evicted these files before it reaches them. So it finds none."""
    job = written([UP, DOWN, UP, UP], cluster([[4]]))
    decision = lru(job)
    assert loads(job, decision) == [12, 8, 8, 12]
    assert np.flatnonzero(holders(job, decision, 1)[0] == 0).tolist() == [0, 1, 2, 3]


def test_lru_of_two_classes_is_one_stack() -> None:
    """Two classes with room for 2 files each work as one LRU stack of 4 files.

    Epoch 0 reads files 0 to 11. Afterwards class 1 has files 11 and 10, and class 2 has 9 and 8.
    Epoch 1 reads the files in reverse. It finds 11 and 10 in class 1. It finds 9 in class 2 and
    moves it to class 1, which pushes 11 into class 2. It finds 8 in class 2 too, and moves it to
    class 1, which pushes 10 into class 2."""
    job = written([UP, DOWN], cluster([[2, 2]]))
    decision = lru(job)
    assert decision.served is not None
    served = decision.served(1, job.orders(1))
    assert served.cls[0, :5].tolist() == [1, 1, 2, 2, 0]
    # If an accessed file was not in class 1, the file is written into class 1 (`into`). The file
    # that it pushes out is written into class 2 (`down`).
    assert served.into[0, :5].tolist() == [0, 0, 1, 1, 1]
    assert served.down[0, :5].tolist() == [0, 0, 2, 2, 2]
    # In epoch 0, class 1 still has room for files 0 and 1, so they push no file into class 2.
    assert decision.served(0, job.orders(0)).down[0, :4].tolist() == [1, 1, 2, 2]


def test_lru_never_hits_on_a_cyclic_scan_one_file_too_large() -> None:
    job = written([[[list(range(100))]]] * 5, cluster([[99]]))
    assert loads(job, lru(job)) == [100] * 5


def test_belady_up_down_and_up_again() -> None:
    """The cache has room for 4 of 12 files. Epochs 0, 2 and 3 read the files in ascending order
    (up), and epoch 1 reads them in descending order (down).

    In epoch 0, the next use of file f is access 23 - f: the later a file was read, the sooner it is
    used again. Files 8 to 11 stay, and epoch 1 finds them. In epoch 1, the next use of file f is
    access 24 + f, so again the file read last is used first. Files 3 to 0 stay, and epoch 2 finds
    them. In epoch 2, each file is used again 12 accesses later, so the cached files are used sooner
    than any new file. No file is evicted, and epoch 3 finds the same four files."""
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
    """Returns the largest number of hits that is possible, found by trying all choices."""
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
def test_belady_loads_no_more_than_it_must(files: int, part: float, epochs: int, seed: int) -> None:
    """The dataset has D files of equal size, and the only node's cache has room for C of them.

    With Belady's rule, each epoch after the first loads exactly D - C files. LRU loads at least as
    many files as Belady's rule over all epochs."""
    room = int(part * files)
    job = shuffled(files, cluster([[room]]), epochs=epochs, batch=1, seed=seed)
    least = loads(job, belady(job))
    assert least == [files] + [max(0, files - room)] * (epochs - 1)
    assert sum(loads(job, lru(job))) >= sum(least)


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(2, 4), st.floats(0.1, 0.9), st.integers(2, 5), st.integers(0, 2**32))
def test_so_it_does_on_every_node(nodes: int, part: float, epochs: int, seed: int) -> None:
    """If each of several nodes caches for itself, no node has more hits with pinning or LRU than
    with Belady."""
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
    """For files of one size, two LRU classes have the same hits as one class with the room of
    both."""
    two = LeastRecent(np.array([0, fast, slow])).run(files, [1] * len(files))
    one = LeastRecent(np.array([0, fast + slow])).run(files, [1] * len(files))
    assert [bool(level) for level in two.found] == [bool(level) for level in one.found]


def test_a_file_goes_into_the_fastest_class_that_can_take_it() -> None:
    """File f has f + 1 bytes, and the classes have room for 2 and 4 bytes.

    The accesses are to files 2, 0, 1 and 5. File 5 is larger than both classes. With LRU, file 2
    goes into the second class, file 0 goes into the first class, and file 1 pushes file 0 into the
    second class. With the rule of the farthest next use, no file is pushed to another class: file 0
    stays in the first class, and file 1 evicts file 2 from the second class, because file 1 is used
    sooner."""
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
    """The files in a class never take more bytes than the class has room for. File f has f + 1
    bytes."""
    after = [
        next((j for j in range(i + 1, len(files)) if files[j] == files[i]), NEVER)
        for i in range(len(files))
    ]
    room = np.array([0, fast, slow])
    farthest = FarthestUse(room, list(range(1, 11)))
    # LeastRecent has separate code for a single class.
    recent, single = LeastRecent(room), LeastRecent(room[:2])
    for at, file in enumerate(files):
        farthest.run([file], [after[at]], [at])
        for cache in (recent, single):
            cache.run([file], [file + 1])
        assert sum(f + 1 for f in single._held[1]) <= fast
        for level in (1, 2):
            by_use = [f for f in range(10) if farthest.level(f) == level]
            assert sum(f + 1 for f in by_use) <= room[level]
            assert sum(f + 1 for f in recent._held[level]) <= room[level]


def test_nodes_that_share_load_what_one_of_their_size_would() -> None:
    """Each of three nodes has room for 100 of 600 files. If they share their caches, the nodes
    together load 600 - 300 files in each epoch after the first.

    If each node caches for itself, the nodes together load more."""
    job = shuffled(600, cluster([[100]] * 3), epochs=4, batch=10)
    together, alone = (loads(job, belady(job, shared=each)) for each in (True, False))
    assert together[1:] == [300, 300, 300]
    assert min(alone[1:3]) > 310
    assert PFS in holders(job, belady(job, shared=True), 1)


# --- eviction.exchange: one exchange of files in a tier of the daemon -----------------------------

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
        # The next use of some new file comes before the next uses of all evicted files.
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
    # No more files are evicted than necessary.
    assert goes.sum() == max(0, stays.sum() - free)
