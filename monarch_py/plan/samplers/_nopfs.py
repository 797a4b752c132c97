"""The sampler of NoPFS (Dryden et al., SC'21): std::shuffle of libstdc++."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import numpy as np

from monarch_py.arrays import pointer
from monarch_py.native import ffi, lib
from monarch_py.plan.samplers._base import Buffers, Order, Sampler

# std::minstd_rand0 replaces its state x by 16807 * x modulo this number.
_MODULUS = (1 << 31) - 1


@dataclass(frozen=True)
class NoPFSSampler(Sampler):
    """Shuffles the order of the previous epoch with std::shuffle. The random engine is
    std::default_random_engine, which is std::minstd_rand0 in libstdc++.

    Each rank takes a slice of each global batch (a Loader with `split: slices`).
    """

    length: int
    seed: int
    is_chained: ClassVar[bool] = True

    def epochs(self, start: int = 0) -> Iterator[Order]:
        # The C++ generator has an unsigned seed. It replaces a state of 0 by 1, because it could
        # never leave the state 0.
        state = ffi.new("uint32_t *", (self.seed & 0xFFFFFFFFFFFFFFFF) % _MODULUS or 1)
        items, buffers = np.arange(self.length, dtype=np.int32), Buffers()
        for number in count():
            lib.monarch_minstd_shuffle(state, pointer(items), self.length)
            if number >= start:
                order = buffers.take(self.length)
                order[:] = items
                yield order
                del order  # `buffers` reuses the array only if nothing refers to it.
