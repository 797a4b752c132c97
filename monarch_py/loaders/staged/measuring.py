"""Measures how long workers take for a dataset's samples, with different numbers of workers."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from monarch_py.arrays import Ints
from monarch_py.errors import ConfigError
from monarch_py.loaders.records.form import form_of
from monarch_py.loaders.staged.advice import (
    TOLERANCE,
    Key,
    Measured,
    Model,
    Sum,
    fewest,
    size_class,
)
from monarch_py.loaders.staged.stage import Stage
from monarch_py.loaders.staged.work import Failure, Work

# The numbers of workers that are measured, in this order. Measuring ends early if more workers do
# not help. For numbers in between, the model interpolates.
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Measuring ends when the speed is less than GAIN times the speed of two steps earlier in COUNTS.
# But at least four numbers of workers are measured, because the model has two straight lines, and
# each line needs two points. If all samples are of one size class, measuring also ends when batches
# are read more than twice as fast as the training uses them.
GAIN = 1.03
# LEAST_BATCHES: the least number of batches per worker in a measurement.
# FIRST_BATCHES: the number of batches per worker that are read before the measurement, to warm up.
LEAST_BATCHES, FIRST_BATCHES = 4, 2
# The largest number of size classes that are measured. Samples of rarer classes are treated as
# samples of the nearest measured class.
MOST_CLASSES = 3


@dataclass
class Advice:
    """The number of workers that a training run needs, and the measurements behind this number.

    workers : the smallest number of workers with which an epoch takes at most 5 % longer than with
        the best number of workers
    is_enough : whether these workers read batches at most 5 % slower than the training uses them
    model : the model, fitted to the measurements;  samples : the number of samples in an epoch
    batch : the number of samples in a batch
    step_s : how long the training computes for a batch [s]
    """

    workers: int
    is_enough: bool
    model: Model
    samples: int
    batch: int
    step_s: float
    measured: Measured = field(default_factory=dict)

    def epoch_seconds(self, workers: int) -> float:
        """Returns how long an epoch takes according to the model [s]."""
        batches = -(-self.samples // self.batch)
        return batches * max(self.step_s, self.model.batch_seconds(workers, self.batch))


def advise(
    dataset: Any,
    batch: int,
    step_s: float,
    *,
    most: int = 16,
    seconds: float = 1.0,
    collate_fn: Callable[[Any], Any] | None = None,
    method: str | None = None,
) -> Advice:
    """Measures how fast workers read the dataset's samples, and computes how many workers a
    training run needs. Samples are read in random order. A sample is read again
    only after all samples of about its size were read.

    batch : the number of samples in a batch
    step_s : how long the training computes for a batch [s]
    most : the most workers that are tried;  seconds : how long each number of workers is measured
    collate_fn : makes a batch from samples, as in the training's loader; None for the default
    method : how workers are started: "fork", "spawn" or "forkserver"; None for Python's default
    """
    if batch < 1 or most < 1 or step_s < 0 or seconds <= 0:
        raise ConfigError("batch, most, seconds: give numbers above 0; for step, 0 or more")
    if not len(dataset):
        raise ConfigError("dataset: it has no samples; name one that has some")
    form = form_of(dataset)
    sizes = None if form is None or collate_fn is not None else np.asarray(dataset.sizes)
    work = Work(dataset, sizes, collate_fn)
    measured: Measured = {}
    shares = {}
    for size, samples in _classes(dataset):
        shares[size] = len(samples) / len(dataset)
        target = step_s if shares[size] == 1 else 0.0
        each = _Measuring(work, samples, batch, seconds, method)
        for count, sum_ in each.until_enough(most, target):
            measured.setdefault(Key(size, count), Sum()).add(*vars(sum_).values())
    model = Model.fit(measured, shares)
    workers = fewest(model, batch, step_s, max(key.workers for key in measured))
    is_enough = model.batch_seconds(workers, batch) <= step_s * (1 + TOLERANCE)
    return Advice(workers, is_enough, model, len(dataset), batch, step_s, measured)


def _classes(dataset: Any) -> list[tuple[int, Ints]]:
    """Returns the most frequent size classes, each with its samples. A sample of a rarer class is
    added to the nearest frequent class."""
    everything = np.arange(len(dataset))
    if not hasattr(dataset, "sizes"):
        return [(0, everything)]
    classes = np.array([size_class(size) for size in np.asarray(dataset.sizes).tolist()])
    found, counts = np.unique(classes, return_counts=True)
    kept = np.sort(found[np.argsort(-counts, kind="stable")[:MOST_CLASSES]])
    nearest = kept[np.abs(classes[:, np.newaxis] - kept).argmin(axis=1)]
    return [(int(size), everything[nearest == size]) for size in kept]


class _Measuring:
    """Measures one size class. Each measurement begins with the first sample that the previous
    measurement has not requested."""

    def __init__(
        self, work: Work, samples: Ints, batch: int, seconds: float, method: str | None
    ) -> None:
        self._work, self._batch, self._seconds, self._method = work, batch, seconds, method
        order = np.random.default_rng().permutation(samples)
        self._samples = itertools.cycle(order.tolist())

    def _batches(self) -> Iterator[list[int]]:
        while True:
            yield list(itertools.islice(self._samples, self._batch))

    def until_enough(self, most: int, step_s: float) -> Iterator[tuple[int, Sum]]:
        """Yields pairs: a number of workers, and the times that were measured with this number. The
        numbers first rise, until more workers do not help or are not needed. Then the same numbers
        are measured again in falling order. So a slow change in the load of other programs affects
        all numbers about equally."""
        rates: list[float] = []
        for count in [each for each in COUNTS if each <= most]:
            found = self._with(count)
            yield count, found
            rates.append(count / found.per_sample)
            is_ample = step_s > 0 and self._batch / rates[-1] < step_s / 2
            if is_ample or (len(rates) > 3 and rates[-1] < GAIN * rates[-3]):
                break
        for count in reversed(COUNTS[: len(rates)]):
            yield count, self._with(count)

    def _with(self, count: int) -> Sum:
        stage = Stage(
            self._work,
            1 << 30,
            workers=count,
            prefetch=2,
            most_workers=count,
            method=self._method,
            init=None,
        )
        try:
            stage.begin(self._batches())
            return self._measure(stage, count)
        finally:
            stage.close()

    def _measure(self, stage: Stage, count: int) -> Sum:
        for _ in range(FIRST_BATCHES * count):
            self._next(stage, Sum())
        found, seen, began = Sum(), 0, time.perf_counter()
        while seen < LEAST_BATCHES * count or time.perf_counter() - began < self._seconds / 2:
            self._next(stage, found)
            seen += 1
        return found

    def _next(self, stage: Stage, found: Sum) -> None:
        batch = stage.next()
        if isinstance(batch.tree, Failure):
            batch.tree.raise_in_training("in a worker, while it was measured")
        found.add(len(batch.indices), *batch.times)
