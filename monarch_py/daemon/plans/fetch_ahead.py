"""Fetches the files of access plans before programs use them.

Files that this node keeps are fetched into its tiers, all others into the staging area. The window
consists of the files that are used next. Its length is limited, because its files for the staging
area must fit there together. The window's files are fetched in exactly the order of access (section
2 of the NoPFS paper, rule 1). Only files that readers wait for come earlier. Of the files behind
the window, only those that this node keeps are fetched, in the order of their first use.
"""

import math
import time
from collections.abc import Sequence

import numpy as np

from monarch_py.arrays import NO_IDS, Bools, Floats, Ids
from monarch_py.daemon.fill.filler import Filler
from monarch_py.daemon.plans.tracker import PlanTracker
from monarch_py.ipc import word
from monarch_py.native import State
from monarch_py.plan import NEVER

# The window has at most LOOK files of each plan, and fewer if the staging area cannot hold more.
LOOK = 65536
# The window leaves 1/WINDOW_LEAVES of the staging area free, for files that readers wait for, and
# for files that were just used.
WINDOW_LEAVES = 8
# At most MOST_FILES files, with at most MOST_BYTES [bytes] together, are fetched in advance at the
# same time. LEAST_FILES files are allowed whatever their size. The limits are low, because the next
# computation of the window may yield a file that is used sooner. This file must not wait for many
# fetches.
LEAST_FILES, MOST_FILES, MOST_BYTES = 4, 64, 32 << 20
# The shortest interval between two computations of the window [s].
LOOK_S = 0.02
# The pace of programs is the number of files that they open per second. Earlier opens lose weight
# exponentially with this time constant [s]. If no file was opened for this long, the pace is
# unknown.
MEMORY_S = 2.0


class FetchAhead:
    """Makes the filler fetch files before programs use them, and tells the policy which files are
    used next. Runs in the daemon's loop and never blocks."""

    def __init__(self, filler: Filler, trackers: Sequence[PlanTracker]) -> None:
        self.filler, self.shared, self._trackers = filler, filler.shared, trackers
        self._policy = filler.policy
        self._looked_at = float("-inf")
        self._pace = Pace()
        self.begin(NO_IDS)

    def begin(self, order: Ids) -> None:
        """Starts over for a new placement.

        order : the files that this node is to keep and of which it has no copy yet, sorted by their
            first use
        """
        self._policy.foresee(NO_IDS)
        # Files that this node is to keep, and whose fetch has not been ordered yet.
        self._kept_order = order
        # Files of the window whose fetch has not been ordered yet.
        self._queue: Ids = NO_IDS
        # Files that are used next and whose copies are in slow tiers. These copies are to be read
        # into the page cache.
        self._paged: Ids = NO_IDS
        self._horizon = 0  # the number of files in the window
        self._begun: Ids = NO_IDS  # files whose fetch was ordered and has perhaps not ended yet

    def opened(self, ids: Ids) -> None:
        """Records that programs have opened these files, so that nothing is fetched for these uses
        any more."""
        self._pace.note(len(ids), time.monotonic())
        self.filler.readahead.opened(ids)
        self._paged = self._paged[~np.isin(self._paged, ids)]
        self._policy.used(ids)

    def seconds_to_use(self, ids: Ids) -> Floats:
        """Returns an array (n,): for each file, the time until its next use [s], at the programs'
        present pace. The time is infinite if the next use or the pace is not known."""
        uses = self._policy.next_use(ids)
        files = np.where(uses == NEVER, np.inf, uses.astype(np.float64))
        return self._pace.seconds(files, time.monotonic())

    def _look_ahead(self) -> None:
        """Computes the window, which contains the next files of all plans. Assumes that the jobs of
        all plans advance at the same pace."""
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
        # Some of these files have copies in slow tiers. These copies are read into the page cache,
        # but not more than `window` bytes.
        paged = ids[self.filler.readahead.is_for(ids)]
        sizes = catalog.entries["size"][paged]
        self._paged = paged[np.cumsum(sizes, dtype=np.float64) <= window]

    def _is_absent(self, ids: Ids) -> Bools:
        """Returns an array (n,): for each file, whether its fill can be ordered."""
        words = self.shared.catalog.words[ids]
        return np.asarray((word.state(words) == State.ABSENT) & (word.copy(words) == 0))

    def step(self) -> None:
        """Runs one iteration: orders as many fetches as may run at the same time. First come the
        files in the window, then later files that this node is to keep."""
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
        left = self.filler.order_planned(ids, self._horizon)
        kept = self._policy.keeps(left)
        # A tier may have less room than the placement assumed. If a file has no room in its tier,
        # it is staged shortly before its use.
        self._policy.lose(left[kept])
        if not kept.all():
            # If the staging area has no room for a file, no later file may be staged before that
            # file. So the queue loses all files for the staging area. `_look_ahead` adds them
            # again.
            self._queue = self._queue[self._policy.keeps(self._queue)]


class Pace:
    """Measures how many files programs open per second."""

    def __init__(self) -> None:
        self._files = 0.0  # the number of opened files; earlier opens have less weight
        self._began = self._last = -math.inf

    def note(self, files: int, now_s: float) -> None:
        """Notes that `files` files were opened since the last call."""
        if now_s - self._last > MEMORY_S:
            self._began, self._files = now_s, 0.0
        else:
            self._files *= math.exp((self._last - now_s) / MEMORY_S)
        self._files += files
        self._last = now_s

    def seconds(self, files: Floats, now_s: float) -> Floats:
        """Returns an array (n,): for each number k in `files`, the time until programs have opened
        k more files [s]. The time is infinite if the programs have just begun, or open no files."""
        since = now_s - self._began
        if now_s - self._last > MEMORY_S or since <= 0:
            return np.full(len(files), np.inf)
        # Let the pace r be constant, and M = MEMORY_S. At time t after the start, the weighted
        # count of files is r M (1 - exp(-t / M)). `span` is M (1 - exp(-t / M)), so r is the count
        # divided by `span`.
        span = -MEMORY_S * math.expm1(-since / MEMORY_S)
        return np.asarray(files * span / self._files)
