"""Decides which nodes keep the files of access plans, and in which tier this node keeps a file.

Each file has one owner. Other nodes keep the file as well if they have room left. The most
frequently used files are kept in the fastest tier (section 5.1 of the NoPFS paper;
`policies.nopfs`).
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import NO_IDS, Bools, Ids, Int32s, Ints, Uints, pointer
from monarch_py.config.schema import SourceConfig
from monarch_py.daemon.nodes.nodes import UNIT, Nodes, rooms_of
from monarch_py.daemon.plans.tracker import Found, PlanTracker
from monarch_py.daemon.segments import Shared
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.native import Kind, State, ffi, lib
from monarch_py.plan import NEVER, Timeline, all_frequencies, analyse
from monarch_py.plan.index import Index
from monarch_py.plan.samplers import NONE
from monarch_py.policies.node import ASKED, NOBODY, Holders, planned_tiers
from monarch_py.policies.nopfs.placement import is_placeable, place
from monarch_py.policies.placement import NOWHERE, TierRoom
from monarch_py.util.units import format_size

log = logging.getLogger("monarch.planned")


@dataclass(frozen=True, eq=False)
class PlacementResult:
    """The placement of the plans' files: which nodes and tiers keep each file.

    found : for each tracker, the files of its plan
    ids : (n,) the catalog entries of the files of all plans
    holders : (n, ASKED) the nodes that keep each file, the owner first
    tier : (n,) int32, the tier in which this node keeps each file, or NOWHERE
    order : files that this node keeps and of which it has no copy yet, sorted by their first use
    """

    found: list[Found]
    ids: Ids
    holders: Holders
    tier: Int32s
    order: Ids


def source_of(index: Index, sources: Sequence[SourceConfig]) -> tuple[int, str]:
    """Finds the source that contains a plan's dataset. Returns (the source's number, ""). If there
    is none, returns (-1, the reason why the plan cannot be followed)."""
    root = os.path.realpath(index.root)
    for number, source in enumerate(sources):
        if Path(root).is_relative_to(source.real_path):
            return number, ""
    return -1, f"{index.root} is not inside any configured source"


@dataclass(frozen=True, eq=False)
class PlacementTask:
    """Computes the placement of the plans' files. The thread of `PlanManager` calls `make`.

    words : (entries,) a copy of the catalog's words (state, tier and copy number of each entry)
    rooms : the room of this node's tiers, without the staging area
    nodes : the nodes of the cluster; None if this node works alone
    is_first : whether this is the first placement. Later placements do not change which nodes keep
        each file. All nodes would have to make such a change at once, but they compute their later
        placements at different times
    """

    trackers: Sequence[PlanTracker]
    shared: Shared
    catalog: CatalogReader
    sources: tuple[SourceConfig, ...]
    words: Uints
    rooms: list[TierRoom]
    nodes: Nodes | None
    is_first: bool

    def make(self) -> PlacementResult:
        found = [self.find(tracker) for tracker in self.trackers]
        good = [i for i, each in enumerate(found) if not each.problem]
        if not good:
            nobody = np.zeros((0, ASKED), dtype=np.int32)
            return PlacementResult(found, NO_IDS, nobody, np.zeros(0, dtype=np.int32), NO_IDS)
        ids = np.unique(np.concatenate([found[i].entries for i in good]))
        sizes = self.catalog.entries["size"][ids]
        where = [np.searchsorted(ids, found[i].entries) for i in good]
        frequency = np.zeros(len(ids), dtype=np.uint64)
        first = np.full(len(ids), NEVER, dtype=np.int64)
        for i, at in zip(good, where, strict=True):
            uses, first_use = _uses(self.trackers[i])
            np.add.at(frequency, at, uses)
            np.minimum.at(first, at, first_use)
            found[i] = replace(found[i], used=first_use != NEVER)
        # The sequence of the files decides between equally good placements, so it must be the same
        # on all nodes. The nodes' catalogs may list the files in different sequences. So the files
        # are sorted by their hashes.
        order = np.argsort(self.catalog.entries["hash"][ids], kind="stable")
        back = np.argsort(order, kind="stable")
        agreed = self._share_out(good, [back[at] for at in where], ids[order], sizes[order])
        holders, mine = agreed[0][back], agreed[1][back]
        # A file with a copy stays in the copy's tier. Its size is not subtracted from `self.rooms`,
        # which contains only free room.
        here = word.state(self.words[ids]) == State.PRESENT
        tier = np.where(here, word.tier(self.words[ids]).astype(np.int32), np.int32(NOWHERE))
        todo = np.flatnonzero(mine & ~here)
        tier[todo] = planned_tiers(frequency[todo], first[todo], sizes[todo], self.rooms)
        tier[tier >= len(self.rooms)] = NOWHERE
        kept = todo[tier[todo] != NOWHERE]
        kept = kept[np.argsort(first[kept], kind="stable")]
        return PlacementResult(found, ids, holders, tier, ids[kept])

    def find(self, tracker: PlanTracker) -> Found:
        """Finds the catalog entries of a plan's files. Also computes the first two runs of the plan
        on this node. A run lists the files that the node uses in one section of an epoch. `make`
        sets `Found.used` later."""
        entries, problem = [], ""
        for index in tracker.plan.datasets:
            found, why = self._find_files(index)
            entries.append(found)
            problem = problem or why
        runs = tuple(tracker.draw(number) for number in range(min(2, len(tracker.layout))))
        return Found(np.concatenate(entries), np.zeros(0, dtype=bool), problem, runs)

    def _find_files(self, index: Index) -> tuple[Ids, str]:
        """Returns an array (files,) of the catalog entries of the files in `index`. Also returns
        the reason why the plan cannot be followed, or ""."""
        entries = np.full(index.files, -1, dtype=np.int64)
        number, problem = source_of(index, self.sources)
        if problem:
            return entries.astype(np.uint64), problem
        root = Path(os.path.realpath(index.root))
        below = os.fsencode(root.relative_to(self.sources[number].real_path))
        prefix = b"" if below == b"." else below + b"/"
        shared, catalog = self.shared, self.catalog
        where = shared.control, shared.clients, catalog.c, number, prefix, len(prefix)
        names = ffi.cast("char *", pointer(index.pool)), pointer(index.starts), index.files
        lib.monarch_find_all(*where, *names, pointer(entries))
        known = np.flatnonzero(entries >= 0)
        rows = self.catalog.entries[entries[known]]
        same = (rows["kind"] == Kind.FILE) & (rows["size"] == index.sizes[known])
        missing = index.files - int(same.sum())
        problem = f"{missing} of {index.files} files in {index.root} are missing or have changed"
        return entries.astype(np.uint64), problem if missing else ""

    def _share_out(
        self, good: list[int], where: list[Any], ids: Ids, sizes: Uints
    ) -> tuple[Holders, Bools]:
        """Returns the nodes that keep each file (its holders), with the owner first. Also returns
        for each file whether this node is a holder. Every node computes the same holders, from the
        plans, the catalog and the nodes' quotas.

        good : the indices of the plans that can be followed
        where : for each of these plans, the position of each of its files in `ids`
        """
        if self.nodes is None or len(self.nodes.cluster.members) == 1:
            nobody = np.full((len(ids), ASKED), NOBODY, dtype=np.int32)
            return nobody, np.ones(len(ids), dtype=bool)
        cluster, before = self.nodes.cluster, self.nodes.policy
        members = len(cluster.members)
        if not self.is_first:
            return before.holders(ids), before.kept[ids]
        told = [self.trackers[i].timeline.holders() for i in good]
        if any(told):
            self._check_quotas(good)
            return self._as_dealt(told, where, ids)
        if not is_placeable(members, len(ids)):
            log.warning(
                "%d nodes and %d files are too many to place each file on the nodes that use it"
                " most: hashes choose the nodes, and files are still fetched in the plan's order",
                members,
                len(ids),
            )
            return before.holders(ids), before.kept[ids]
        used = np.zeros((members, len(ids)), dtype=np.uint32)
        for i, at in zip(good, where, strict=True):
            of_plan = all_frequencies(self.trackers[i].timeline)
            for node in range(members):
                np.add.at(used[node], at, of_plan[node])
        placed = place(list(used), UNIT.rounded(sizes), rooms_of(cluster))
        mine = np.zeros(len(ids), dtype=bool)
        mine[placed.held(cluster.rank)] = True
        return placed.holders(), mine

    def _check_quotas(self, good: list[int]) -> None:
        """Logs a warning if a plan assumes more room on each node than the node with the least room
        has."""
        assert self.nodes is not None
        room = min(sum(member.quotas) for member in self.nodes.cluster.members)
        loaders = [part.loader for i in good for part in self.trackers[i].timeline.parts]
        quota = max((each.quota for each in loaders if each.holders is not None), default=0)
        if quota > room:
            log.warning(
                "a plan assigns up to %s of samples to a node, but the tiers of one node have room"
                " for only %s: files without room are read from the source; make the plan again"
                " with the tiers' quota",
                format_size(quota),
                format_size(room),
            )

    def _as_dealt(
        self, told: list[list[tuple[Int32s, Int32s]]], where: list[Any], ids: Ids
    ) -> tuple[Holders, Bools]:
        """Does the same as `_share_out`, for plans that assign samples to nodes themselves. A file
        that these plans do not assign stays on the nodes that its hash has chosen. For example, it
        may belong to another plan.

        told : for each plan, the result of `Timeline.holders`
        """
        assert self.nodes is not None
        holders, mine = self.nodes.policy.holders(ids), self.nodes.policy.kept[ids]
        for parts, at in zip(told, where, strict=True):
            for units, nodes in parts:
                two = nodes[:, :ASKED]
                holders[at[units]] = NOBODY
                holders[at[units], : two.shape[1]] = two
                mine[at[units]] = (nodes == self.nodes.cluster.rank).any(axis=1)
        return holders, mine


def _uses(tracker: PlanTracker) -> tuple[npt.NDArray[np.uint32], Ints]:
    """Returns two arrays (files,). The first says how often this node uses each file of a plan. The
    second is the position of this node's first use of the file. If this node never uses the file,
    it is the position of the first use by any node."""
    access = analyse(tracker.timeline, tracker.node)
    first = access.first_use
    if tracker.timeline.nodes > 1:
        first = np.where(first == NEVER, _first_by_anybody(tracker.timeline), first)
    return access.frequency, first


def _first_by_anybody(timeline: Timeline) -> Ints:
    """Returns the position in the plan at which any node first uses each file, as an array (files,)
    of int64. It is NEVER if no node uses the file. (The units of these timelines are files.)"""
    first = np.full(timeline.units, NEVER, dtype=np.int64)
    turns = timeline.ranks_per_node
    for section in timeline.sections():
        steps = section.start + np.arange(len(section.rows), dtype=np.int64) * turns
        for rank, units in enumerate(section.rows.T):
            used = units != NONE
            np.minimum.at(first, units[used], steps[used] + rank % turns)
        if (first != NEVER).all():
            break  # later sections contain only later uses
    return first
