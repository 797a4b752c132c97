"""Claims of papers about policies, checked on jobs that are small enough for a test.

Larger checks are in benchmarks/policies."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from policies.jobs import cluster, holders, loads, order_of, shuffled

from monarch_py.plan.access import NEVER
from monarch_py.policies.caches import belady, hashed, lru
from monarch_py.policies.replay import Replay, next_uses
from monarch_py.policies.solar.policy import Solar
from monarch_py.policies.view import NO_FILE, PFS, Policy

FILES = 6400


@pytest.mark.parametrize("part", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("nodes", [1, 4])
def test_steady_epochs_load_what_does_not_fit(part: float, nodes: int) -> None:
    """The dataset has D files, and all nodes together have room for C files.

    With pinning, Belady and SOLAR, the nodes together load at most 1.02 (D - C) files in each epoch
    after the first."""
    machine = cluster([[int(part * FILES / nodes)]] * nodes)
    job = shuffled(FILES, machine, epochs=3, batch=32)
    bound = 1.02 * (FILES - machine.capacity[:, 1:].sum())
    pinned = hashed(job)
    held = np.zeros(FILES, dtype=bool)
    held[pinned.copies.file] = True
    for epoch in (1, 2):
        assert np.count_nonzero(~held[job.orders(epoch)]) <= bound
    for policy in (partial(belady, shared=nodes > 1), Solar()):
        assert max(loads(job, policy(job))[1:]) <= bound


def test_solar_loads_a_quarter_on_every_rank() -> None:
    """On each rank, SOLAR loads at most a quarter of what LRU loads, as in Fig. 11 of its paper.

    16 ranks together hold 0.8 of the dataset. Under LRU, each rank caches for itself."""
    job = shuffled(8192, cluster([[int(0.8 * 8192 / 16)]] * 16), epochs=4, batch=32)

    def of_rank(policy: Policy) -> tuple[float, int]:
        decision = policy(job)
        counts = []
        for epoch in range(1, 4):
            order = order_of(job, decision, epoch).reshape(16, -1)
            missed = (holders(job, decision, epoch) == PFS) & (order != NO_FILE)
            counts.append(missed.sum(axis=1))
        rank = np.sum(counts, axis=0)
        return float(rank.mean()), int(rank.max())

    before, after = of_rank(lru), of_rank(Solar())
    assert before[0] / after[0] >= 4
    assert before[1] / after[1] >= 4


def test_next_uses_by_hand() -> None:
    """Two nodes read three files in each of two epochs.

    Node 0 reads 0 1 2, then 3 4 0. Node 1 reads 3 4 5, then 1 2 5. In order of time, the nodes
    together access 0 3 1 4 2 5 | 3 1 4 2 0 5. These accesses are numbered 0 to 11."""
    orders = np.array([[[[0, 1, 2]], [[3, 4, 5]]], [[[3, 4, 0]], [[1, 2, 5]]]], dtype=np.int32)
    job = shuffled(6, cluster([[1], [1]]), epochs=2, batch=3)
    job = type(job)(job.sizes, job.cluster, 2, 3, lambda epoch: orders[epoch])
    together, alone = (next_uses(job, together=each) for each in (True, False))
    assert together[0].tolist() == [[10, 7, 9], [6, 8, 11]]
    assert (together[1] == NEVER).all()
    assert alone[0].tolist() == [[10, NEVER, NEVER], [NEVER, NEVER, 11]]


def test_a_file_that_comes_twice_in_an_epoch_is_used_again_in_it() -> None:
    orders = np.array([[[[0, 1, 0, 1, 0]]], [[[1, 1, 2, 0, 0]]]], dtype=np.int32)
    job = shuffled(3, cluster([[1]]), epochs=2, batch=1)
    job = type(job)(job.sizes, job.cluster, 2, 5, lambda epoch: orders[epoch])
    first, second = next_uses(job, together=False)
    assert first.tolist() == [[2, 3, 4, 5, 8]]
    assert second.tolist() == [[6, NEVER, NEVER, 9, NEVER]]


def test_a_file_may_be_used_as_often_as_there_are_numbers() -> None:
    """Frequencies exceed 16 bits without overflow, and NO_FILE does not count as a use."""
    order = np.zeros((2, 1, 70_000), dtype=np.int32)
    order[1, 0, 1:] = NO_FILE
    job = shuffled(2, cluster([[1], [1]]), epochs=1, batch=1)
    job = type(job)(job.sizes, job.cluster, 1, 70_000, lambda _: order)
    never = np.iinfo(np.int64).max
    assert job.frequencies.tolist() == [[70_000, 0], [1, 0]]
    assert job.first_use.tolist() == [[0, never], [0, never]]


def test_a_replay_runs_once_where_epochs_are_asked_in_order() -> None:
    begun = []

    def begin() -> object:
        begun.append(1)
        return iter("abcdef")

    replay: Replay[str] = Replay(begin)  # type: ignore[arg-type]
    assert [replay.at(epoch) for epoch in (0, 1, 0, 2, 3, 2)] == list("abacdc")
    assert len(begun) == 1
    assert replay.at(0) == "a"
    assert len(begun) == 2
    with pytest.raises(IndexError, match="epoch 6 is past the last one, 5"):
        replay.at(6)
