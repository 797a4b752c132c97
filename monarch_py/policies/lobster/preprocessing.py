"""A piecewise linear model of preprocessing time as a function of threads (Lobster 4.1)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.errors import PolicyError
from monarch_py.policies.view import Floats


@dataclass(frozen=True)
class PiecewiseLinear:
    """Line segments, each for a range of x.

    starts : (pieces,) the x at which the range of each line begins, ascending. The first line also
        applies to smaller x; the range of the last line has no end
    slope, intercept : (pieces,)
    """

    starts: Floats
    slope: Floats
    intercept: Floats

    @classmethod
    def fit(cls, x: npt.ArrayLike, y: npt.ArrayLike, pieces: int) -> "PiecewiseLinear":
        """Returns the lines that fit the measurements best, by least squares.

        x : (points,), for example threads
        y : (points,), for example seconds per batch
        pieces : the largest number of lines

        Each line is fitted to points with at least two different x, unless all points have the same
        x. Dynamic programming compares all ways to divide the points among lines (Bellman 1961), so
        the sum of squares is minimal. Raises PolicyError if there are no points, if `x` and `y`
        differ in length, or if `pieces` is below 1.

        Preprocessing becomes faster with more threads until they use all cores or the memory's
        whole bandwidth. Beyond that, more threads make it slower. Two or three lines can model this
        curve, but one line cannot.
        """
        xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        if not len(xs) or len(xs) != len(ys) or pieces < 1:
            raise PolicyError(
                f"preprocess: {len(xs)} thread counts, {len(ys)} times and {pieces} pieces are"
                " given; give one time for each thread count, and 1 piece or more"
            )
        by_x = np.argsort(xs, kind="stable")
        xs, ys = xs[by_x], ys[by_x]
        cuts = _best_cuts(xs, ys, pieces)
        lines = [_line(xs[a:b], ys[a:b]) for a, b in zip(cuts, [*cuts[1:], len(xs)], strict=True)]
        return cls(
            xs[cuts], np.array([line[0] for line in lines]), np.array([line[1] for line in lines])
        )

    def __call__(self, x: npt.ArrayLike) -> Floats:
        """Returns the y that the model gives for each x. A negative y becomes 0, because y is a
        time. Between the last point of one piece and the first point of the next piece, the line of
        the earlier piece applies."""
        xs = np.asarray(x, dtype=np.float64)
        piece = np.maximum(0, np.searchsorted(self.starts, xs, side="right") - 1)
        return np.maximum(0, self.slope[piece] * xs + self.intercept[piece])


def _line(x: Floats, y: Floats) -> tuple[float, float, float]:
    """Returns the slope, intercept and sum of squared deviations of the best-fitting line."""
    deviation = x - x.mean()
    spread = float(deviation @ deviation)
    slope = float(deviation @ y) / spread if spread else 0.0
    intercept = float(y.mean() - slope * x.mean())
    rest = y - slope * x - intercept
    return slope, intercept, float(rest @ rest)


def _best_cuts(x: Floats, y: Floats, pieces: int) -> list[int]:
    """Returns the index of the first point of each piece. Points that have the same x belong to the
    same piece."""
    starts = [0, *(np.flatnonzero(np.diff(x)) + 1).tolist()]
    ends = [*starts[1:], len(x)]
    cost = {
        (i, j): _line(x[starts[i] : ends[j]], y[starts[i] : ends[j]])[2]
        for i in range(len(starts))
        for j in range(i + 1, len(starts))
    }
    if not cost:
        return [0]
    # Points with the same x form a group. least[k][j] is a pair: the least cost of fitting k + 1
    # pieces to the groups 0 to j, and the group at which the last of these pieces begins.
    least = [{j: (cost[0, j], 0) for j in range(1, len(starts))}]
    for _ in range(1, pieces):
        before, now = least[-1], {}
        for j in range(1, len(starts)):
            options = [(before[i - 1][0] + cost[i, j], i) for i in range(2, j) if i - 1 in before]
            if options:
                now[j] = min(options)
        least.append(now)
    last = len(starts) - 1
    # Choose the smallest number of pieces that has the least cost. Costs below `slack` count as
    # equal, so that rounding errors add no piece.
    slack = 1e-12 * float(y @ y)
    count = min(
        (k for k in range(len(least)) if last in least[k]),
        key=lambda k: (max(slack, least[k][last][0]), k),
    )
    cuts, j = [], last
    for k in range(count, -1, -1):
        begin = least[k][j][1]
        cuts.append(starts[begin])
        j = begin - 1
    return cuts[::-1]
