"""The simulator and daemons decide alike on the same trace.

A trace is a plan (a dataset, ranks on nodes, a seed) and the quotas of the nodes' tiers. The
simulator decides for the whole job; each daemon decides for its own node, from its catalog, the
quotas and the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from nodes.lone_nodes import Catalog, Placing, alone, node

from monarch_py.daemon.nodes.nodes import UNIT, Nodes
from monarch_py.daemon.plans.placement import PlacementResult
from monarch_py.daemon.plans.tracker import Found
from monarch_py.native import lib
from monarch_py.plan import NEVER, Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import DistributedSampler
from monarch_py.policies.caches import hashed
from monarch_py.policies.eviction import FarthestUse
from monarch_py.policies.node import ASKED, NOBODY
from monarch_py.policies.nopfs.policy import planned
from monarch_py.policies.placement import TierRoom, slack_of
from monarch_py.policies.replay import next_uses
from monarch_py.policies.view import STAGING, Decision, Job, When
from monarch_py.simulator.engine import measure
from monarch_py.simulator.jobs import cluster_of
from monarch_py.simulator.result import PLACES
from monarch_py.simulator.scenario import (
    Curve,
    Dataset,
    NodeOverride,
    Rates,
    Scenario,
    StorageClass,
)

KIB, MIB = 1 << 10, 1 << 20
FILES, EPOCHS, BATCH = 240, 3, 4
# How many copies each node has in `test_what_goes_first`.
HELD = 20
# Practically no limit [bytes/s].
FAST = 1e12


@pytest.fixture(autouse=True, scope="module")
def without_peers() -> Iterator[None]:
    with alone():
        yield


@dataclass(frozen=True)
class Trace:
    """A plan, and the tiers of its nodes.

    quotas : for each node, the quotas of its tiers [bytes]; all nodes have equally many tiers"""

    quotas: tuple[tuple[int, ...], ...]
    ranks_per_node: int
    seed: int

    @property
    def nodes(self) -> int:
        return len(self.quotas)

    @cached_property
    def files(self) -> list[tuple[int, int]]:
        """The hash and the size [bytes] of each file, in the order of the hashes."""
        random = np.random.default_rng(self.seed)
        hashes = np.sort(random.integers(1, 1 << 63, FILES, dtype=np.uint64))
        return list(zip(hashes.tolist(), random.integers(1, 64 * KIB, FILES).tolist(), strict=True))

    @property
    def keys(self) -> npt.NDArray[np.uint64]:
        return np.array([key for key, _ in self.files], np.uint64)

    @cached_property
    def catalog(self) -> Catalog:
        return Catalog(self.files, list(range(FILES)))

    @cached_property
    def plan(self) -> Plan:
        names = [f"{number:03}" for number in range(FILES)]
        index = Index.of("files", "/source", names, [size for _, size in self.files])
        ranks = self.nodes * self.ranks_per_node
        loader = Loader(DistributedSampler(FILES, ranks, self.seed), ranks, BATCH)
        return Plan((index,), (PlanPart("training", 0, loader),), EPOCHS, self.nodes)

    @property
    def rooms(self) -> npt.NDArray[np.int64]:
        """The room for copies, (nodes, tiers) [bytes]."""
        return np.array([[quota - slack_of(quota) for quota in each] for each in self.quotas])

    # --- through the simulator ------------------------------------------------------------------

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario of the trace. A tier is faster than a link, so that a node reads its own
        copy if it has one. Apart from that, times do not matter."""
        fast, tiers = Curve({1: FAST}), range(self.rooms.shape[1])
        return Scenario(
            name="trace",
            nodes=self.nodes,
            ranks_per_node=self.ranks_per_node,
            epochs=EPOCHS,
            batch_per_rank=BATCH,
            dataset=Dataset(FILES),
            rates=Rates(1e6, FAST, network=1e8, pfs_link=FAST),
            pfs=Curve({1: FAST}),
            classes=(
                StorageClass("staging", MIB, 8, fast, fast),
                *(StorageClass(f"tier{tier}", 1, 1, fast, fast) for tier in tiers),
            ),
            overrides=tuple(
                NodeOverride((n,), capacity_bytes={f"tier{t}": int(room[t]) for t in tiers})
                for n, room in enumerate(self.rooms)
            ),
        )

    @cached_property
    def job(self) -> Job:
        timeline = self.plan.timeline()

        def orders(epoch: int) -> npt.NDArray[np.int32]:
            section, batch = timeline.section(epoch), BATCH * self.ranks_per_node
            own = [section.node(node).reshape(-1, batch) for node in range(self.nodes)]
            return np.stack(own)

        return Job(
            sizes=UNIT.rounded(np.array([size for _, size in self.files], np.uint64)),
            cluster=cluster_of(self.scenario),
            epochs=EPOCHS,
            batch=BATCH * self.ranks_per_node,
            orders=orders,
        )

    def simulated_places(self, decision: Decision) -> list[float]:
        """Returns how much all nodes together read in the last epoch from their own copies, from
        each other, and from the source [bytes]."""
        last = measure(self.scenario, self.job, decision).bytes[-1]
        return [float(last[PLACES.index(place)]) for place in ("local", "remote", "pfs")]

    # --- through the daemons --------------------------------------------------------------------

    def daemons(self) -> list[Nodes]:
        made = [node(rank, self.quotas, self.catalog) for rank in range(self.nodes)]
        for each in made:
            each.step(scanned=True)
        return made

    def placed(self, daemon: Nodes) -> PlacementResult:
        """Makes the daemon place the plan's files and follow this placement. Returns the
        placement."""
        entries = self.catalog.ids()
        used = np.ones(FILES, dtype=bool)
        tracker: Any = SimpleNamespace(
            found=Found(entries, used, "", ()),
            timeline=self.plan.timeline(),
            node=daemon.cluster.rank,
        )
        catalog: Any = self.catalog
        shared: Any = SimpleNamespace(catalog=catalog)
        task = Placing(
            [tracker],
            shared,
            catalog,
            (),
            catalog.entries["word"],
            self.tiers(daemon),
            daemon,
            is_first=True,
        )
        result = task.make()
        daemon.follow(result.ids, result.tier, FILES, result.holders)
        return result

    def tiers(self, daemon: Nodes) -> list[TierRoom]:
        room = self.rooms[daemon.cluster.rank]
        return [replace(UNIT, free_bytes=int(each), free_inodes=FILES) for each in room]


