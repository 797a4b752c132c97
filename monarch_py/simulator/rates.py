"""Aggregate rates by the number of threads or clients, as in the performance model.

In the model (NoPFS, Dryden et al., SC'21, section 4) a storage class has the read rate r_j(p_j) of
its p_j threads together, and the PFS has the rate t(g) of its g clients together. Both are
aggregates, of which each of n threads or clients gets 1/n. They are measured for only a few
numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.native import Floats


@dataclass(frozen=True, slots=True)
class Curve:
    """An aggregate rate by the number of threads or clients that share it.

    points : number of sharers (1 or more) -> rate of all together, above 0 [bytes/s]

    Between two points the aggregate is interpolated linearly. Below the first point the aggregate
    is proportional to the number, so the share of each is constant. Above the last point the
    aggregate is constant, so the share of each falls. The paper does not define the rate outside
    the points.
    """

    points: Mapping[int, float]

    def __post_init__(self) -> None:
        """Raises ValueError for points that do not form a curve."""
        if not self.points or min(self.points) < 1:
            raise ValueError(f"a curve needs points with numbers from 1: {list(self.points)}")
        if not all(0 < rate < float("inf") for rate in self.points.values()):
            raise ValueError("the rates of a curve are above 0 and finite")

    def total(self, numbers: npt.ArrayLike) -> Floats:
        """The rate of all together [bytes/s], an array of the shape of `numbers`. numbers : how
        many threads or clients share the rate, 0 or more"""
        known, rates = zip((0, 0.0), *sorted(self.points.items()), strict=True)
        # np.interp keeps the last rate above the last number. The added point (0, 0) makes the rate
        # proportional below the first number.
        return np.asarray(np.interp(np.asarray(numbers, np.float64), known, rates), np.float64)
