"""tf.data.Dataset.shuffle without TensorFlow: the same indices as TensorFlow 2.21."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from monarch_py.arrays import pointer
from monarch_py.errors import MonarchError
from monarch_py.native import lib
from monarch_py.plan.samplers._base import Order, Sampler, check_length

# TensorFlow uses this global seed if tf.random.set_seed was not called (see its random_seed.py).
_DEFAULT_GLOBAL_SEED = 87654321
# An iterator has two seeds. Both are reduced modulo this number. If both become 0, the second seed
# becomes this number.
_SEEDS = (1 << 31) - 1


@dataclass(frozen=True)
class TensorFlowShuffle(Sampler):
    """The order of range(length).shuffle(buffer_size, seed, reshuffle_each_iteration) if each epoch
    makes a new iterator. tf.data.Dataset.list_files(seed=...) shuffles the sorted names in this
    way, with buffer_size = length.

    seed : the argument of shuffle. (If the program passes no seed, the order depends on what it has
        done before, and must be recorded.)
    global_seed : the argument of tf.random.set_seed; None if it was not called
    """

    length: int
    buffer_size: int
    seed: int
    global_seed: int | None = None
    reshuffle: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length("buffer_size", self.buffer_size)

    def epochs(self, start: int = 0) -> Iterator[Order]:
        for number in count(start):
            seed, seed2 = self._iterator_seeds(number)
            order = np.empty(self.length, dtype=np.int32)
            buffer = min(self.buffer_size, self.length)
            out = pointer(order)
            if lib.monarch_buffer_shuffle(seed, seed2, buffer, out, self.length) != 0:
                raise MonarchError(f"no memory for a shuffle buffer of {buffer} samples")
            yield order

    def _iterator_seeds(self, number: int) -> tuple[int, int]:
        """Returns the two seeds of the iterator in epoch `number`. With `reshuffle`, these are the
        next two numbers of the dataset's generator. Otherwise, every epoch has the dataset's own
        seeds."""
        given = _DEFAULT_GLOBAL_SEED if self.global_seed is None else self.global_seed
        seeds = given % _SEEDS, self.seed % _SEEDS
        if seeds == (0, 0):
            seeds = 0, _SEEDS
        if not self.reshuffle:
            return seeds
        drawn = np.empty(2 * number + 2, dtype=np.uint32)
        lib.monarch_philox(*seeds, pointer(drawn), len(drawn))
        return int(drawn[-2]), int(drawn[-1])
