"""Rates that grow with the number of threads or clients, as the performance model has them.

NoPFS (Dryden et al., SC'21, section 4) gives a storage class the read rate r_j(p_j) of its p_j
threads together, and the PFS the rate t(g) of its g clients together: both are aggregates, and one
thread or client of n gets 1/n of them. They are measured at some numbers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["Curve"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """An aggregate rate by the number of those who share it.

    points : (number, rate [bytes/s of all together]), numbers from 1 and rising, rates above 0

    Between two points the aggregate is interpolated linearly. Below the first it is proportional
    to the number (whoever is alone gets the share that he would have among that many); above the
    last it is constant, so that each one's share falls. The paper is silent on what lies outside.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        """ValueError for points that are no curve."""
        numbers = [number for number, _ in self.points]
        if not numbers:
            raise ValueError("a curve needs a point")
        if numbers[0] < 1 or any(b <= a for a, b in pairwise(numbers)):
            raise ValueError(f"the numbers of a curve begin with 1 or more and rise: {numbers}")
        if not all(0 < rate < float("inf") for _, rate in self.points):
            raise ValueError("the rates of a curve are above 0 and finite")

    @classmethod
    def of(cls, points: Mapping[int, float]) -> Curve:
        """A curve of points in any order; ValueError for points that are none."""
        return cls(tuple(sorted((int(n), float(rate)) for n, rate in points.items())))

    def total(self, numbers: npt.ArrayLike) -> Floats:
        """The rate [bytes/s] of all together, by how many they are (any shape, 0 or more)."""
        known, rates = zip((0, 0.0), *self.points, strict=True)
        # np.interp keeps the last rate above the last number; (0, 0) makes it proportional below.
        return np.asarray(np.interp(np.asarray(numbers, np.float64), known, rates), np.float64)

    def each(self, numbers: npt.ArrayLike) -> Floats:
        """The rate [bytes/s] of each of them, by how many they are (any shape, 1 or more)."""
        return self.total(numbers) / np.asarray(numbers, np.float64)
