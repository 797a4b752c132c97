"""What every sampler is: the order of one epoch after the other."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from monarch_py.errors import ConfigError

__all__ = [
    "MAX_SAMPLES",
    "NONE",
    "Buffers",
    "Order",
    "Sampler",
    "check_length",
    "in_blocks_backwards",
]

# Numbers of samples: 4 bytes each, of which a plan of 14 million needs many.
Order = npt.NDArray[np.int32]

# Where there is no access: a rank that has one sample fewer than the others.
NONE = -1

# Numbers that an Order can hold, less the sentinel.
MAX_SAMPLES = (1 << 31) - 2


def check_length(key: str, value: int, least: int = 1) -> None:
    """ConfigError unless `value`, that of `key`, is a number of samples from `least` up."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ConfigError(f"{key}: {value!r} is not a whole number; write how many samples it is")
    if not least <= value <= MAX_SAMPLES:
        raise ConfigError(
            f"{key}: {value} is out of range; write a number from {least} to {MAX_SAMPLES}"
        )


class Buffers:
    """Arrays for one order after the other, each used again when nobody holds it any more.

    The kernel takes as long to hand out the pages of 14 million fresh numbers as a shuffle of them
    takes. Two are kept: a loop holds the last order while the next one is made.
    """

    def __init__(self) -> None:
        self._kept: list[Order] = []

    def take(self, n: int) -> Order:
        """An array (n,) of no particular content, that nobody else has."""
        for i in range(len(self._kept)):
            # One reference is the list's, one the argument's; a view holds one of its own.
            if len(self._kept[i]) == n and sys.getrefcount(self._kept[i]) == 2:
                return self._kept[i]
        fresh = np.empty(n, dtype=np.int32)
        self._kept = [*self._kept[-1:], fresh]
        return fresh


class Sampler(ABC):
    """A sampler whose order is known before it runs.

    Its subclasses are frozen dataclasses; their fields are what must be known. Those made with the
    same fields give the same orders, whatever has been asked of them before.

    length : samples in the dataset, which are numbered from 0
    reach : how many epochs are known from epoch 0 on; None = all
    ranks_field : the field, if there is one, that says for how many ranks the order is made
    own_split : the only Loader.split that deals out this order as its ranks see it
    by_epoch : epochs are those of the training (set_epoch), also for a part that does not run in
        each of them; else the sampler counts its own runs
    """

    length: int
    reach: ClassVar[int | None] = None
    by_epoch: ClassVar[bool] = False
    ranks_field: ClassVar[str | None] = None
    own_split: ClassVar[str | None] = None

    @property
    def count(self) -> int:
        """How many numbers the order of an epoch has."""
        return self.length

    @abstractmethod
    def epochs(self, start: int = 0) -> Iterator[Order]:
        """The orders of the epochs `start`, `start` + 1, ... without end, or up to `reach`.

        Each is (count,) int32, samples in the order of access, and the caller's to keep.
        """

    def epoch(self, number: int) -> Order:
        """The order of one epoch, (count,) int32; ConfigError beyond `reach`.

        Costs what the epochs before it cost where a generator runs on from one to the next.
        """
        self.check_epoch(number)
        return next(self.epochs(number))

    def backwards(self, start: int, stop: int) -> Iterator[Order]:
        """The orders of the epochs `stop` - 1 down to `start`."""
        for number in range(stop - 1, start - 1, -1):
            yield self.epoch(number)

    def check_epoch(self, number: int) -> None:
        """ConfigError for an epoch whose order cannot be known."""
        if number < 0:
            raise ConfigError(f"epoch: {number} is negative; epochs are counted from 0")
        if self.reach is not None and number >= self.reach:
            raise ConfigError(
                f"epochs: this {type(self).__name__} is known for {self.reach} only;"
                " plan so many, or record what follows"
            )

    def __len__(self) -> int:
        return self.count


def in_blocks_backwards(sampler: Sampler, start: int, stop: int, block: int) -> Iterator[Order]:
    """`backwards` for a sampler that cannot skip: `block` orders at a time are held in memory."""
    for low in range((stop - 1) // block * block, start - block, -block):
        first, last = max(low, start), min(low + block, stop)
        yield from reversed(list(islice(sampler.epochs(first), last - first)))
