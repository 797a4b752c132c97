"""The sampler of NoPFS (Dryden et al., SC'21): std::shuffle of libstdc++."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import numpy as np

from monarch_py.native import ffi, lib, pointer
from monarch_py.plan.samplers._base import Buffers, Order, Sampler

# std::minstd_rand0: x -> 16807 x mod this.
_MODULUS = (1 << 31) - 1


@dataclass(frozen=True)
class NoPFSSampler(Sampler):
    """One array that std::shuffle shuffles again each epoch, beginning with the order of the epoch
    before. The engine is std::default_random_engine, in libstdc++ std::minstd_rand0.

    Ranks take slices of each global batch: `split: slices` of a Loader.
    """

    length: int
    seed: int
    is_chained: ClassVar[bool] = True

    def epochs(self, start: int = 0) -> Iterator[Order]:
        # The engine is seeded with an unsigned number. 0 becomes 1, since 0 would stay 0 forever.
        state = ffi.new("uint32_t *", (self.seed & 0xFFFFFFFFFFFFFFFF) % _MODULUS or 1)
        items, buffers = np.arange(self.length, dtype=np.int32), Buffers()
        for number in count():
            lib.monarch_minstd_shuffle(state, pointer(items), self.length)
            if number >= start:
                order = buffers.take(self.length)
                order[:] = items
                yield order
                del order  # or the buffer would never be free again
