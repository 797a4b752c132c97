"""The base of all samplers, which yield the order of one epoch after the other."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from itertools import islice
from math import isqrt
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from monarch_py.errors import ConfigError

# Numbers of samples. They take 4 bytes each, because a plan for 14 million samples needs many.
Order = npt.NDArray[np.int32]

# Marks a place without an access, for example of a rank with one sample fewer than the others.
NONE = -1

# Chained orders to hold in memory at least at a time when they are yielded backwards.
BLOCK_EPOCHS = 8

# How many different numbers an Order can hold, less the sentinel.
MAX_SAMPLES = (1 << 31) - 2


def check_length(key: str, value: int) -> None:
    """ConfigError unless `value`, given for `key`, is a number of samples, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ConfigError(f"{key}: {value!r} is not a whole number; write how many samples it is")
    if not 1 <= value <= MAX_SAMPLES:
        raise ConfigError(f"{key}: {value} is out of range; write a number from 1 to {MAX_SAMPLES}")


def check_choice(key: str, value: str, known: Collection[str]) -> None:
    """ConfigError unless `value`, given for `key`, is one of the known words."""
    if value not in known:
        raise ConfigError(f"{key}: {value!r} is not known; write {' or '.join(known)}")


class Buffers:
    """Arrays for one order after the other. An array is reused once nobody refers to it any more.

    Getting fresh pages for 14 million numbers takes the kernel as long as shuffling them. Two
    arrays are kept, because a loop holds the last order while the next one is made.
    """

    def __init__(self) -> None:
        self._kept: list[Order] = []

    def take(self, n: int) -> Order:
        """An array (n,) with arbitrary content, to which nobody else refers."""
        for i in range(len(self._kept)):
            # One reference is the list's, one is the argument's. A view would add another.
            if len(self._kept[i]) == n and sys.getrefcount(self._kept[i]) == 2:
                return self._kept[i]
        fresh = np.empty(n, dtype=np.int32)
        self._kept = [*self._kept[-1:], fresh]
        return fresh


class Sampler(ABC):
    """A sampler whose order is known before it runs.

    Subclasses are frozen dataclasses, whose fields are everything that must be known. Two samplers
    with the same fields give the same orders, whatever has been asked of them before. Those with
    arrays as fields cannot be compared.

    length : number of samples in the dataset, which are numbered from 0
    reach : how many epochs are known, from epoch 0 on; None = all
    is_chained : whether an order builds on that of the epoch before, so that none can be skipped
    ranks_field : name of the field that says for how many ranks the order is made, if any
    own_split : the only Loader.split that deals this order as the ranks see it; None = any
    by_epoch : True if the sampler counts epochs of the training (set_epoch), even for a part that
        does not run in each of them; False if it counts its own runs
    """

    length: int
    reach: ClassVar[int | None] = None
    by_epoch: ClassVar[bool] = False
    is_chained: ClassVar[bool] = False
    ranks_field: ClassVar[str | None] = None
    own_split: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        """ConfigError, naming the field, for a value that cannot be."""
        check_length("length", self.length)

    @property
    def count(self) -> int:
        """The number of samples in the order of an epoch."""
        return self.length

    @abstractmethod
    def epochs(self, start: int = 0) -> Iterator[Order]:
        """Yields the orders of the epochs `start`, `start` + 1, ... without end, or up to `reach`.

        Each is (count,) int32, samples in the order of access. The caller may keep it.
        """

    def epoch(self, number: int) -> Order:
        """The order of one epoch, (count,) int32; ConfigError beyond `reach`.

        If a generator runs on from epoch to epoch, this also costs the epochs before it.
        """
        self.check_epoch(number)
        return next(self.epochs(number))

    def backwards(self, start: int, stop: int) -> Iterator[Order]:
        """Yields the orders of the epochs `stop` - 1 down to `start`. Chained orders are drawn from
        the first epoch on, so a block of them is held in memory at a time."""
        block = max(BLOCK_EPOCHS, isqrt(stop - start)) if self.is_chained else 1
        for low in range((stop - 1) // block * block, start - block, -block):
            first, last = max(low, start), min(low + block, stop)
            yield from reversed(list(islice(self.epochs(first), last - first)))

    def check_epoch(self, number: int) -> None:
        """ConfigError for an epoch whose order cannot be known."""
        if number < 0:
            raise ConfigError(f"epoch: {number} is negative; epochs are counted from 0")
        if self.reach is not None and number >= self.reach:
            raise ConfigError(
                f"epochs: this {type(self).__name__} is known for {self.reach} only;"
                " plan so many, or record what follows"
            )
