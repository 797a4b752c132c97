"""Which groups a rank reads in an epoch, one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from monarch_py.native import Int32s, Ints
from monarch_py.plan.schedule import EpochSchedule


@dataclass(frozen=True, eq=False)
class Run:
    """The samples of one group that a rank takes one after the other.

    begin, end : their places in the rank's epoch
    samples : (samples,) int64, rising, as they are read
    within : (end - begin,) int64, the number among `samples` of each place
    """

    begin: int
    end: int
    samples: Ints
    within: Ints


@dataclass(frozen=True, eq=False)
class RankGroups:
    """The epoch of one rank.

    samples : (accesses,) int32, batch after batch;  ends : (steps,) int64, where each batch ends
    """

    samples: Int32s
    ends: Ints
    group: int

    @classmethod
    def of(cls, schedule: EpochSchedule, rank: int, group: int) -> "RankGroups":
        batches = [schedule.batch(step, rank) for step in range(schedule.steps)]
        ends = np.cumsum([len(batch) for batch in batches])
        return cls(np.concatenate(batches), ends, group)

    @cached_property
    def borders(self) -> list[int]:
        """Where the runs begin, and where the last one ends."""
        changes = np.flatnonzero(np.diff(self.samples // self.group)) + 1
        return [0, *changes.tolist(), len(self.samples)]

    def runs(self, begin: int) -> Iterator[Run]:
        """The runs from the one with the place `begin` on."""
        borders = self.borders
        first = int(np.searchsorted(borders, begin, side="right")) - 1
        for low, high in zip(borders[first:-1], borders[first + 1 :], strict=True):
            samples, within = np.unique(self.samples[low:high], return_inverse=True)
            yield Run(low, high, samples.astype(np.int64), within)
