"""The 64-bit word of a catalog entry: its state, and where its copy is (csrc/shared/catalog.h).

`make` packs a word. Each other function reads one field, of one word or of an array of words.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


def make(state: int, reason: int = 0, tier: Any = 0, copy: Any = 0) -> Any:
    """Packs a word (uint64). If `tier` or `copy` is an array, the result is an array of words."""
    tiers, copies = np.asarray(tier, dtype=np.uint64), np.asarray(copy, dtype=np.uint64)
    return np.uint64(state | reason << 4) | (tiers << np.uint64(8)) | (copies << np.uint64(12))


def state(words: Words) -> Words:
    states: Words = words & np.uint64(15)
    return states


def reason(words: Words) -> Words:
    reasons: Words = (words >> np.uint64(4)) & np.uint64(15)
    return reasons


def tier(words: Words) -> Words:
    tiers: Words = (words >> np.uint64(8)) & np.uint64(15)
    return tiers


def copy(words: Words) -> Words:
    copies: Words = words >> np.uint64(12)
    return copies