# In the first trace, the nodes have room for more than the dataset, so that they also keep other
# nodes' files. In the second, they have room for only a part of the dataset. In the third, one node
# has hardly any room. The fourth has a single node.
TRACES = [
    Trace(((3 * MIB,), (3 * MIB,), (4 * MIB,)), 1, 1),
    Trace(((2 * MIB,), (1 * MIB,), (1 * MIB,)), 2, 2),
    Trace(((4 * MIB,), (8 * KIB,)), 2, 3),
    Trace(((16 * MIB,),), 4, 4),
]
# Each node has two tiers. Together, the tiers of all nodes have room for all files.
TIERED = [
    Trace(((1 * MIB, 3 * MIB), (2 * MIB, 3 * MIB), (MIB // 2, 4 * MIB)), 1, 5),
    Trace(((2 * MIB, 16 * MIB), (2 * MIB, 16 * MIB)), 2, 6),
]


def copies_of(decision: Decision, node: int) -> dict[int, int]:
    """Returns, for each file of which the node has a copy, the copy's tier."""
    copies = decision.copies
    mine = copies.node == node
    return dict(
        zip(copies.file[mine].tolist(), (copies.cls[mine] - STAGING - 1).tolist(), strict=True)
    )


def test_the_engine_asks_as_many_nodes_as_policy_names() -> None:
    assert ASKED == lib.MONARCH_ASKED


@pytest.mark.parametrize("trace", TRACES)
def test_without_a_plan(trace: Trace) -> None:
    decision = hashed(trace.job, trace.keys)
    assert decision.owner is not None
    requests = np.argsort(trace.job.first_use.min(axis=0), kind="stable").astype(np.uint64)
    for rank, daemon in enumerate(trace.daemons()):
        policy, ids = daemon.policy, trace.catalog.ids()
        assert policy.owners(ids).tolist() == decision.owner.tolist()
        # The simulator does not make the second copies that daemons keep in the remaining room.
        second = np.isin(ids, policy.second_copies())
        copies = copies_of(decision, rank)
        assert ids[policy.keeps(ids) & ~second].tolist() == sorted(copies)
        assert tiers_on_request(trace, daemon, requests[np.isin(requests, list(copies))]) == copies


def tiers_on_request(
    trace: Trace, daemon: Nodes, requests: npt.NDArray[np.uint64]
) -> dict[int, int]:
    """Returns the tier that each file gets if programs request the files from the daemon one after
    the other."""
    rooms, found = trace.tiers(daemon), {}
    for file in requests:
        (tier,) = daemon.policy.tier_of(file[None], trace.catalog.entries["size"][[file]], rooms)
        found[int(file)] = int(tier)
        rooms[tier] = replace(
            rooms[tier], free_bytes=rooms[tier].free_bytes - int(trace.job.sizes[file])
        )
    return found


@pytest.mark.parametrize("trace", [*TRACES, *TIERED])
def test_along_a_plan(trace: Trace) -> None:
    decision = planned(trace.job)
    assert decision.owner is not None
    for rank, daemon in enumerate(trace.daemons()):
        policy, ids, placed = daemon.policy, trace.catalog.ids(), trace.placed(daemon)
        if trace.nodes > 1:
            assert policy.owners(ids).tolist() == decision.owner.tolist()
        copies = copies_of(decision, rank)
        assert ids[policy.keeps(ids)].tolist() == sorted(copies)
        kept = np.array(sorted(copies), np.uint64)
        tiers = policy.tier_of(kept, trace.catalog.entries["size"][kept], trace.tiers(daemon))
        assert dict(zip(kept.tolist(), tiers.tolist(), strict=True)) == copies
        for tier in range(trace.rooms.shape[1]):
            mine = (decision.copies.node == rank) & (decision.copies.cls == tier + STAGING + 1)
            fetched = [int(file) for file in placed.order if copies[int(file)] == tier]
            assert fetched == decision.copies.file[mine].tolist()


@pytest.mark.parametrize("is_planned", [False, True])
@pytest.mark.parametrize("trace", TRACES)
def test_holder_or_source(trace: Trace, *, is_planned: bool) -> None:
    """Each copy is made when its file is first used. So in the last epoch a node has copies of all
    files that it owns. It also has copies of other nodes' files, if it keeps these files and has
    used them before."""
    decision = planned(trace.job) if is_planned else hashed(trace.job, trace.keys)
    decision = replace(decision, when=When.ON_USE)
    local = remote = source = 0
    for rank, daemon in enumerate(trace.daemons()):
        policy = daemon.policy
        if is_planned:
            trace.placed(daemon)
        ids = trace.job.orders(EPOCHS - 1)[rank].ravel().astype(np.uint64)
        sizes = trace.job.sizes[ids]
        has = policy.owns(ids)
        if is_planned:
            before = [trace.job.orders(epoch)[rank] for epoch in range(EPOCHS - 1)]
            has |= policy.keeps(ids) & np.isin(ids, np.stack(before))
        asks = policy.route(ids, np.zeros(trace.nodes, np.uint32))[:, 0] != NOBODY
        local += int(sizes[has].sum())
        remote += int(sizes[~has & asks].sum())
        source += int(sizes[~has & ~asks].sum())
    assert trace.simulated_places(decision) == [local, remote, source]


@pytest.mark.parametrize("trace", [*TRACES, *TIERED])
def test_what_goes_first(trace: Trace) -> None:
    """In the middle of the first epoch, every node has copies of the files that it used last. To
    make room for a file as large as several of them, the daemon drops the same copies as the
    simulator's caches do."""
    uses = next_uses(trace.job, together=False)[0]
    for rank, daemon in enumerate(trace.daemons()):
        policy, order = daemon.policy, trace.job.orders(0)[rank].ravel()
        half = len(order) // 2
        later = [order[half:], *(trace.job.orders(epoch)[rank].ravel() for epoch in (1, 2))]
        coming, first = np.unique(np.concatenate(later), return_index=True)
        policy.foresee(coming[np.argsort(first)].astype(np.uint64))
        held = order[half - HELD : half]
        is_used_again = uses[rank][half - HELD : half] != NEVER
        held, use = held[is_used_again], uses[rank][half - HELD : half][is_used_again]
        assert (np.argsort(policy.next_use(held)) == np.argsort(use)).all()
        sizes = trace.job.sizes[held]
        needed = int(sizes.sum()) // 2
        cache = FarthestUse(np.array([0, sizes.sum()]), [*trace.job.sizes.tolist(), needed])
        for file, at in zip(held.tolist(), use.tolist(), strict=True):
            assert cache.offer(file, at, -1) == []
        gone = cache.offer(FILES, 0, -1)
        assert gone is not None
        assert gone
        assert held[policy.victims(held, sizes, needed)].tolist() == gone
