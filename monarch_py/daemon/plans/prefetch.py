"""Fetches files ahead along the plans.

Everything is fetched in the exact order of access (NoPFS 2, Rule 1), behind what readers wait for.
Files that are kept go into the tiers, all others into the staging area, as far ahead as it can hold
them. Behind that window come the files that are kept, in the order of their first use.
"""

import time
from collections.abc import Sequence

import numpy as np

from monarch_py import word
from monarch_py.daemon.fill.filler import Filler
from monarch_py.daemon.plans.pace import Pace
from monarch_py.daemon.plans.tracker import PlanTracker
from monarch_py.native import NO_IDS, Bools, Floats, Ids, State
from monarch_py.plan import NEVER

# How many files of a plan are looked at ahead at most. The window ends earlier if the staging area
# cannot hold more.
LOOK = 65536
# The window takes the staging area except for one part in this many, which is left for what readers
# demand and for what was used just now.
WINDOW_LEAVES = 8
# How much is fetched ahead at a time, at least and at most [files, files, bytes]. It is little,
# because what is nearer may be known a moment later.
LEAST_FILES, MOST_FILES, MOST_BYTES = 4, 64, 32 << 20
# The shortest time between two looks at what lies ahead [s].
LOOK_S = 0.02


class PlanPrefetch:
    """Runs in turns of the daemon's loop and never waits. It tells the policy which files are used
    next."""

    def __init__(self, filler: Filler, trackers: Sequence[PlanTracker]) -> None:
        self.filler, self.shared, self._trackers = filler, filler.shared, trackers
        self._policy = filler.policy
        self._looked_at = float("-inf")
        self._pace = Pace()
        self.begin(NO_IDS)

    def begin(self, order: Ids) -> None:
        """Begins with another placement.

        order : files that have their place here and no copy yet, by their first use
        """
        self._policy.foresee(NO_IDS)
        self._kept_order = order  # files that have not had their turn
        self._queue: Ids = NO_IDS
        self._paged: Ids = NO_IDS  # files of slow tiers that are used next
        self._horizon = 0  # how far the window goes, in files from now
        self._begun: Ids = NO_IDS

    def opened(self, ids: Ids) -> None:
        """Takes note of (n,) entries that programs have opened: nothing is brought for these uses
        any more."""
        self._pace.note(len(ids), time.monotonic())
        self.filler.readahead.opened(ids)
        self._paged = self._paged[~np.isin(self._paged, ids)]
        self._policy.used(ids)

    def seconds_to_use(self, ids: Ids) -> Floats:
        """In how many seconds (n,) files are used next, if programs go on as fast as they do now;
        infinite for a file of which that is not known."""
        uses = self._policy.next_use(ids)
        files = np.where(uses == NEVER, np.inf, uses.astype(np.float64))
        return self._pace.seconds(files, time.monotonic())

    def _look_ahead(self) -> None:
        """Finds what comes next in all plans, as if they went on at the same pace."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        parts = [tracker.upcoming(LOOK) for tracker in self._trackers if tracker.is_active]
        ids = np.concatenate([*parts, NO_IDS])
        if len(parts) > 1:
            distance = np.concatenate([np.arange(len(part)) for part in parts])
            ids = ids[np.argsort(distance, kind="stable")]
        ids = ids[np.sort(np.unique(ids, return_index=True)[1])]
        self._policy.foresee(ids)
        catalog, staging = self.shared.catalog, self.filler.staging
        staged = ~self._policy.keeps(ids)
        takes = np.zeros(len(ids), dtype=np.int64)
        if staging.tier is not None:
            takes = staging.tier.rounded_all(catalog.entries["size"][ids])
        capacity = staging.capacity_bytes()
        window = capacity - capacity // WINDOW_LEAVES
        inside = np.cumsum(np.where(staged, takes, 0)) <= window
        self._horizon = int(inside.sum())
        self._queue = ids[self._is_absent(ids) & inside & (~staged | (takes <= capacity))]
        # Beside the staging area, the page cache may hold as much of what lies in slow tiers.
        paged = ids[self.filler.readahead.is_for(ids)]
        sizes = catalog.entries["size"][paged]
        self._paged = paged[np.cumsum(sizes, dtype=np.float64) <= window]

    def _is_absent(self, ids: Ids) -> Bools:
        """For which of (n,) files a fill can be ordered."""
        words = self.shared.catalog.words[ids]
        return np.asarray((word.state(words) == State.ABSENT) & (word.copy(words) == 0))

    def step(self) -> None:
        """Orders as much as may be under way at a time: first what is used next, then what is kept
        and used later."""
        self._look_ahead()
        self.filler.readahead.order(self._paged)
        catalog = self.shared.catalog
        sizes = catalog.entries["size"]
        states = catalog.states(self._begun)
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
        left = ids[self.shared.catalog.states(ids) == State.ABSENT]
        kept = self._policy.keeps(left)
        # A tier may be fuller than was thought: such a file is staged when its time comes.
        self._policy.lose(left[kept])
        if not kept.all():
            # The staging area has no room yet for the others, nor for what is used later.
            self._queue = self._queue[self._policy.keeps(self._queue)]
