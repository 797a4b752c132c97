"""Aggregate rates by the number of threads or clients, as in the performance model.

NoPFS (Dryden et al., SC'21, section 4) gives a storage class the read rate r_j(p_j) of its p_j
threads together, and the PFS the rate t(g) of its g clients together. Both are aggregates, of which
each of n threads or clients gets 1/n. They are measured for a few numbers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """An aggregate rate by the number of threads or clients that share it.

    points : (number, rate of all together [bytes/s]), numbers from 1 and ascending, rates above 0

    Between two points the aggregate is interpolated linearly. Below the first point it is
    proportional to the number, so each one's share is constant. Above the last point the aggregate
    is constant, so each one's share falls. The paper does not say what lies outside the points.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        """ValueError for points that do not form a curve."""
        numbers = [number for number, _ in self.points]
        if not numbers:
            raise ValueError("a curve needs a point")
        if numbers[0] < 1 or any(b <= a for a, b in pairwise(numbers)):
            raise ValueError(f"the numbers of a curve begin with 1 or more and rise: {numbers}")
        if not all(0 < rate < float("inf") for _, rate in self.points):
            raise ValueError("the rates of a curve are above 0 and finite")

    @classmethod
    def of(cls, points: Mapping[int, float]) -> Curve:
        """A curve from points in any order; ValueError if they do not form a curve."""
        return cls(tuple(sorted((int(n), float(rate)) for n, rate in points.items())))

    def total(self, numbers: npt.ArrayLike) -> Floats:
        """The rate of all together [bytes/s]. numbers : how many share it, 0 or more, any shape"""
        known, rates = zip((0, 0.0), *self.points, strict=True)
        # np.interp keeps the last rate above the last number; (0, 0) makes it proportional below.
        return np.asarray(np.interp(np.asarray(numbers, np.float64), known, rates), np.float64)
