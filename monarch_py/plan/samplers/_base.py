"""The base class of all samplers. A sampler yields the orders of epochs, one after the other."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from itertools import islice
from math import isqrt
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from monarch_py.errors import ConfigError
from monarch_py.util.units import counted

# The order of an epoch: an array of sample numbers. Each number takes only 4 bytes, because the
# order of a large dataset consists of millions of numbers.
Order = npt.NDArray[np.int32]

# The value at a position without an access, for example at the last position of a rank that has one
# sample fewer than other ranks.
NONE = -1

# `Sampler.backwards` computes at least this many orders at a time, and holds them in memory, if
# each order is derived from the previous one.
BLOCK_EPOCHS = 8

# The largest number of samples: an Order can contain that many different numbers besides NONE.
MAX_SAMPLES = (1 << 31) - 2


def check_length(key: str, value: int) -> None:
    """Raises ConfigError unless `value` is a whole number from 1 to MAX_SAMPLES. The message names
    `key`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ConfigError(f"{key}: {value!r} is not a whole number; write a number of samples")
    if not 1 <= value <= MAX_SAMPLES:
        raise ConfigError(f"{key}: {value} is out of range; write a number from 1 to {MAX_SAMPLES}")


def check_choice(key: str, value: str, known: Collection[str]) -> None:
    """Raises ConfigError unless `value` is one of the words `known`. The message names `key`."""
    if value not in known:
        raise ConfigError(f"{key}: {value!r} is not known; write {' or '.join(known)}")


class Buffers:
    """Arrays for a sequence of orders. An array is reused when no reference to it exists any more.

    Without reuse, each array would consist of new pages of memory. For an order of 14 million
    numbers, the kernel takes as long to supply these pages as shuffling the numbers takes. Two
    arrays are kept, because a loop holds one order while the next one is made.
    """

    def __init__(self) -> None:
        self._kept: list[Order] = []

    def take(self, n: int) -> Order:
        """Returns an array (n,) with arbitrary content, to which no other reference exists."""
        for i in range(len(self._kept)):
            # There are two references: the list has one, and the argument of getrefcount is the
            # other. A caller that uses the array, or a view of it, would have a third reference.
            if len(self._kept[i]) == n and sys.getrefcount(self._kept[i]) == 2:
                return self._kept[i]
        fresh = np.empty(n, dtype=np.int32)
        self._kept = [*self._kept[-1:], fresh]
        return fresh


class Sampler(ABC):
    """A sampler whose order is known before it runs.

    Subclasses are frozen dataclasses. Their fields alone determine the orders: two samplers with
    equal fields always yield the same orders. Samplers that have arrays as fields cannot be
    compared.

    length : number of samples in the dataset, which are numbered from 0
    reach : for how many epochs, from epoch 0 on, the order is known; None for all
    is_chained : whether an order is derived from the order of the previous epoch, so that no epoch
        can be skipped
    ranks_field : name of the field with the number of ranks for which the order is made; None if
        there is no such field
    own_split : the only Loader.split that distributes this order over the ranks in the same way as
        the library from which the sampler comes; None if every split may be used
    by_epoch : matters for a loop that does not run in every epoch of the training. True if the
        sampler counts all epochs (set_epoch); False if it counts only those in which the loop runs
    """

    length: int
    reach: ClassVar[int | None] = None
    by_epoch: ClassVar[bool] = False
    is_chained: ClassVar[bool] = False
    ranks_field: ClassVar[str | None] = None
    own_split: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        """Raises ConfigError if a field has a value that is not allowed; the message names the
        field."""
        check_length("length", self.length)

    @property
    def count(self) -> int:
        """The number of samples in the order of an epoch."""
        return self.length

    @abstractmethod
    def epochs(self, start: int = 0) -> Iterator[Order]:
        """Yields the orders of the epochs `start`, `start` + 1, ... without end, or up to epoch
        `reach` - 1 if `reach` is not None. Each order contains the samples in the order of access,
        (count,) int32. The caller may keep the arrays."""

    def epoch(self, number: int) -> Order:
        """Returns the order of one epoch, (count,) int32. Raises ConfigError for an epoch beyond
        `reach`. If the random generator is not seeded again in each epoch, the random numbers of
        all earlier epochs are drawn first.
        """
        self.check_epoch(number)
        return next(self.epochs(number))

    def backwards(self, start: int, stop: int) -> Iterator[Order]:
        """Yields the orders of the epochs `stop` - 1 down to `start`. If each order is derived from
        the previous one (`is_chained`), orders can only be computed from the first epoch on. They
        are then computed in blocks of epochs, the last block first. For each block, all earlier
        epochs are computed again, but only the orders of the block are kept in memory."""
        block = max(BLOCK_EPOCHS, isqrt(stop - start)) if self.is_chained else 1
        for low in range((stop - 1) // block * block, start - block, -block):
            first, last = max(low, start), min(low + block, stop)
            yield from reversed(list(islice(self.epochs(first), last - first)))

    def check_epoch(self, number: int) -> None:
        """Raises ConfigError for an epoch whose order cannot be known."""
        if number < 0:
            raise ConfigError(f"epoch: {number} is negative; epochs are counted from 0")
        if self.reach is not None and number >= self.reach:
            raise ConfigError(
                f"epochs: the order of this {type(self).__name__} is known for"
                f" {counted(self.reach, 'epoch')} only; plan at most {self.reach}, or record the"
                " orders of the later epochs"
            )
