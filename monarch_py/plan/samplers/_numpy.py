"""The sampler of programs that draw their orders with NumPy. It uses NumPy's own generators."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

import numpy as np

from monarch_py.errors import ConfigError
from monarch_py.plan.samplers._base import Buffers, Order, Sampler, check_choice

# For each name, the function that creates the generator from a seed.
_GENERATORS = {"RandomState": np.random.RandomState, "default_rng": np.random.default_rng}
_METHODS = ("permutation", "shuffle")


@dataclass(frozen=True)
class NumpySampler(Sampler):
    """Draws a permutation with numpy.random in each epoch.

    generator : 'RandomState' (the kind of generator that np.random.seed seeds) or 'default_rng'
    method : 'permutation' if each epoch calls rng.permutation(length); 'shuffle' if each epoch
        calls rng.shuffle for the array that has the order of the previous epoch
    reseed : True if a new generator is created in each epoch, from seed + epoch; False if one
        generator serves all epochs
    """

    length: int
    seed: int
    generator: str = "default_rng"
    method: str = "permutation"
    reseed: bool = False
    is_chained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seed < 0:
            raise ConfigError(
                f"seed: {self.seed} is negative, which NumPy refuses; write 0 or more"
            )
        check_choice("generator", self.generator, _GENERATORS)
        check_choice("method", self.method, _METHODS)

    def epochs(self, start: int = 0) -> Iterator[Order]:
        independent = self.reseed and self.method == "permutation"
        first = start if independent else 0
        rng = self._rng(first)
        items, buffers = np.arange(self.length, dtype=np.int32), Buffers()
        for number in count(first):
            if self.reseed:
                rng = self._rng(number)
            if self.method == "shuffle":
                rng.shuffle(items)
                order = buffers.take(self.length)
                order[:] = items
            else:
                order = rng.permutation(self.length).astype(np.int32)
            if number >= start:
                yield order
            del order  # `buffers` reuses the array only if nothing refers to it.

    def _rng(self, number: int) -> Any:
        return _GENERATORS[self.generator](self.seed + (number if self.reseed else 0))
