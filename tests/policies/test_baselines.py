"""Each baseline policy makes the decisions that its paper describes. The job has twelve files."""

from __future__ import annotations

import pytest
from policies.jobs import cluster, held_by, written

from monarch_py.errors import PolicyError
from monarch_py.policies.baselines import (
    deepio,
    lbann_dynamic,
    lbann_preloading,
    naive,
    perfect,
    staging_buffer,
)
from monarch_py.policies.view import Policy, When

# Two nodes with two steps of three files each: every file occurs once an epoch.
ORDERS = [
    [[[0, 2, 4], [6, 8, 10]], [[1, 3, 5], [7, 9, 11]]],
    [[[11, 10, 9], [8, 7, 6]], [[5, 4, 3], [2, 1, 0]]],
]


def test_nothing_is_kept_by_the_first_three() -> None:
    """The perfect, naive and staging-buffer policies keep no copies.

    They differ in which accesses wait for the file system. With `perfect`, no access waits. With
    `naive`, all accesses wait. With `staging_buffer`, an access waits if its file reaches the
    staging buffer too late."""
    job = written(ORDERS, cluster([[6], [6]]))
    decisions = [policy(job) for policy in (perfect, naive, staging_buffer)]
    assert [len(each.copies.file) for each in decisions] == [0, 0, 0]
    assert [each.free for each in decisions] == [True, False, False]
    assert [each.staging for each in decisions] == [True, False, True]
    assert all(each.served is None and each.orders is None for each in decisions)


def test_deepio_loads_shares_that_lie_together() -> None:
    """Before training, node 0 loads files 0 to 5 into memory, and node 1 loads files 6 to 11.

    DeepIO's ordered mode does not change the sampler's order of accesses."""
    decision = deepio(written(ORDERS, cluster([[6, 100], [6, 100]])))
    assert held_by(decision, 0, 1) == [0, 1, 2, 3, 4, 5]
    assert held_by(decision, 1, 1) == [6, 7, 8, 9, 10, 11]
    assert (decision.when, decision.remote, decision.pfs) == (When.BEFORE, True, False)
    assert decision.orders is None


def test_deepio_keeps_what_fits_and_reads_the_rest() -> None:
    """Each of two nodes has memory for 4 files, and keeps the first 4 of its 6 files.

    The disks stay empty, because DeepIO uses memory only."""
    decision = deepio(written(ORDERS, cluster([[4, 100], [4, 100]])))
    assert held_by(decision, 0, 1) == [0, 1, 2, 3]
    assert held_by(decision, 1, 1) == [6, 7, 8, 9]
    assert held_by(decision, 0, 2) == held_by(decision, 1, 2) == []


def test_lbann_dynamic_keeps_what_a_node_reads_first() -> None:
    """Each node keeps the files that it reads in the first epoch, in the order of reading.

    In the first epoch, node 0 reads the even files, and node 1 reads the odd files."""
    decision = lbann_dynamic(written(ORDERS, cluster([[6], [6]])))
    assert held_by(decision, 0, 1) == [0, 2, 4, 6, 8, 10]
    assert held_by(decision, 1, 1) == [1, 3, 5, 7, 9, 11]
    assert (decision.when, decision.remote) == (When.ON_USE, True)


def test_lbann_preloading_takes_contiguous_shares() -> None:
    decision = lbann_preloading(written(ORDERS, cluster([[6], [6]])))
    assert held_by(decision, 0, 1) == [0, 1, 2, 3, 4, 5]
    assert decision.when is When.BEFORE


@pytest.mark.parametrize("policy", [lbann_dynamic, lbann_preloading])
def test_lbann_refuses_what_memory_cannot_hold(policy: Policy) -> None:
    """The dataset has 12 bytes, and the nodes' memories hold only 11 bytes in all. So LBANN refuses
    the job, even though the disks have room for the dataset.

    Section 6 of the NoPFS paper says that LBANN's data store fails in this case."""
    job = written(ORDERS, cluster([[6, 100], [5, 100]]))
    with pytest.raises(PolicyError, match=r"12 B.*11 B in all.*add nodes or memory"):
        policy(job)


@pytest.mark.parametrize("policy", [deepio, lbann_dynamic, lbann_preloading])
def test_without_a_class_for_copies_there_is_one_sentence(
    policy: Policy,
) -> None:
    with pytest.raises(PolicyError, match="'classes' has only the staging buffer"):
        policy(written(ORDERS, cluster([[], []])))
