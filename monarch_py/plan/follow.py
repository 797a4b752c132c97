"""Whether what a node does is what its plan says.

Workers of a DataLoader work ahead, each at its own pace, and what an operating system prefetches
comes early too. So an access need not be the next one; it has to be one of a window around the
furthest that was seen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from monarch_py.errors import ConfigError
from monarch_py.plan.samplers import Order
from monarch_py.plan.timeline import Part, Section

__all__ = ["Follower", "window_steps"]


def window_steps(part: Part, prefetched: int = 0) -> int:
    """How many steps accesses may be out of order: with W workers that each prepare P batches, W P
    are under way, and so are those of which the training waits for one.

    prefetched : steps that something else reads ahead of the training
    """
    return part.loader.ahead + 1 + prefetched


class Follower:
    """Compares the accesses of one node with one section of its plan.

    window : accesses that one may come early or late, beside the furthest one that was seen;
        None = as window_steps has it
    """

    def __init__(self, section: Section, node: int, window: int | None = None) -> None:
        if window is not None and window < 1:
            raise ConfigError(f"window: {window} is out of range; write 1 or more")
        own = section.node(node)
        self._places = np.flatnonzero(own >= 0)
        self._planned: Order = own[self._places]
        self._seen = np.zeros(len(self._planned), dtype=bool)
        self._start = section.start
        self._furthest = -1
        self.window = window or window_steps(section.part) * section.per_step

    @property
    def position(self) -> int:
        """The position behind the furthest access that was seen; the section's start before it."""
        if self._furthest < 0:
            return self._start
        return self._start + int(self._places[self._furthest]) + 1

    @property
    def missing(self) -> int:
        """Accesses that the window has passed without their being seen: reads that something else
        has answered, or another order."""
        passed = max(0, self._furthest + 1 - self.window)
        return int(passed - np.count_nonzero(self._seen[:passed]))

    def enter(self, position: int) -> None:
        """Goes on from this position, as a training that was restarted does; ConfigError if it is
        not in the section."""
        place = int(np.searchsorted(self._places, position - self._start))
        if position < self._start or place >= len(self._places):
            raise ConfigError(f"position: {position} is not in the section; enter another one")
        self._furthest = place - 1
        self._seen[:place] = True

    def observe(self, units: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which of these accesses, (n,) int32 units in the order seen, fit the plan: (n,) bool.

        Each stands for the earliest access of its unit in the window that was not seen yet; one
        that fits moves the window on.
        """
        fits = np.zeros(len(units), dtype=bool)
        for i, unit in enumerate(units.tolist()):
            low = max(0, self._furthest + 1 - self.window)
            around = self._planned[low : self._furthest + 1 + self.window]
            found = np.flatnonzero((around == unit) & ~self._seen[low : low + len(around)])
            if len(found):
                place = low + int(found[0])
                self._seen[place] = True
                self._furthest = max(self._furthest, place)
                fits[i] = True
        return fits
