"""Tests which node owns which file (daemon/nodes/nodes.py). Every node decides this for itself.

All nodes come to the same result. No node owns more than its quotas allow. Each file has one owner
as long as there is room.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nodes import lone_nodes
from nodes.lone_nodes import Catalog, Native, alone
from support.draws import examples

from monarch_py.daemon.nodes.nodes import (
    SCAN_LIMIT_S,
    START_LIMIT_S,
    UNIT,
    Nodes,
)
from monarch_py.errors import SessionError
from monarch_py.ipc import word
from monarch_py.native import Kind, Reason, State
from monarch_py.policies.node import NOBODY
from monarch_py.policies.placement import NOWHERE, slack_of

KIB, MIB = 1 << 10, 1 << 20
SIZES = st.one_of(st.integers(0, 64 * KIB), st.integers(0, 4 * MIB), st.just(1 << 60))
QUOTAS = st.lists(st.one_of(st.just(0), st.integers(0, 16 * MIB)), min_size=1, max_size=6)
# The hash and the size of each file.
FILES = st.lists(
    st.tuples(st.integers(1, (1 << 64) - 1), SIZES), max_size=60, unique_by=lambda file: file[0]
)


@pytest.fixture(autouse=True, scope="module")
def without_peers() -> Iterator[None]:
    with alone():
        yield


def node(rank: int, quotas: list[int], catalog: Catalog, **more: Any) -> Nodes:
    """Makes the node `rank` of several nodes. It cannot reach the other nodes.

    quotas : for each node, the quota of its only tier [bytes]"""
    return lone_nodes.node(rank, [(quota,) for quota in quotas], catalog, **more)


def owner_of(made: Nodes, catalog: Catalog) -> dict[int, int]:
    """Maps the hash of each file to the rank of the node that `made` considers the file's owner.
    The owner is `made` itself if it keeps the file for others. Otherwise it is the node that `made`
    asks for the file."""
    asked = made.asked(catalog.ids())[:, 0].tolist()
    holdings: Any = made.replicas
    return {
        int(hash_): made.cluster.rank if i in holdings.kept else asked[i]
        for i, hash_ in enumerate(catalog.entries["hash"][: len(catalog)].tolist())
    }


def decided(
    files: list[tuple[int, int]], quotas: list[int], shuffled: Any
) -> list[tuple[Nodes, Catalog]]:
    """Makes all nodes, each with its own order of the files. Each node decides which files it
    keeps."""
    made = []
    for rank in range(len(quotas)):
        order = list(range(len(files)))
        shuffled.shuffle(order)
        catalog = Catalog(files, order)
        made.append((node(rank, quotas, catalog), catalog))
        made[-1][0].step(scanned=True)
    return made


def rounded(catalog: Catalog) -> npt.NDArray[np.int64]:
    return UNIT.rounded(catalog.entries["size"])


@settings(max_examples=examples(40), deadline=None)
@given(files=FILES, quotas=QUOTAS, shuffled=st.randoms(use_true_random=False))
def test_all_nodes_say_the_same_within_their_quotas(
    files: list[tuple[int, int]], quotas: list[int], shuffled: Any
) -> None:
    all_nodes = decided(files, quotas, shuffled)
    said = [owner_of(made, catalog) for made, catalog in all_nodes]
    assert all(one == said[0] for one in said)
    left = np.array([quota - slack_of(quota) for quota in quotas], dtype=np.int64)
    for rank, (made, catalog) in enumerate(all_nodes):
        sizes, keeps = rounded(catalog), made.policy.keeps(catalog.ids())
        holdings: Any = made.replicas
        own = np.isin(np.arange(len(catalog)), list(holdings.kept))
        assert keeps[own].all()
        assert sizes[keeps].sum(dtype=np.float64) <= quotas[rank]
        # If a node keeps a file that it does not own, it knows a node to ask for the file.
        assert not (keeps & ~own & (made.asked(catalog.ids()) == NOBODY).all(axis=1)).any()
        left[rank] -= int(sizes[own].sum())
    for hash_, size in files:
        if said[0][hash_] == NOBODY:
            assert (left < UNIT.rounded(np.array([size], dtype=np.uint64))[0]).all()


@settings(max_examples=examples(40), deadline=None)
@given(
    files=FILES,
    late=FILES,
    quotas=QUOTAS.filter(any),
    shuffled=st.randoms(use_true_random=False),
)
def test_files_that_are_met_late_change_nothing_for_the_others(
    files: list[tuple[int, int]], late: list[tuple[int, int]], quotas: list[int], shuffled: Any
) -> None:
    known = {hash_ for hash_, _ in files}
    late = [file for file in late if file[0] not in known]
    said = []
    for rank in range(len(quotas)):
        order = list(range(len(files)))
        shuffled.shuffle(order)
        after = list(range(len(files), len(files) + len(late)))
        shuffled.shuffle(after)
        catalog = Catalog(files + late, order + after)
        catalog.count = len(files)
        made = node(rank, quotas, catalog)
        made.step(scanned=True)
        before = owner_of(made, catalog)
        # At each step, the node learns of one or more of the files in `late`.
        while catalog.count < len(catalog.entries):
            catalog.count += shuffled.randint(1, len(catalog.entries) - catalog.count)
            made.step(scanned=True)
        now = owner_of(made, catalog)
        assert {hash_: now[hash_] for hash_ in before} == before
        assert all(quotas[now[hash_]] > 0 for hash_, _ in late)
        said.append(now)
    assert all(one == said[0] for one in said)


def test_what_is_left_out_is_nobodys() -> None:
    catalog = Catalog([(1 + i, KIB) for i in range(9)], list(range(9)))
    catalog.entries["word"][:3] = word.make(State.BYPASS, Reason.EXCLUDED)
    catalog.entries["kind"][3] = Kind.DIR
    made = node(0, [MIB], catalog)
    made.step(scanned=True)
    assert made.policy.keeps(catalog.ids()).tolist() == [False] * 4 + [True] * 5


def test_nothing_is_decided_before_all_is_scanned_and_nobody_waits_for_long() -> None:
    catalog = Catalog([(1, KIB)], [0])
    now = [100.0]
    made = node(0, [MIB, MIB], catalog, clock=lambda: now[0])
    holdings: Any = made.replicas
    made.step(scanned=False)
    assert (made.is_ready, made.may_wait) == (False, True)
    assert holdings.patience == Native.MONARCH_EVERYBODY_WAITS
    now[0] += START_LIMIT_S
    made.step(scanned=False)
    assert (made.is_ready, made.may_wait) == (False, False)
    assert holdings.patience == Native.MONARCH_WHO_HAS_TIME_WAITS
    now[0] += SCAN_LIMIT_S - START_LIMIT_S
    made.step(scanned=False)
    assert holdings.patience == Native.MONARCH_NOBODY_WAITS
    assert not holdings.kept
    made.step(scanned=True)
    assert (made.is_ready, made.may_wait) == (True, False)


def test_what_nobody_waits_for_waits_as_long_as_a_plan_is_placed() -> None:
    catalog = Catalog([(1, KIB)], [0])
    now = [100.0]
    made = node(0, [MIB, MIB], catalog, clock=lambda: now[0])
    holdings: Any = made.replicas
    made.awaits_plan = True
    now[0] += 2 * SCAN_LIMIT_S
    made.step(scanned=True)
    assert holdings.patience == Native.MONARCH_WHO_HAS_TIME_WAITS
    made.awaits_plan = False
    made.step(scanned=True)
    assert holdings.patience == Native.MONARCH_NOBODY_WAITS


def test_of_two_holders_the_one_with_the_shorter_queue_is_asked_first() -> None:
    catalog = Catalog([(1 + i, KIB) for i in range(8)], list(range(8)))
    made = node(0, [MIB] * 4, catalog)
    made.step(scanned=True)
    ids = catalog.ids()

    def follow(first: int, second: int, tier: int) -> None:
        holders = np.tile(np.array([first, second], dtype=np.int32), (8, 1))
        made.follow(ids, np.full(8, tier, dtype=np.int32), len(catalog), holders)

    follow(1, 2, NOWHERE)
    engine: Any = made._engine
    engine.waiting[:] = [9, 5, 4, 0]
    assert made.asked(ids).tolist() == [[2, 1]] * 8
    engine.waiting[:] = [9, 3, 4, 0]
    assert made.asked(ids).tolist() == [[1, 2]] * 8
    # With queues of the same length, each holder is asked for half of the files.
    engine.waiting[:] = 4
    assert sorted(made.asked(ids)[:, 0].tolist()) == [1] * 4 + [2] * 4
    # If this node is the file's second holder, it asks the first holder. If this node is the first
    # holder, it asks no node, but reads the source.
    follow(1, 0, 0)
    assert made.asked(ids).tolist() == [[1, NOBODY]] * 8
    follow(0, 1, 0)
    assert (made.asked(ids)[:, 0] == NOBODY).all()


def test_a_file_without_room_goes_from_node_to_node_and_ends_with_the_last() -> None:
    files = [(7919 * (i + 1), KIB) for i in range(40)]
    catalogs = [Catalog(files, list(range(40))) for _ in range(3)]
    made = [node(rank, [MIB, 2 * MIB, MIB], catalog) for rank, catalog in enumerate(catalogs)]
    ids = catalogs[0].ids()
    for each in made:
        each.step(scanned=True)
    owner = made[0].policy.owners(ids)
    visited = [{int(rank)} for rank in owner]
    for _ in range(len(made)):
        for rank, each in enumerate(made):
            holdings: Any = each.replicas
            before = dict(holdings.moved)
            each.pass_on(ids)
            passed_on = {e: n for e, n in holdings.moved.items() if n != before[e]}
            assert not each.policy.keeps(ids[list(passed_on)]).any()
            for entry, heir in passed_on.items():
                assert heir != rank and heir not in visited[entry]
                visited[entry].add(heir)
                # The other nodes ask for the file, and so learn that `heir` keeps it now. When
                # `heir` is asked, it adopts the file.
                for other in made:
                    if other.cluster.rank not in (rank, heir):
                        other.move(ids[[entry]], np.array([heir], dtype=np.int32))
                made[heir].adopt(ids[[entry]])
                assert made[heir].replicas.moved[entry] == NOBODY
                assert made[heir].policy.keeps(ids[[entry]]).all()
    assert all(len(nodes) == len(made) for nodes in visited)
    # If a node has passed a file on, it tells peers which node owns the file now. It does so even
    # if the next node has passed the file on too.
    for each in made:
        others = ~each.policy.owns(ids)
        holdings = each.replicas
        assert [holdings.moved[int(e)] for e in ids[others]] == each.policy.owners(
            ids[others]
        ).tolist()
    # The last of a file's nodes has no further node to which it could pass the file. So it remains
    # the file's owner, although it has no room for the file. All nodes know this owner.
    holders = [each.policy.owners(ids).tolist() for each in made]
    assert holders[0] == holders[1] == holders[2]
    assert all(each.policy.owns(ids).sum() == holders[0].count(each.cluster.rank) for each in made)


def test_more_nodes_than_there_are_numbers_for() -> None:
    with pytest.raises(SessionError, match="at most 8"):
        node(0, [MIB] * 9, Catalog([], []))
