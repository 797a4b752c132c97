"""The daemon's history of its counters, for `monarch report`: a time series of bounded size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from monarch_py.arrays import Floats, Uints

# The counters of `totals` (status.py) that the history records.
COUNTED = (
    "opens",
    "hits",
    "bytes_from_tier",
    "bytes_from_source",
    "source_bytes_read_by_fills",
    "source_bytes_read_by_programs",
    "bytes_from_peers",
    "bytes_while_filling",
    "waits",
    "wait_seconds",
)
# The history has at most this many points, not counting the first one. At this limit, neighbouring
# points are merged in pairs, and the interval between points doubles. So the history needs the same
# memory, however long the daemon runs.
MOST_POINTS = 600
# The interval between points when the daemon starts [s].
FIRST_INTERVAL_S = 0.1
# If a thread opens a file within this time [s] after its previous open, the thread counts as a
# reader all the time between the two opens.
LONGEST_READ_S = 30.0

Point = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """The counters at a point in time.

    seconds : the time since the daemon's start [s];  totals : the counters so far
    opens : (slots,) for each slot, the number of files that programs have opened. Each thread
        counts in one slot; several threads may share a slot
    epoch : the present epoch of the plan that the daemon follows, or None
    memory_bytes : how much more memory a RAM tier may use now [bytes]
    """

    seconds: float
    totals: Mapping[str, Any]
    opens: Uints
    epoch: int | None
    memory_bytes: int


class History:
    """A time series of the counters, as totals since the daemon's start.

    A point is (seconds since the start, the counters of COUNTED, epoch, readers, memory). `readers`
    is the number of threads of programs that were reading. At first, only threads that opened a
    file since the previous point are counted. A thread may read one file over several points;
    `_fill_gaps` adds it to these points when it opens its next file. `memory` [bytes] is the least
    that a RAM tier could still use since the previous point.
    """

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._interval = FIRST_INTERVAL_S
        self._opens: Uints | None = None
        self._opened_s: Floats = np.empty(0)  # when each slot last opened a file, (slots,)

    def is_due(self, seconds: float) -> bool:
        return not self._points or seconds - self._points[-1][0] >= self._interval

    def note(self, moment: Moment) -> None:
        """Adds a point."""
        point = self._point(moment)
        self._fill_gaps(moment)
        self._opens = moment.opens
        if (
            len(self._points) > 1
            and self._points[-2][1:-1] == self._points[-1][1:-1] == point[1:-1]
        ):
            # Nothing but the time and the memory has changed over the last two points and the new
            # point. The first and the last point describe such a period, so the new point replaces
            # the last one.
            point = (*point[:-1], min(self._points.pop()[-1], point[-1]))
        self._points.append(point)
        if len(self._points) > MOST_POINTS:
            self._halve()

    def _fill_gaps(self, moment: Moment) -> None:
        """Corrects the number of readers at earlier points. If a thread has opened a file since the
        last point, it was probably reading since its previous open. So the thread is added to the
        readers of all points after that open. An open more than LONGEST_READ_S ago is ignored."""
        if self._opens is None:
            self._opened_s = np.full(len(moment.opens), -np.inf)
            return
        changed = moment.opens != self._opens
        since = self._opened_s[changed]
        since = since[moment.seconds - since <= LONGEST_READ_S]
        self._opened_s[changed] = round(moment.seconds, 3)
        for i in range(len(self._points) - 1, -1, -1):
            point = self._points[i]
            if not (more := int(np.count_nonzero(since < point[0]))):
                break
            self._points[i] = (*point[:-2], point[-2] + more, point[-1])

    def _point(self, moment: Moment) -> Point:
        opens = moment.opens
        changed = 0 if self._opens is None else int(np.count_nonzero(opens != self._opens))
        counts = [moment.totals[name] for name in COUNTED]
        return (round(moment.seconds, 3), *counts, moment.epoch, changed, moment.memory_bytes)

    def _halve(self) -> None:
        first, *others = self._points
        pairs = zip(others[::2], others[1::2], strict=True)
        self._points = [first, *(_as_one(*pair) for pair in pairs)]
        self._interval *= 2

    def told(self, now: Moment) -> dict[str, list[Any]]:
        """Returns all points as a dict with one list for each field. The last point describes the
        moment `now`. That point is not stored, so that requests do not change the history."""
        points = [*self._points, self._point(now)]
        names = ("seconds", *COUNTED, "epoch", "readers", "memory_bytes")
        return {name: [point[i] for point in points] for i, name in enumerate(names)}


def _as_one(one: Point, two: Point) -> Point:
    return (*two[:-2], max(one[-2], two[-2]), min(one[-1], two[-1]))
