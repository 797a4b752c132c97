"""Tests group shuffle with double buffering: examples computed by hand, and refused settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from policies.jobs import cluster, shuffled, written

from monarch_py.errors import PolicyError
from monarch_py.policies.groupshuffle import group_shuffle, largest_group
from monarch_py.policies.view import Job

ORDER = [[[[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]]]


def with_buffer(job: Job, bytes_: int) -> Job:
    room = job.cluster.capacity.copy()
    room[:, 0] = bytes_
    return replace(job, cluster=replace(job.cluster, capacity=room))


def test_groups_stay_together_and_are_shuffled_within() -> None:
    """With 12 samples in groups of 4, each run of four accesses is one whole group.

    Over 20 epochs both the order of the groups and the order of samples in a group change."""
    job = written(ORDER * 20, cluster([[]]))
    decision = group_shuffle(job, 4)
    assert decision.orders is not None
    orders = [decision.orders(epoch).ravel() for epoch in range(20)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(12))
        for run in order.reshape(3, 4):
            assert len(set((run // 4).tolist())) == 1
    assert len({tuple((order[::4] // 4).tolist()) for order in orders}) > 3
    assert any((order[:4] % 4).tolist() != [0, 1, 2, 3] for order in orders)
    assert decision.staging
    assert not len(decision.copies.file)


def test_two_of_the_largest_groups_fit_the_buffer() -> None:
    """The buffer must hold two groups of the largest size.

    The samples have 1 to 12 bytes. Groups of 4 samples take 10, 26 and 42 bytes. Two groups of 42
    bytes need a buffer of 84 bytes, so a buffer of 83 bytes is refused. Groups of 5 samples would
    fit into it, but the policy does not change the size that the user has chosen."""
    job = written(ORDER, cluster([[]]), np.arange(1, 13))
    assert largest_group(job.sizes, 4) == 42
    with pytest.raises(PolicyError, match=r"2 groups of 4 samples take 84 B,.*capacity of 83 B"):
        group_shuffle(with_buffer(job, 83), 4)
    assert "groups of 4" in group_shuffle(with_buffer(job, 84), 4).notes[0]


def test_the_default_uses_the_buffer() -> None:
    """With samples of 10 bytes and a buffer of 2,000 bytes, a group has 100 samples."""
    job = shuffled(1000, cluster([[], []]), epochs=1, batch=5, sizes=[10] * 1000)
    assert group_shuffle(with_buffer(job, 2000)).notes == (
        "groups of 100 samples, shuffled within",
    )


def test_a_group_of_nothing_is_refused() -> None:
    with pytest.raises(PolicyError, match="group is 0"):
        group_shuffle(written([[[[0]]]], cluster([[1]])), 0)
