"""Places the files of access plans: which nodes keep each file, and in which tier this node does.

Each file has one owner, other nodes hold it where room is left, and the fastest class of storage
has what is used most (NoPFS, 5.1; `policies.nopfs`).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.config import SourceConfig
from monarch_py.daemon.copies.copies import Ids
from monarch_py.daemon.copies.staging import NOT_KNOWN
from monarch_py.daemon.nodes.placement import ASKED, NOBODY, UNIT, Holders, Nodes, rooms_of
from monarch_py.daemon.plans.tracker import Found, PlanTracker
from monarch_py.daemon.segments import Shared
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.native import State, state_of, tier_of
from monarch_py.peers.membership import Cluster
from monarch_py.plan import NEVER, Timeline, all_frequencies, analyse
from monarch_py.plan.samplers import NONE
from monarch_py.policies.nopfs.placement import place
from monarch_py.policies.placement import NOWHERE, FirstFit, KeepPolicy, TierRoom

__all__ = ["PlannedPlacement", "PlacementResult", "PlacementTask"]

log = logging.getLogger("monarch.planned")

# The placement holds how often each node uses each file, twice over: BYTES_OF_USES for each node
# and file [bytes]. It is not made where that is more than MOST_OF_USES [bytes]. Every node must
# come to the same answer, so the limit does not depend on the memory that a node has left.
BYTES_OF_USES, MOST_OF_USES = 6, 4 << 30


@dataclass(frozen=True, eq=False)
class PlacementResult:
    """Where the files of the plans have their place.

    found : what each tracker has found;  ids : (n,) entries of all files;  holders : for each the
    nodes that keep it, owner first;  tier : (n,) int32, where this node keeps each, or NOWHERE;
    order : files that this node keeps and has no copy of yet, by their first use
    """

    found: list[Found]
    ids: Ids
    holders: Holders
    tier: npt.NDArray[np.int32]
    order: Ids


class PlannedPlacement:
    """Which files the plans keep on this node, and in which of its tiers.

    It is a `KeepPolicy`, and tells the filler which tier it prefers.

    tier : (entries,) int32, where each file has its place, NOWHERE for none
    """

    def __init__(
        self, before: KeepPolicy, entries: int = 0, placed: PlacementResult | None = None
    ) -> None:
        """before : the policy for files of no plan;  entries : how many the catalog has"""
        self._before = before
        self._known = np.zeros(entries, dtype=bool)
        self.tier = np.full(entries, NOWHERE, dtype=np.int32)
        if placed is not None:
            self._known[placed.ids] = True
            self.tier[placed.ids] = placed.tier

    def keeps_here(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """See `KeepPolicy`. Files of no plan are kept as before."""
        known = ids < len(self._known)
        known[known] = self._known[ids[known]]
        answer = np.zeros(len(ids), dtype=bool)
        answer[known] = self.tier[ids[known]] != NOWHERE
        answer[~known] = self._before.keeps_here(ids[~known])
        return answer

    def adopt(self, ids: Ids) -> None:
        """See `KeepPolicy`. No tier is meant for these files."""
        self._known[ids[ids < len(self._known)]] = False
        self._before.adopt(ids)

    def tiers(self, ids: Ids) -> npt.NDArray[np.int32]:
        """(n,) the tiers in which these files have their place, NOWHERE for those of no plan."""
        answer = np.full(len(ids), NOWHERE, dtype=np.int32)
        inside = ids < len(self.tier)
        answer[inside] = self.tier[ids[inside]]
        return answer

    def lose(self, ids: Ids) -> None:
        """Notes (n,) files for which there is no room after all."""
        self.tier[ids[ids < len(self.tier)]] = NOWHERE


@dataclass(frozen=True, eq=False)
class PlacementTask:
    """What a placement is made from, for the thread that makes it.

    words : (entries,) a copy of the catalog's words;  rooms : of this node's tiers, without the
    staging area;  nodes : None for one node alone;  is_first : else files stay with the nodes that
    keep them now, because not all nodes may place anew at the same time
    """

    trackers: Sequence[PlanTracker]
    shared: Shared
    catalog: CatalogReader
    sources: tuple[SourceConfig, ...]
    words: npt.NDArray[np.uint64]
    rooms: list[TierRoom]
    cluster: Cluster | None
    nodes: Nodes | None
    is_first: bool

    def make(self) -> PlacementResult:
        found = [c.find(self.shared, self.catalog, self.sources) for c in self.trackers]
        good = [i for i, each in enumerate(found) if not each.problem]
        none = np.zeros(0, dtype=np.int32)
        if not good:
            nobody = np.zeros((0, ASKED), dtype=np.int16)
            return PlacementResult(
                found, none.astype(np.uint64), nobody, none, none.astype(np.uint64)
            )
        ids = np.unique(np.concatenate([found[i].entries for i in good]))
        sizes = self.catalog.entries["size"][ids]
        where = [np.searchsorted(ids, found[i].entries) for i in good]
        uses = [_Uses.of(self.trackers[i]) for i in good]
        frequency = np.zeros(len(ids), dtype=np.uint64)
        first = np.full(len(ids), NOT_KNOWN, dtype=np.int64)
        for at, use in zip(where, uses, strict=True):
            np.add.at(frequency, at, use.frequency)
            np.minimum.at(first, at, use.first)
        # The order of files breaks ties. Nodes may have met the files in different orders, so all
        # nodes take the order of their hashes.
        order = np.argsort(self.catalog.entries["hash"][ids], kind="stable")
        back = np.argsort(order, kind="stable")
        agreed = self._share_out(good, [back[at] for at in where], ids[order], sizes[order])
        holders, mine = agreed[0][back], agreed[1][back]
        # Copies stay in their tiers; their room is counted already.
        here = state_of(self.words[ids]) == State.PRESENT
        tier = np.where(here, tier_of(self.words[ids]).astype(np.int32), np.int32(NOWHERE))
        todo = np.flatnonzero(mine & ~here)
        todo = todo[np.lexsort((first[todo], -frequency[todo].astype(np.int64)))]
        tier[todo] = FirstFit().place(sizes[todo], self.rooms)
        tier[tier >= len(self.rooms)] = NOWHERE
        kept = todo[tier[todo] != NOWHERE]
        kept = kept[np.argsort(first[kept], kind="stable")]
        return PlacementResult(found, ids, holders, tier, ids[kept])

    def _share_out(
        self, good: list[int], where: list[Any], ids: Ids, sizes: npt.NDArray[np.uint64]
    ) -> tuple[Holders, npt.NDArray[np.bool_]]:
        """The holders of each file, the owner first, and which files this node holds. Every node
        computes the same, from the plans, the catalog and the nodes' quotas."""
        holders = np.full((len(ids), ASKED), NOBODY, dtype=np.int16)
        if self.cluster is None or len(self.cluster.members) == 1:
            return holders, np.ones(len(ids), dtype=bool)
        members, rank = self.cluster.members, self.cluster.rank
        if self.nodes is not None and not self.is_first:
            return self.nodes.holders_of(ids), self.nodes.keeps_here(ids)
        if self.nodes is not None and len(members) * len(ids) * BYTES_OF_USES > MOST_OF_USES:
            log.warning(
                "%d nodes and %d files are too many for a placement by their uses: they stay where"
                " their hashes put them, and are fetched as the plan says",
                len(members),
                len(ids),
            )
            return self.nodes.holders_of(ids), self.nodes.keeps_here(ids)
        used = np.zeros((len(members), len(ids)), dtype=np.uint32)
        for i, at in zip(good, where, strict=True):
            of_plan = all_frequencies(self.trackers[i].timeline)
            for node in range(len(members)):
                np.add.at(used[node], at, of_plan[node])
        placed = place(list(used), UNIT.rounded(sizes), rooms_of(self.cluster))
        holders[:, 0] = placed.owner
        # A file with several further holders names one of them; different files name different
        # ones, so that all of them are asked.
        for node in range(len(members)):
            extra = placed.extra[node]
            free = (holders[extra, 1] == NOBODY) | (extra % len(members) == node)
            holders[extra[free], 1] = node
        mine = np.zeros(len(ids), dtype=bool)
        mine[placed.held(rank)] = True
        return holders, mine


