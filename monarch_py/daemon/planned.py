"""Following access plans: what is kept on this node, what is fetched before it is needed, and what
is dropped again.

One file has one owner, others hold it where room is left, the fastest class has what is used most
(NoPFS, 5.1; `policies.nopfs`). Everything is fetched in the exact order of access (NoPFS 2, Rule
1), behind what readers wait for: what is kept into the tiers, what is not into the staging area,
as far ahead as that can hold. Behind that window the files that are kept come in the order of their
first use. A plan that does not hold is dropped, and what was before it goes on.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.cluster import Cluster
from monarch_py.daemon.copies import Ids
from monarch_py.daemon.course import Course, Found, load_plan
from monarch_py.daemon.eviction import Evictions
from monarch_py.daemon.filler import Filler
from monarch_py.daemon.nodes import ASKED, NOBODY, UNIT, Holders, rooms_of
from monarch_py.daemon.pace import Pace
from monarch_py.daemon.staging import NOT_KNOWN, Uses
from monarch_py.native import State, copy_of, state_of, tier_of
from monarch_py.placement import NOWHERE, FirstFit, Keeps, TierRoom
from monarch_py.plan import NEVER, Plan, Timeline, all_frequencies, analyse
from monarch_py.plan.follow import NOT_SOON, Distances
from monarch_py.policies.nopfs.placement import place

__all__ = ["Planned", "load_plan"]

log = logging.getLogger("monarch.planned")

# Files that are looked at ahead: as many as the staging area holds, up to this.
LOOK = 65536
# Of the staging area the window takes all but this part, which is for what readers demand and for
# what was used just now.
WINDOW_LEAVES = 8
# Fetched ahead at a time: what is nearer may be known a moment later [files, files, bytes].
LEAST_FILES, MOST_FILES, MOST_BYTES = 4, 64, 32 << 20
# What is ahead is looked at again this often at most; while programs open files, what they open is
# too [s].
LOOK_S = 0.02
AWAKE_S = 2.0
# The placement holds how often each node uses each file, twice over [bytes for a node and file],
# and is not made where that is more than this [bytes]. Every node must come to the same answer, so
# that what memory a node has left does not count.
BYTES_OF_USES, MOST_OF_USES = 6, 4 << 30


@dataclass(frozen=True, eq=False)
class _Placed:
    """What the thread has made of the plans.

    found : of each course;  ids : (n,) entries of all files;  holders : of each the nodes that
    keep it, owner first;  tier : (n,) int32, where this node keeps them, or NOWHERE;  order : those
    that it keeps, by their first use
    """

    found: list[Found]
    ids: Ids
    holders: Holders
    tier: npt.NDArray[np.int32]
    order: Ids


class Planned:
    """Turned by the daemon's loop.

    plans : as `load_plan` gives them, each with its file; several jobs that read one dataset have
    one each, and share the tiers
    """

    def __init__(
        self, plans: Sequence[tuple[Path, Plan]], filler: Filler, cluster: Cluster | None
    ) -> None:
        self.filler, self.shared, self.cluster = filler, filler.shared, cluster
        self._executor = ThreadPoolExecutor(1, "planned")
        node = cluster.rank if cluster else 0
        self.courses = [Course(file, plan, node, self._executor) for file, plan in plans]
        self._placing: Future[_Placed] | None = None
        self._placed = False
        self._before: tuple[Keeps, Uses] = filler.keeps, filler.staging.uses
        self._tier = np.zeros(0, dtype=np.int32)  # by entry, of those that a plan has
        self._known = np.zeros(0, dtype=bool)
        self._kept_order: Ids = np.zeros(0, dtype=np.uint64)  # what of it has not had its turn
        self._queue: Ids = np.zeros(0, dtype=np.uint64)
        self._paged: Ids = self._queue  # what of slow tiers is used next
        self._horizon = 0  # how far the window goes, in files from now
        self._ahead: tuple[Ids, npt.NDArray[np.int64]] = self._queue, np.zeros(0, dtype=np.int64)
        self._begun: Ids = self._queue
        self._looked_at = self._opened_at = float("-inf")
        self._pace = Pace()
        self.evictions = Evictions(filler.scanner.config.evicting, filler.copies)
        self._nodes = filler.nodes
        if plans and self._nodes is not None:
            self._nodes.awaits_plan = True

    @property
    def is_active(self) -> bool:
        """Whether a plan is followed, or will be."""
        return any(course.state != "dropped" for course in self.courses)

    @property
    def is_awake(self) -> bool:
        """Whether the loop should turn often, to see what programs open."""
        return self._placed and time.monotonic() - self._opened_at < AWAKE_S

    # --- in the loop ----------------------------------------------------------------------------

    def observe(self, opened: Ids) -> None:
        """Before anything is dropped in a turn: (n,) entries that programs have opened since the
        last one. They are what can go now; by what was known before they would be needed next, and
        what comes after them would go."""
        if not self.is_active or not len(opened):
            return
        self._opened_at = time.monotonic()
        self._pace.note(len(opened), self._opened_at)
        self.filler.readahead.opened(opened)
        self._observe(opened)
        # What is used now is not what is brought for its next use.
        self._paged = self._paged[~np.isin(self._paged, opened)]
        ordered, places = self._ahead
        left = ~np.isin(ordered, opened)
        self._ahead = ordered[left], places[left]

    def step(self) -> None:
        """One turn."""
        if not self.is_active:
            return
        if not self._placed:
            self._place()
            return
        for course in self.courses:
            state = course.state
            try:
                course.step()
                self._know_used(course)
            except Exception:  # of the thread: no plan is worth the daemon
                log.exception("%s cannot be followed", course.file)
                course.drop("what comes next could not be worked out")
            if course.state == "dropped" and state != "dropped":
                self._say_dropped(course)
        if not self.is_active:
            self._give_up()
        elif not self.shared.control.off:
            self._evict()
            self._fetch()

    def _evict(self) -> None:
        try:
            self.evictions.step(self)
        except Exception:  # of the thread: the copies stay where they are
            log.exception("nothing goes from the tiers any more")
            self.evictions.end()

    def _know_used(self, course: Course) -> None:
        """A file that was used has a copy at its owner."""
        ids, places = course.take_used(), self.filler.places
        if len(ids) and places is not None and self._nodes is not None:
            owner = self._nodes.holders_of(ids)[:, 0]
            places.know(ids, np.where(owner == self._nodes.cluster.rank, NOBODY, owner))

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _observe(self, opened: Ids) -> None:
        """Each access is explained by one plan at most, first by the one that has fitted best."""
        active = [course for course in self.courses if course.state != "dropped"]
        active.sort(key=lambda c: -c.follower.fits if c.follower else 0)
        left = np.ones(len(opened), dtype=bool)
        fitted = []
        for course in active:
            fits = np.zeros(len(opened), dtype=bool)
            fits[left] = course.observe(opened[left])
            left &= ~fits
            fitted.append(fits)
        for course, fits in zip(active, fitted, strict=True):
            mine = fits | left
            course.judge(opened[mine], fits[mine])

    def _say_dropped(self, course: Course) -> None:
        log.warning("%s is not followed any more: %s", course.file, course.why)

    def _give_up(self) -> None:
        """All plans are dropped: what was before goes on."""
        self.filler.keeps, self.filler.staging.uses = self._before
        self.filler.prefers = None
        self._queue = self._kept_order = self._paged = np.zeros(0, dtype=np.uint64)

    # --- who keeps what -------------------------------------------------------------------------

    def _place(self) -> None:
        """Once everything is scanned: the thread finds the files and places them."""
        if self._placing is None:
            if self.filler.scanner.scanned and (self._nodes is None or self._nodes.is_decided):
                rooms = self.filler.rooms()
                words = self.shared.catalog.words.copy()
                self._placing = self._executor.submit(self._find_and_place, rooms, words)
        elif self._placing.done():
            try:
                self._install(self._placing.result())
            except Exception:
                self._placed = True
                log.exception("the plans cannot be followed")
                for course in self.courses:
                    course.drop("its files could not be placed")
                    self._say_dropped(course)
            if self._nodes is not None:
                self._nodes.awaits_plan = False

    def _install(self, placed: _Placed) -> None:
        self._placed = True
        entries = len(self.shared.catalog)
        for course, found in zip(self.courses, placed.found, strict=True):
            if found.problem:
                course.drop(found.problem)
                self._say_dropped(course)
            else:
                course.begin(found, entries)
        if not self.is_active:
            return
        self._known = np.zeros(entries, dtype=bool)
        self._tier = np.full(entries, NOWHERE, dtype=np.int32)
        self._known[placed.ids] = True
        self._tier[placed.ids] = placed.tier
        self._kept_order = placed.order
        if self._nodes is not None:
            self._nodes.step(scanned=True)  # the catalog may have grown since the thread began
            self._nodes.assign(placed.ids, placed.holders, placed.tier != NOWHERE)
        self._before = self.filler.keeps, self.filler.staging.uses
        self.filler.keeps = self.filler.staging.uses = self
        self.filler.prefers = self.tiers

    def _find_and_place(self, rooms: list[TierRoom], words: npt.NDArray[np.uint64]) -> _Placed:
        """For the thread."""
        catalog, sources = self.shared.catalog.reader(), self.filler.scanner.config.sources
        found = [course.find(catalog, sources) for course in self.courses]
        good = [i for i, each in enumerate(found) if not each.problem]
        none = np.zeros(0, dtype=np.int32)
        if not good:
            nobody = np.zeros((0, ASKED), dtype=np.int16)
            return _Placed(found, none.astype(np.uint64), nobody, none, none.astype(np.uint64))
        ids = np.unique(np.concatenate([found[i].entries for i in good]))
        sizes = catalog.entries["size"][ids]
        where = [np.searchsorted(ids, found[i].entries) for i in good]
        uses = [_Uses.of(self.courses[i]) for i in good]
        frequency = np.zeros(len(ids), dtype=np.uint64)
        first = np.full(len(ids), NOT_KNOWN, dtype=np.int64)
        for at, use in zip(where, uses, strict=True):
            np.add.at(frequency, at, use.frequency)
            np.minimum.at(first, at, use.first)
        holders, mine = self._share_out(good, where, ids, sizes)
        # What lies in a tier stays there; its room is counted already.
        here = state_of(words[ids]) == State.PRESENT
        tier = np.where(here, tier_of(words[ids]).astype(np.int32), np.int32(NOWHERE))
        todo = np.flatnonzero(mine & ~here)
        todo = todo[np.lexsort((first[todo], -frequency[todo].astype(np.int64)))]
        tier[todo] = FirstFit().place(sizes[todo], rooms)
        tier[tier >= self.filler.staging.number] = NOWHERE
        kept = todo[tier[todo] != NOWHERE]
        kept = kept[np.argsort(first[kept], kind="stable")]
        return _Placed(found, ids, holders, tier, ids[kept])

    def _share_out(
        self, good: list[int], where: list[Any], ids: Ids, sizes: npt.NDArray[np.uint64]
    ) -> tuple[Holders, npt.NDArray[np.bool_]]:
        """The holders of each file, the owner first, and which files this node holds. Every node
        computes the same, from the plans, the catalog and the nodes' quotas."""
        holders = np.full((len(ids), ASKED), NOBODY, dtype=np.int16)
        if self.cluster is None or len(self.cluster.members) == 1:
            return holders, np.ones(len(ids), dtype=bool)
        members, rank = self.cluster.members, self.cluster.rank
        if self._nodes is not None and len(members) * len(ids) * BYTES_OF_USES > MOST_OF_USES:
            log.warning(
                "%d nodes and %d files are too many for a placement by their uses: they stay where"
                " their hashes put them, and are fetched as the plan says",
                len(members),
                len(ids),
            )
            return self._nodes.holders_of(ids), self._nodes.keeps_here(ids)
        used = np.zeros((len(members), len(ids)), dtype=np.uint32)
        for i, at in zip(good, where, strict=True):
            of_plan = all_frequencies(self.courses[i].timeline)
            for node in range(len(members)):
                np.add.at(used[node], at, of_plan[node])
        placed = place(list(used), UNIT.rounded(sizes), rooms_of(self.cluster))
        holders[:, 0] = placed.owner
        # Of several others each file has another one first, so that all of them are asked.
        for node in range(len(members)):
            extra = placed.extra[node]
            free = (holders[extra, 1] == NOBODY) | (extra % len(members) == node)
            holders[extra[free], 1] = node
        mine = np.zeros(len(ids), dtype=bool)
        mine[placed.held(rank)] = True
        return holders, mine

    def keeps_here(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """As `Keeps` has it; files of no plan are kept as before."""
        known = ids < len(self._known)
        known[known] = self._known[ids[known]]
        answer = np.zeros(len(ids), dtype=bool)
        answer[known] = self._tier[ids[known]] != NOWHERE
        answer[~known] = self._before[0].keeps_here(ids[~known])
        return answer

    def tiers(self, ids: Ids) -> npt.NDArray[np.int32]:
        """(n,) the tiers in which these files have their place, NOWHERE for those of no plan."""
        answer = np.full(len(ids), NOWHERE, dtype=np.int32)
        inside = ids < len(self._tier)
        answer[inside] = self._tier[ids[inside]]
        return answer

    # --- what goes for others -------------------------------------------------------------------

    def uses(self) -> Future[Distances] | None:
        """As `Foresight` has it: all plans go on at the same pace."""
        active = [course for course in self.courses if course.state != "dropped"]
        if not active or not all(course.sees_far for course in active):
            return None
        followed = [(c.entries, c.follower.foresee()) for c in active if c.follower is not None]
        return self._executor.submit(_nearest, followed, len(self._known))

    def may_go(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """As `Foresight` has it: files of a plan that is followed, and not what others come here
        for."""
        known = np.zeros(len(self._known), dtype=bool)
        for course in self.courses:
            known[course.entries] |= course.is_active
        may = known[ids]
        if self._nodes is not None:
            may &= self._nodes.holders_of(ids)[:, 0] != self._nodes.cluster.rank
        return may

    @property
    def homes(self) -> npt.NDArray[np.int32]:
        """As `Foresight` has it."""
        return self._tier

    # --- what is fetched ------------------------------------------------------------------------

    def next_use(self, ids: Ids) -> npt.NDArray[np.int64]:
        """As `Uses` has it, in files from now."""
        ordered, places = self._ahead
        answer = np.full(len(ids), NOT_KNOWN, dtype=np.int64)
        if len(ordered):
            at = np.minimum(np.searchsorted(ordered, ids), len(ordered) - 1)
            found = ordered[at] == ids
            answer[found] = places[at[found]]
        return answer

    def seconds_to_use(self, ids: Ids) -> npt.NDArray[np.float64]:
        """As `Uses` has it: programs go on as fast as they do now."""
        uses = self.next_use(ids)
        files = np.where(uses == NOT_KNOWN, np.inf, uses.astype(np.float64))
        return self._pace.seconds(files, time.monotonic())

    def _look_ahead(self) -> None:
        """What comes next, of all plans: as if they went on at the same pace."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        parts = [course.upcoming(LOOK) for course in self.courses if course.is_active]
        ids = np.concatenate([*parts, np.zeros(0, dtype=np.uint64)])
        if len(parts) > 1:
            distance = np.concatenate([np.arange(len(part)) for part in parts])
            ids = ids[np.argsort(distance, kind="stable")]
        ordered, first = np.unique(ids, return_index=True)
        places = np.empty(len(first), dtype=np.int64)
        places[np.argsort(first, kind="stable")] = np.arange(len(first))
        self._ahead = ordered, places
        ids = ids[np.sort(first)]
        catalog, staging = self.shared.catalog, self.filler.staging
        staged = ~self.keeps_here(ids)
        takes = np.zeros(len(ids), dtype=np.int64)
        if staging.tier is not None:
            takes = staging.tier.rounded_all(catalog.entries["size"][ids])
        capacity = staging.capacity_bytes()
        window = capacity - capacity // WINDOW_LEAVES
        inside = np.cumsum(np.where(staged, takes, 0)) <= window
        self._horizon = int(inside.sum())
        self._queue = ids[self._is_absent(ids) & inside & (~staged | (takes <= capacity))]
        # The page cache may hold as much beside it, of all that lies in slow tiers.
        paged = ids[self.filler.readahead.is_for(ids)]
        sizes = catalog.entries["size"][paged]
        self._paged = paged[np.cumsum(sizes, dtype=np.float64) <= window]

    def _is_absent(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which of (n,) files a fill can be ordered of."""
        words = self.shared.catalog.words[ids]
        absent: npt.NDArray[np.bool_] = (state_of(words) == State.ABSENT) & (copy_of(words) == 0)
        return absent

    def _fetch(self) -> None:
        """Orders as much as is well under way at a time: first what is used next, then what is kept
        and used later."""
        self._look_ahead()
        self.filler.readahead.order(self._paged)
        catalog = self.shared.catalog
        sizes = catalog.entries["size"]
        states = state_of(catalog.words[self._begun])
        begun = self._begun[(states == State.WANTED) | (states == State.FILLING)]
        files = MOST_FILES - len(begun)
        bytes_ = MOST_BYTES - int(sizes[begun].sum(dtype=np.float64))
        least = LEAST_FILES - len(begun)
        while files > 0 and (bytes_ > 0 or least > 0):
            near = bool(len(self._queue))
            source = self._queue if near else self._kept_order
            if not len(source):
                break
            fit = int((np.cumsum(sizes[source[:files]], dtype=np.float64) <= bytes_).sum())
            taken = source[: max(least, fit)]
            if not len(taken):
                break
            if near:
                self._queue = self._queue[len(taken) :]
            else:
                self._kept_order = self._kept_order[len(taken) :]
            taken = taken[self._is_absent(taken)]
            self._order(taken)
            begun = np.concatenate([begun, taken])
            files, least = files - len(taken), least - len(taken)
            bytes_ -= int(sizes[taken].sum(dtype=np.float64))
        self._begun = begun

    def _order(self, ids: Ids) -> None:
        if not len(ids):
            return
        self.filler.order_planned(ids, self._horizon)
        left = ids[state_of(self.shared.catalog.words[ids]) == State.ABSENT]
        kept = self.keeps_here(left)
        # A tier may be fuller than was thought: then it is staged when its time comes.
        homeless = left[kept]
        self._tier[homeless[homeless < len(self._tier)]] = NOWHERE
        if not kept.all():
            # The area has no room for them yet: nor for what is used later.
            self._queue = self._queue[self.keeps_here(self._queue)]

    # --- the ranks ------------------------------------------------------------------------------

    def due_bytes(self) -> npt.NDArray[np.float64] | None:
        """(ranks of this node,) what each has still to get of the files that it needs next
        [bytes]. None without a plan, and with several: nobody knows whose a rank is."""
        following = [course for course in self.courses if course.state == "following"]
        if not self._placed or len(following) != 1:
            return None
        ids, rank = following[0].due()
        words, sizes = self.shared.catalog.words[ids], self.shared.catalog.entries["size"][ids]
        missing = np.isin(state_of(words), (State.ABSENT, State.WANTED, State.FILLING))
        ranks = following[0].timeline.ranks_per_node
        return np.bincount(rank[missing], sizes[missing], ranks).astype(np.float64)

    # --- told -----------------------------------------------------------------------------------

    def told(self) -> list[dict[str, Any]]:
        """For `status`, one for each plan."""
        return [course.told() for course in self.courses]


@dataclass(frozen=True, eq=False)
class _Uses:
    """Of one plan's files.  frequency : (files,), how often this node uses each;  first : (files,)
    int64, when first; where it never does, when anybody does"""

    frequency: npt.NDArray[np.uint32]
    first: npt.NDArray[np.int64]

    @classmethod
    def of(cls, course: Course) -> "_Uses":
        access = analyse(course.timeline, course.node)
        first = np.where(access.first_use == NEVER, NOT_KNOWN, access.first_use)
        if course.timeline.nodes > 1:
            anybody = _first_by_anybody(course.timeline)
            first = np.where(access.first_use == NEVER, anybody, first)
        return cls(access.frequency, first)


def _nearest(followed: list[tuple[Ids, Callable[[], Distances]]], entries: int) -> Distances:
    """For the thread: the next two uses of each entry by any of the plans."""
    first = np.full(entries, NOT_SOON, dtype=np.int64)
    second = first.copy()
    for at, foresee in followed:
        one, two = foresee()
        later = np.maximum(one, first[at])
        first[at] = np.minimum(one, first[at])
        second[at] = np.minimum(later, np.minimum(two, second[at]))
    return first, second


def _first_by_anybody(timeline: Timeline) -> npt.NDArray[np.int64]:
    """(units,) int64, the position of the first use by any node, NOT_KNOWN for none."""
    first = np.full(timeline.units, NOT_KNOWN, dtype=np.int64)
    for node in range(timeline.nodes):
        access = analyse(timeline, node)
        used = access.first_use != NEVER
        np.minimum.at(first, np.flatnonzero(used), access.first_use[used])
    return first
