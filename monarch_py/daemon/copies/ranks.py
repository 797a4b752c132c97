"""The ranks of this node, and how the engine's threads are shared among them.

A rank is a training process with its workers, as its launcher numbers those of a node
(csrc/preload/session/session.c). All ranks wait for the slowest one at the end of a step. So a rank
that is predicted to load more gets more turns among the reads that readers wait for (Lobster, 4.2
and 4.3): the demands of each rank are its queue, and its threads, in slices of their time, are
those of Algorithm 1.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.daemon.copies.engine import Engine
from monarch_py.daemon.segments import Shared
from monarch_py.native import Floats, Ints, Uints, ffi, lib
from monarch_py.policies.lobster.queues import queue_seconds
from monarch_py.policies.lobster.threads import share_threads

# A prediction is made every WINDOW_S [s], and takes the part MOST_OF_TIME of the daemon's time at
# most.
WINDOW_S = 0.1
MOST_OF_TIME = 0.02
# The bytes that a rank has opened count for less with time: after this long, for 1/e [s]. A rank
# with less than a byte left counts as none.
MEMORY_S = 0.5
# There are SLICES slices of the threads' time for each rank on average. The search takes time with
# their square. With more ranks than MOST_SEARCHED, each gets slices in proportion to what it loads,
# which is what the search comes to where the slices are thin.
SLICES, MOST_SEARCHED = 8, 8
# No rank is taken for loading less than this part of the mean: its readers wait for a bounded time
# (csrc/preload/fill/demand.c), which must not pass because other ranks miss more.
LEAST_LOAD = 0.25
# Loads are counted in this many parts of the largest one, because the policy takes whole numbers.
PARTS = 1 << 30

# (ranks of a node,) what each will load next, in any unit; None if that is not known.
Prediction = Callable[[], Floats | None]


def shares_of(loads: Floats) -> Ints:
    """How many slices of the threads' time each rank gets: (ranks,), 1 or more each.

    loads : (ranks,) what each is predicted to load, 0 or more, in any unit
    """
    ranks, most = len(loads), float(loads.max(initial=0.0))
    if not most:
        return np.ones(ranks, dtype=np.int64)
    loads = np.maximum(loads, LEAST_LOAD * loads.mean())
    parts = np.rint(loads / most * PARTS).astype(np.int64)
    slices = SLICES * ranks
    if ranks > MOST_SEARCHED:
        in_proportion = np.rint(parts / parts.sum() * slices).astype(np.int64)
        return np.asarray(np.maximum(1, in_proportion))
    seconds = queue_seconds(parts[:, None], np.ones(1), slices)
    return share_threads(seconds, slices)


class Ranks:
    """Runs in turns of the daemon's loop and never waits.

    is_on : readers take their turns by ranks; otherwise all ranks are alike
    """

    def __init__(
        self,
        shared: Shared,
        engine: Engine,
        *,
        is_on: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine, self.is_on, self._clock = engine, is_on, clock
        counted = ffi.buffer(ffi.addressof(shared.clients, "rank"))
        numbers: Uints = np.frombuffer(counted, dtype=np.uint64)
        # (MONARCH_RANKS, 2): bytes opened, and missed; row 0 belongs to no rank.
        self._counts = numbers.reshape(lib.MONARCH_RANKS, -1)[:, :2]
        self._seen = self._counts.astype(np.float64)
        self._recent = np.zeros_like(self._seen)
        self._looked_at = clock()
        self._next_look = float("-inf")
        self._shares: npt.NDArray[np.uint32] = np.zeros(lib.MONARCH_RANKS, dtype=np.uint32)

    def step(self, planned: Prediction) -> None:
        """Runs one turn.

        planned : what a plan predicts, by the ranks' numbers; without one, the last misses of each
        rank predict its next
        """
        now = self._clock()
        if not self.is_on or now < self._next_look:
            return
        self._look(now)
        active = np.flatnonzero(self._recent[:, 0])
        shares = np.zeros_like(self._shares)
        if len(active) > 1:
            found = shares_of(self._loads(active, planned()))
            # A rank that turns up before the next look is taken for an average one.
            shares[1:] = max(1, round(float(found.mean())))
            shares[active] = found
        if (shares != self._shares).any():
            self._shares = shares
            self.engine.share(shares)
        self._next_look = now + max(WINDOW_S, (self._clock() - now) / MOST_OF_TIME)

    def _look(self, now: float) -> None:
        counts = self._counts.astype(np.float64)
        # A client may write anything, also a smaller count.
        fresh = np.maximum(0.0, counts - self._seen)
        fade = math.exp(-(now - self._looked_at) / MEMORY_S)
        self._seen, self._looked_at = counts, now
        self._recent = self._recent * fade + fresh
        self._recent[self._recent[:, 0] < 1] = 0.0

    def _loads(self, active: npt.NDArray[np.intp], planned: Floats | None) -> Floats:
        """(active,) what these ranks load next. All ranks of a job read as much in a step, so the
        part that each has missed tells how much it loads."""
        if planned is not None and active[-1] <= len(planned):
            return planned[active - 1]
        opened, missed = self._recent[active].T
        return np.asarray(np.minimum(1.0, missed / opened))

    def told(self) -> list[dict[str, Any]]:
        """What `status` says of each rank that has opened anything."""
        active = np.flatnonzero(self._recent[:, 0])
        together = max(1, int(self._shares[active].sum()))
        # A copy, because clients go on counting: numpy raises where that changes what it searches.
        counts = self._counts.copy()
        return [
            {
                "rank": rank - 1,
                "opened_bytes": int(counts[rank, 0]),
                "missed_bytes": int(counts[rank, 1]),
                "share": round(int(self._shares[rank]) / together, 4) if rank in active else 0,
            }
            for rank in np.flatnonzero(counts[:, 0]).tolist()
            if rank
        ]
