"""Tests what `NodePolicy`, one node's policy, decides before and after calls that change it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from monarch_py.plan import NEVER
from monarch_py.policies.node import NOBODY, NodePolicy
from monarch_py.policies.placement import NOWHERE, TierRoom

ROOMS = [TierRoom(100, 10, 1), TierRoom(100, 10, 1)]


def ids(*files: int) -> npt.NDArray[np.uint64]:
    return np.array(files, dtype=np.uint64)


def shared(owner: Sequence[int], node: int = 0) -> NodePolicy:
    policy = NodePolicy(node, shares=True)
    policy.share(np.array(owner), np.array(owner) == node)
    return policy


def test_a_node_for_itself_keeps_everything_and_reads_it_from_the_source() -> None:
    policy = NodePolicy()
    assert policy.keeps(ids(0, 7)).all()
    assert policy.owners(ids(0, 7)).tolist() == [NOBODY] * 2
    assert (policy.route(ids(0, 7), np.zeros(1, dtype=np.int64)) == NOBODY).all()


def test_a_file_of_which_nothing_was_decided_is_not_kept_where_nodes_share() -> None:
    policy = shared([0, 1])
    assert policy.keeps(ids(0, 1, 2)).tolist() == [True, False, False]
    asked = policy.route(ids(0, 1, 2), np.zeros(2, dtype=np.int64))
    assert asked.tolist() == [[NOBODY, NOBODY], [1, NOBODY], [NOBODY, NOBODY]]


def test_a_plan_says_more_of_its_files_and_is_forgotten() -> None:
    policy = shared([0, 0, 1])
    holders = np.array([[1, 0], [0, NOBODY]], dtype=np.int32)
    policy.follow(ids(0, 2), np.array([1, NOWHERE], dtype=np.int32), 3, holders)
    assert policy.keeps(ids(0, 1, 2)).tolist() == [True, True, False]
    assert policy.tier_of(ids(1, 0), np.array([50, 50]), ROOMS).tolist() == [0, 1]
    policy.lose(ids(0))
    assert not policy.keeps(ids(0)).any()
    policy.forget_plan()
    # The policy has forgotten the plan, but not the plan's holders: this node keeps file 0, and
    # node 1 owns it.
    assert policy.keeps(ids(0, 1, 2)).tolist() == [True, True, False]
    assert policy.owners(ids(0, 1, 2)).tolist() == [1, 0, 0]


def test_a_node_keeps_what_it_adopts_whatever_the_plan_said() -> None:
    policy = shared([1, 1])
    holders = np.full((2, 2), (1, NOBODY), dtype=np.int32)
    policy.follow(ids(0, 1), np.full(2, NOWHERE, dtype=np.int32), 2, holders)
    policy.adopt(ids(1))
    assert policy.keeps(ids(0, 1)).tolist() == [False, True]
    assert policy.owns(ids(0, 1)).tolist() == [False, True]


def test_the_farthest_use_goes_first_and_one_that_nobody_knows_before_all() -> None:
    policy = NodePolicy()
    policy.foresee(ids(4, 2, 9))
    assert policy.next_use(ids(9, 4, 5)).tolist() == [2, 0, NEVER]
    staged, sizes = ids(4, 5, 9, 2), np.full(4, 10)
    assert staged[policy.victims(staged, sizes, 25)].tolist() == [5, 9, 2]
    assert staged[policy.victims(staged, sizes, 100, least_use=2)].tolist() == [5, 9]
    policy.used(ids(4))
    assert staged[policy.victims(staged, sizes, 15)].tolist() == [4, 5]
