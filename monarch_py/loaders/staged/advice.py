"""Computes how many worker processes a training run needs, as in section 4.1 of the Lobster paper.

The model consists of two piecewise linear functions of the number of workers. One is the computing
time per sample [s], which grows when the processors are saturated. The other is the waiting time
per sample [s], which grows when the source is saturated. Each size class of samples has its own
model, because large samples take longer.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from monarch_py.loaders.staged.stage import Batch, Counts
from monarch_py.policies.lobster.preprocessing import PiecewiseLinear

# How much longer an epoch may take than with the best number of workers, as a share. `fewest`
# returns the smallest number of workers within this limit.
TOLERANCE = 0.05
# The largest number of straight lines in a function of the model: one line for few workers, which
# do not slow each other down, and one line for more workers.
PIECES = 2
# If a measurement differs from the model by more than this factor, the conditions have probably
# changed. For example, files were copied, or another job has started.
CHANGED = 1.5


class Key(NamedTuple):
    """Identifies a measurement.

    size : the size class of the samples, as `size_class` returns it
    workers : the number of workers
    """

    size: int
    workers: int


@dataclass
class Sum:
    """How long all workers together waited and computed for a number of samples [s]."""

    samples: int = 0
    waiting: float = 0.0
    computing: float = 0.0

    def add(self, samples: int, waiting: float, computing: float) -> None:
        self.samples += samples
        self.waiting += waiting
        self.computing += computing

    @property
    def per_sample(self) -> float:
        return (self.waiting + self.computing) / self.samples


Measured = dict[Key, Sum]


def size_class(n_bytes: float) -> int:
    """Returns the size class of a sample: the exponent of the largest power of two that is not
    above the sample's size [bytes]. Class 17 is from 128 KiB to just below 256 KiB."""
    return max(0, int(n_bytes).bit_length() - 1)


@dataclass(frozen=True)
class SampleTime:
    """The time [s] that a worker takes for a sample of one size class, as a function of the number
    of workers.

    counts : the numbers of workers that were measured, ascending
    """

    waiting: PiecewiseLinear
    computing: PiecewiseLinear
    counts: Sequence[int]

    @classmethod
    def fit(cls, points: Mapping[int, Sum]) -> "SampleTime":
        """Fits the model to measurements.

        points : the number of workers -> the times that were measured with it
        """
        x = sorted(points)
        waiting = [points[count].waiting / points[count].samples for count in x]
        computing = [points[count].computing / points[count].samples for count in x]
        fit = PiecewiseLinear.fit
        return cls(fit(x, waiting, PIECES), fit(x, computing, PIECES), x)

    def __call__(self, workers: int) -> float:
        return self._of(self.waiting, workers) + self._of(self.computing, workers)

    def _of(self, lines: PiecewiseLinear, workers: int) -> float:
        if workers > self.counts[-1]:
            return float(lines(workers))
        # `lines` has at most two straight lines. Where the first one ends between two measured
        # numbers of workers is not known. So the lines are used only at the measured numbers, and
        # values in between are interpolated.
        return float(np.interp(workers, self.counts, lines(self.counts)))


@dataclass(frozen=True)
class Model:
    """The time that batches take [s], as a function of the number of workers.

    times : (size classes,) the model of each size class
    shares : (size classes,) the part of all samples that is in each size class
    """

    times: Sequence[SampleTime]
    shares: Sequence[float]

    @classmethod
    def fit(cls, measured: Measured, shares: Mapping[int, float] | None = None) -> "Model":
        """Fits a model to measurements.

        shares : size class -> its share of all samples; None to use its share of the measured
            samples
        """
        classes = sorted({key.size for key in measured})
        points = {
            size: {key.workers: each for key, each in sorted(measured.items()) if key.size == size}
            for size in classes
        }
        if shares is None:
            counted = {
                size: sum(each.samples for each in points[size].values()) for size in classes
            }
            shares = {size: count / sum(counted.values()) for size, count in counted.items()}
        times = [SampleTime.fit(points[size]) for size in classes]
        return cls(times, [shares[size] for size in classes])

    def per_sample(self, workers: int) -> float:
        """Returns the seconds that each of `workers` workers takes for a sample."""
        each = (share * time(workers) for share, time in zip(self.shares, self.times, strict=True))
        return sum(each)

    def batch_seconds(self, workers: int, batch: float) -> float:
        """Returns the seconds between two batches if `workers` workers read them.

        batch : the number of samples in a batch
        """
        return batch * self.per_sample(workers) / workers


def fewest(model: Model, batch: float, step_s: float, most: int) -> int:
    """Returns the smallest number of workers with which an epoch takes at most 5 % longer than the
    shortest epoch with 1 to `most` workers.

    batch : the number of samples in a batch
    step_s : how long the training computes between two batches [s]
    """
    times = [max(step_s, model.batch_seconds(count, batch)) for count in range(1, most + 1)]
    enough = np.flatnonzero(np.array(times) <= min(times) * (1 + TOLERANCE))
    return int(enough[0]) + 1


@dataclass
class Advisor:
    """Chooses the number of a loader's workers for each epoch, from the times of earlier epochs.

    most : the largest number of workers
    count : the number of workers for the next epoch
    measured : the times of past epochs. If the times of a new epoch differ too much (CHANGED) from
        what these times predict, these times are dropped
    """

    most: int
    count: int = 1
    measured: Measured = field(default_factory=dict)
    _now: Measured = field(default_factory=dict)
    _began: float = 0.0
    _before: Counts = field(default_factory=Counts)

    def begin(self, counts: Counts) -> int:
        """Call this method at the beginning of an epoch. Returns the number of workers for the
        epoch."""
        self._began = time.perf_counter()
        self._before = Counts(**vars(counts))
        self._now = {}
        return self.count

    def saw(self, batch: Batch) -> None:
        if len(batch.indices):
            size = size_class(batch.n_bytes / len(batch.indices))
            each = self._now.setdefault(Key(size, self.count), Sum())
            each.add(len(batch.indices), *batch.times)

    def end(self, counts: Counts) -> None:
        """Call this method at the end of an epoch. Chooses the number of workers for the next
        epoch."""
        batches = counts.batches - self._before.batches
        if not batches or not self._now:
            return
        wall = time.perf_counter() - self._began
        step_s = (wall - (counts.wait_seconds - self._before.wait_seconds)) / batches
        self._take_over()
        measured_most = max(key.workers for key in self.measured)
        batch = (counts.samples - self._before.samples) / batches
        # Above the largest measured number of workers, the model only extrapolates. So the number
        # is at most doubled at a time.
        limit = min(self.most, 2 * measured_most)
        self.count = fewest(Model.fit(self.measured), batch, step_s, limit)

    def _take_over(self) -> None:
        """Adds the epoch's measurements to `measured`. In each size class, first compares the
        epoch's time per sample with what the earlier measurements predict. If the two differ by
        more than the factor CHANGED, drops all earlier measurements."""
        for key, now in self._now.items():
            known = {
                each.workers: sum_ for each, sum_ in self.measured.items() if each.size == key.size
            }
            if known:
                foretold = SampleTime.fit(known)(key.workers)
                if (
                    not 1 / CHANGED
                    <= (now.per_sample / foretold if foretold else CHANGED)
                    <= CHANGED
                ):
                    self.measured = {}
        self.measured.update(self._now)
