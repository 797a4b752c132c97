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

# Marks a position without an access, for example the last position of a rank that has one sample
# fewer than other ranks.
NONE = -1

# `Sampler.backwards` holds at least this many orders in memory at a time if each order is derived
# from the previous one.
BLOCK_EPOCHS = 8

# The largest number of samples: an Order can contain that many different numbers besides NONE.
MAX_SAMPLES = (1 << 31) - 2


def check_length(key: str, value: int) -> None:
    """Raises ConfigError unless `value`, given for `key`, is a number of samples, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ConfigError(f"{key}: {value!r} is not a whole number; write a number of samples")
    if not 1 <= value <= MAX_SAMPLES:
        raise ConfigError(f"{key}: {value} is out of range; write a number from 1 to {MAX_SAMPLES}")


def check_choice(key: str, value: str, known: Collection[str]) -> None:
    """Raises ConfigError unless `value`, given for `key`, is one of the known words."""
    if value not in known:
        raise ConfigError(f"{key}: {value!r} is not known; write {' or '.join(known)}")


class Buffers:
    """Arrays for a sequence of orders. An array is reused once no reference to it is left.

    Without reuse, the kernel would have to supply fresh pages. For an order of 14 million numbers,
    supplying the pages takes as long as shuffling the numbers. Two arrays are kept, because a loop
    holds one order while the next one is made.
    """

    def __init__(self) -> None:
        self._kept: list[Order] = []

    def take(self, n: int) -> Order:
        """Returns an array (n,) with arbitrary content, to which no other reference exists."""
        for i in range(len(self._kept)):
            # One reference is the list's, and one is the argument of getrefcount. A caller that
            # still uses the array, or a view of it, holds another reference.
            if len(self._kept[i]) == n and sys.getrefcount(self._kept[i]) == 2:
                return self._kept[i]
        fresh = np.empty(n, dtype=np.int32)
        self._kept = [*self._kept[-1:], fresh]
        return fresh


class Sampler(ABC):
    """A sampler whose order is known before it runs.

    Subclasses are frozen dataclasses. Their fields determine the orders: two samplers with equal
    fields yield the same orders, whatever they yielded before. Samplers that have arrays as fields
    cannot be compared.

    length : number of samples in the dataset, which are numbered from 0
    reach : for how many epochs, from epoch 0 on, the order is known; None for all
    is_chained : whether an order is derived from the order of the previous epoch, so that no epoch
        can be skipped
    ranks_field : name of the field with the number of ranks for which the order is made; None if
        there is no such field
    own_split : the only Loader.split that distributes this order over the ranks in the same way as
        the library from which the sampler comes; None if every split may be used
    by_epoch : True if the sampler counts epochs of the training (set_epoch), even for a part that
        does not run in each epoch; False if it counts the runs of its part
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
        """Yields the orders of the epochs `start`, `start` + 1, ... If `reach` is not None, epoch
        `reach` - 1 is the last. Each order contains the samples in the order of access, (count,)
        int32. The caller may keep the arrays."""

    def epoch(self, number: int) -> Order:
        """Returns the order of one epoch, (count,) int32. Raises ConfigError for an epoch beyond
        `reach`.

        If the random generator is not seeded again in each epoch, the epochs before this one are
        drawn too.
        """
        self.check_epoch(number)
        return next(self.epochs(number))

    def backwards(self, start: int, stop: int) -> Iterator[Order]:
        """Yields the orders of the epochs `stop` - 1 down to `start`. Chained orders can only be
        drawn from the first epoch on. So they are drawn in blocks: for each block, all earlier
        epochs are drawn again, but only the block is kept in memory."""
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
