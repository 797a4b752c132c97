"""The MT19937 generator in C, seeded as torch's generator and NumPy's RandomState are."""

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import Uints, pointer
from monarch_py.native import ffi, lib


class Mersenne:
    """A generator of 32-bit numbers.

    seed : any integer; only its low 32 bits are used, as in torch.Generator.manual_seed
    """

    def __init__(self, seed: int) -> None:
        self.handle = ffi.new("struct monarch_mersenne *")
        lib.monarch_mersenne_seed(self.handle, seed & 0xFFFFFFFF)

    def skip(self, draws: int) -> None:
        """Skips `draws` numbers."""
        lib.monarch_mersenne_skip(self.handle, draws)

    def draw(self, n: int) -> npt.NDArray[np.uint32]:
        """Returns the next n numbers."""
        drawn = np.empty(n, dtype=np.uint32)
        lib.monarch_mersenne_fill(self.handle, pointer(drawn), n)
        return drawn

    def draw64(self, n: int) -> Uints:
        """Returns the next n numbers of 64 bits. Each number takes two draws; the first draw is its
        upper half."""
        halves = self.draw(2 * n).astype(np.uint64)
        numbers: Uints = halves[::2] << np.uint64(32) | halves[1::2]
        return numbers
