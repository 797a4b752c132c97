"""The groups that a rank reads in an epoch, in the order in which it reads them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from monarch_py.arrays import Int32s, Ints
from monarch_py.plan.schedule import EpochSchedule


@dataclass(frozen=True, eq=False)
class Run:
    """Consecutive samples of a rank's epoch that belong to the same group.

    begin : the position, in the rank's epoch, of the run's first sample
    end : the position after the run's last sample
    samples : int64, the numbers of the run's samples in the order in which they are read: rising,
        without duplicates
    within : (end - begin,) int64, the order in which the samples are used: at the position begin +
        i, the training uses samples[within[i]]
    """

    begin: int
    end: int
    samples: Ints
    within: Ints


@dataclass(frozen=True, eq=False)
class RankGroups:
    """The batches of one rank in an epoch, and how they are divided into runs.

    samples : int32, the samples of all batches, one batch after the other
    ends : (steps,) int64, the index in `samples` at which each batch ends
    group : the number of samples in a group
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
        """The positions where runs begin, and the end of the last run."""
        changes = np.flatnonzero(np.diff(self.samples // self.group)) + 1
        return [0, *changes.tolist(), len(self.samples)]

    def runs(self, begin: int) -> Iterator[Run]:
        """Yields the run that contains the position `begin`, and all later runs."""
        borders = self.borders
        first = int(np.searchsorted(borders, begin, side="right")) - 1
        for low, high in zip(borders[first:-1], borders[first + 1 :], strict=True):
            samples, within = np.unique(self.samples[low:high], return_inverse=True)
            yield Run(low, high, samples.astype(np.int64), within)
