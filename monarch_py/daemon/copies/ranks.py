"""Divides the engine's threads among the ranks of this node.

A rank is a training process with its workers; the launcher numbers the ranks of a node
(csrc/preload/session/session.c). A demand is a part of a file that a reader waits for. At the end
of a step, all ranks wait for the slowest one. So a rank that is predicted to load more gets more of
the threads' time for its demands (Lobster, 4.2 and 4.3). Lobster's Algorithm 1 assigns a queue and
a number of threads to each rank. Here, a rank's queue is the set of its demands, and it gets slices
of thread time instead of threads.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import Floats, Ints, Uints
from monarch_py.daemon.copies.engine import Engine
from monarch_py.daemon.segments import Shared
from monarch_py.native import ffi, lib
from monarch_py.policies.lobster.queues import queue_seconds, share_threads

# The ranks' loads are predicted every WINDOW_S [s]. If predictions take long, they are made less
# often: they take at most the share MOST_OF_TIME of the daemon's time.
WINDOW_S = 0.1
MOST_OF_TIME = 0.02
# For each rank, the sizes of the files that it has opened are summed. The sum decays with the time
# constant MEMORY_S [s]. If it is below one byte, the rank is not active.
MEMORY_S = 0.5
# The thread time is cut into SLICES * ranks slices. `share_threads` searches for the best division
# of the slices among the ranks. The search's cost grows with the square of the number of slices. So
# with more than MOST_SEARCHED ranks, each rank gets slices in proportion to its load. A search
# would yield nearly the same.
SLICES, MOST_SEARCHED = 8, 8
# Each rank's load is raised to at least this share of the mean load. Otherwise the readers of a
# rank with a small load could exceed their time limit (csrc/preload/fill/wait.c).
LEAST_LOAD = 0.25
# `queue_seconds` takes integers, so loads are expressed in units of 1/PARTS of the largest load.
PARTS = 1 << 30

# A function that predicts how much each of this node's ranks will load next, in any unit. It
# returns an array (ranks,), or None if the next loads are not known.
Prediction = Callable[[], Floats | None]


def shares_of(loads: Floats) -> Ints:
    """Returns how many slices of the threads' time each rank gets, as an array (ranks,). Each rank
    gets at least one slice.

    loads : (ranks,) how much each rank is predicted to load, 0 or more, in any unit
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
    """Sets the ranks' shares in the engine. Runs in the daemon's loop and never blocks.

    is_on : whether ranks get shares; if not, all ranks are treated alike
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
        # (MONARCH_RANKS, 2). Column 0 is the total size of the files that each rank has opened.
        # Column 1 is the total size of those among them that should have had a copy but had none.
        # Row 0 belongs to the processes without a rank.
        self._counts = numbers.reshape(lib.MONARCH_RANKS, -1)[:, :2]
        self._seen = self._counts.astype(np.float64)
        self._recent = np.zeros_like(self._seen)
        self._looked_at = clock()
        self._next_look = float("-inf")
        self._shares: npt.NDArray[np.uint32] = np.zeros(lib.MONARCH_RANKS, dtype=np.uint32)

    def step(self, planned: Prediction) -> None:
        """Runs one iteration. If the last prediction is old enough, predicts the ranks' loads anew,
        and divides the thread time accordingly.

        planned : a function that returns the loads that a plan predicts, in the order of the ranks'
            numbers. If it returns None, the loads are predicted from the files that each rank has
            recently opened
        """
        now = self._clock()
        if not self.is_on or now < self._next_look:
            return
        self._look(now)
        active = np.flatnonzero(self._recent[:, 0])
        shares = np.zeros_like(self._shares)
        if len(active) > 1:
            found = shares_of(self._loads(active, planned()))
            # A rank that becomes active before the next prediction gets the mean share.
            shares[1:] = max(1, round(float(found.mean())))
            shares[active] = found
        if (shares != self._shares).any():
            self._shares = shares
            self.engine.share(shares)
        self._next_look = now + max(WINDOW_S, (self._clock() - now) / MOST_OF_TIME)

    def _look(self, now: float) -> None:
        counts = self._counts.astype(np.float64)
        # The counts should only grow. But clients write them, and a faulty client may decrease one.
        fresh = np.maximum(0.0, counts - self._seen)
        fade = math.exp(-(now - self._looked_at) / MEMORY_S)
        self._seen, self._looked_at = counts, now
        self._recent = self._recent * fade + fresh
        self._recent[self._recent[:, 0] < 1] = 0.0

    def _loads(self, active: npt.NDArray[np.intp], planned: Floats | None) -> Floats:
        """Returns how much each active rank is predicted to load next, as an array (active,).
        Without a plan, this is the share of bytes without a copy among the bytes of the rank's
        recently opened files. All ranks of a job read equally much in a step, so these shares can
        be compared.

        planned : the loads that a plan predicts, (ranks,); None without a plan
        """
        if planned is not None and active[-1] <= len(planned):
            return planned[active - 1]
        opened, missed = self._recent[active].T
        return np.asarray(np.minimum(1.0, missed / opened))

    def told(self) -> list[dict[str, Any]]:
        """Returns the status fields of each rank that has opened any file."""
        active = np.flatnonzero(self._recent[:, 0])
        together = max(1, int(self._shares[active].sum()))
        # np.flatnonzero raises an error if its array changes during the call. Clients may increase
        # the counts at any time, so a copy of the counts is used.
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
