"""The daemon's history of its counters, for `monarch report`: a time series of bounded size."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from monarch_py.native import Uints

# The counters of `totals` that the history keeps.
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
# The most points, beside the first. When there are more, every second one goes, and the interval
# doubles: a daemon that runs for months needs no more memory than one that runs for minutes.
MOST_POINTS = 600
# The interval at the start [s].
FIRST_INTERVAL_S = 0.1

Point = tuple[Any, ...]


class History:
    """Points in time with what was counted until then, as sums since the daemon's start.

    A point is (seconds since the start, the counters of COUNTED, epoch, readers). `epoch` is that
    of the plan that is followed, or None; `readers` is how many threads of programs have opened
    files since the point before.
    """

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._interval = FIRST_INTERVAL_S
        self._opens: Uints | None = None

    def is_due(self, seconds: float) -> bool:
        return not self._points or seconds - self._points[-1][0] >= self._interval

    def note(
        self, seconds: float, totals: Mapping[str, Any], opens: Uints, epoch: int | None
    ) -> None:
        """Adds a point.

        opens : (slots,) files that programs have opened, by slot; each thread has a slot
        """
        changed = 0 if self._opens is None else int(np.count_nonzero(opens != self._opens))
        self._opens = opens
        counts = [totals[name] for name in COUNTED]
        point = (round(seconds, 3), *counts, epoch, changed)
        if len(self._points) > 1 and self._points[-2][1:] == self._points[-1][1:] == point[1:]:
            self._points.pop()  # nothing happens, so two points tell of any time
        self._points.append(point)
        if len(self._points) > MOST_POINTS:
            self._halve()

    def _halve(self) -> None:
        first, *others = self._points
        pairs = zip(others[::2], others[1::2], strict=True)
        self._points = [first, *((*two[:-1], max(one[-1], two[-1])) for one, two in pairs)]
        self._interval *= 2

    def told(self) -> dict[str, list[Any]]:
        """Returns the points as columns."""
        names = ("seconds", *COUNTED, "epoch", "readers")
        return {name: [point[i] for point in self._points] for i, name in enumerate(names)}