@dataclass(frozen=True, eq=False)
class _Uses:
    """The uses of one plan's files.

    frequency : (files,), how often this node uses each;  first : (files,) int64, the position of
    its first use by this node, or by any node where this one never uses it
    """

    frequency: npt.NDArray[np.uint32]
    first: npt.NDArray[np.int64]

    @classmethod
    def of(cls, tracker: PlanTracker) -> "_Uses":
        access = analyse(tracker.timeline, tracker.node)
        first = access.first_use
        if tracker.timeline.nodes > 1:
            first = np.where(first == NEVER, _first_by_anybody(tracker.timeline), first)
        return cls(access.frequency, first)


def _first_by_anybody(timeline: Timeline) -> npt.NDArray[np.int64]:
    """(units,) int64, the position of the first use by any node, NOT_KNOWN for none."""
    first = np.full(timeline.units, NOT_KNOWN, dtype=np.int64)
    turns = timeline.ranks_per_node
    for section in timeline.sections():
        steps = section.start + np.arange(len(section.rows), dtype=np.int64) * turns
        for rank, units in enumerate(section.rows.T):
            used = units != NONE
            np.minimum.at(first, units[used], steps[used] + rank % turns)
        if (first != NOT_KNOWN).all():
            break  # no later section has an earlier use
    return first
