"""Solves the assignment problem: the cheapest one-to-one assignment of rows to columns."""

import numpy as np
import numpy.typing as npt

from monarch_py.policies.view import Floats


def assign(costs: Floats) -> npt.NDArray[np.int64]:
    """Assigns a different column to each row, such that the sum of the costs is minimal. Returns
    the column of each row, (n,) int64.

    costs : (n, n)

    The method is the Hungarian algorithm, with shortest augmenting paths and potentials (Jonker and
    Volgenant 1987). It finds n paths of at most n steps each. A step is one array operation over
    all columns.
    """
    n = len(costs)
    row_price, column_price = np.zeros(n), np.zeros(n)
    row_of = np.full(n, -1)
    for row in range(n):
        distance = np.full(n, np.inf)
        came_from = np.full(n, -1)
        open_ = np.ones(n, dtype=bool)
        current, length, column = row, 0.0, -1
        while True:
            reach = length + costs[current] - row_price[current] - column_price
            nearer = open_ & (reach < distance)
            distance[nearer] = reach[nearer]
            came_from[nearer] = current
            column = int(np.where(open_, distance, np.inf).argmin())
            length = float(distance[column])
            open_[column] = False
            if row_of[column] < 0:
                break
            current = int(row_of[column])
        done = ~open_
        column_price[done] += distance[done] - length
        inner = done & (row_of >= 0)
        row_price[row_of[inner]] += length - distance[inner]
        row_price[row] += length
        _take(row_of, came_from, column, row)
    answer = np.empty(n, dtype=np.int64)
    answer[row_of] = np.arange(n)
    return answer


def _take(
    row_of: npt.NDArray[np.int64], came_from: npt.NDArray[np.int64], column: int, row: int
) -> None:
    """Reassigns the rows on the path that leads from `row` to `column`: each row gets the column
    that follows it on the path."""
    while True:
        before = int(came_from[column])
        had = np.flatnonzero(row_of == before)
        row_of[column] = before
        if before == row:
            return
        # Before this assignment, the row `before` had another column, which is now free. The next
        # pass of the loop assigns this free column to the preceding row of the path.
        column = int(had[had != column][0])
