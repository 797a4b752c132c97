"""How many worker processes a training needs (Lobster, section 4.1).

Seconds per sample are modelled by the number of workers, as piecewise linear functions: waiting for
the source and computing apart, since the one grows when the source is used up and the other when
the processors are; and one model per size of samples, since large ones take longer.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from monarch_py.loaders.staged.stage import Batch, Counts
from monarch_py.policies.lobster.preprocessing import PiecewiseLinear

# Fewer workers are preferred if they cost at most this much of an epoch.
TOLERANCE = 0.05
# Up to where time does not depend on the number of workers, and from where it grows with it.
PIECES = 2
# A model that misses what is measured next by this factor is of other conditions: copies have come,
# or another job has.
CHANGED = 1.5


class Key(NamedTuple):
    """size : class of sizes, the exponent of the power of two that a sample reaches [bytes]"""

    size: int
    workers: int


@dataclass
class Sum:
    """Measured times of samples [s], summed over workers."""

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
    """The class of samples of so many bytes: 17 from 128 KiB to just below 256 KiB."""
    return max(0, int(n_bytes).bit_length() - 1)


@dataclass(frozen=True)
class SampleTime:
    """Seconds that a worker takes for a sample of one size, by the number of workers.

    counts : the numbers of workers that were measured, ascending
    """

    waiting: PiecewiseLinear
    computing: PiecewiseLinear
    counts: Sequence[int]

    @classmethod
    def fit(cls, points: Mapping[int, Sum]) -> "SampleTime":
        """points : what was measured, by the number of workers"""
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
        # Two lines meet somewhere between the last number of the one and the first of the other.
        return float(np.interp(workers, self.counts, lines(self.counts)))


@dataclass(frozen=True)
class Model:
    """Seconds of batches by the number of workers.

    times : by class of sizes;  shares : of the samples, in the same order
    """

    times: Sequence[SampleTime]
    shares: Sequence[float]

    @classmethod
    def fit(cls, measured: Measured, shares: Mapping[int, float] | None = None) -> "Model":
        """shares : of the samples by class of sizes; None for those of what was measured"""
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
        """Seconds that one of so many workers takes for a sample."""
        each = (share * time(workers) for share, time in zip(self.shares, self.times, strict=True))
        return sum(each)

    def batch_seconds(self, workers: int, batch: float) -> float:
        """Seconds between two batches that so many workers bring."""
        return batch * self.per_sample(workers) / workers


def fewest(model: Model, batch: float, step_s: float, most: int) -> int:
    """The fewest workers with which an epoch takes at most 5 % longer than with the best number.

    batch : samples of a batch;  step_s : what the training computes between two batches [s]
    """
    times = [max(step_s, model.batch_seconds(count, batch)) for count in range(1, most + 1)]
    enough = np.flatnonzero(np.array(times) <= min(times) * (1 + TOLERANCE))
    return int(enough[0]) + 1


@dataclass
class Advisor:
    """Changes the number of workers of a loader between epochs, by what epochs have shown.

    most : workers;  measured : of epochs under the present conditions
    """

    most: int
    count: int = 1
    measured: Measured = field(default_factory=dict)
    _now: Measured = field(default_factory=dict)
    _began: float = 0.0
    _before: Counts = field(default_factory=Counts)

    def begin(self, counts: Counts) -> int:
        """Notes the beginning of an epoch. Returns the number of workers for it."""
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
        """Notes the end of an epoch, and decides on the next one."""
        batches = counts.batches - self._before.batches
        if not batches or not self._now:
            return
        wall = time.perf_counter() - self._began
        step_s = (wall - (counts.wait_seconds - self._before.wait_seconds)) / batches
        self._take_over()
        measured_most = max(key.workers for key in self.measured)
        batch = (counts.samples - self._before.samples) / batches
        # Beyond what was measured the model's last line is a guess: double at most.
        limit = min(self.most, 2 * measured_most)
        self.count = fewest(Model.fit(self.measured), batch, step_s, limit)

    def _take_over(self) -> None:
        """Adds the epoch's measurements; they replace all earlier ones if these foretell others."""
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
