"""In which order whole epochs run (SOLAR 4.2).

The order of the samples within an epoch is drawn from its seed; in which order the epochs run is
free. SOLAR wants epochs beside each other where the one begins with what the other has ended with.

Under independent shuffles that has little to gain. First_C and Last_C are random subsets of c of
the n samples, so that an edge costs c (1 - c / n) with a standard deviation of c (1 - c / n) /
sqrt(n) (hypergeometric): for 88,064 samples 0.34 % of the mean. The best of 100 edges lies 2.5
deviations below it, and the whole path is 0.7 to 0.8 % cheaper than the given order. LRU then loads
0.1 to 0.3 % less (benchmarks/policies), and a buffer that drops what is used last loads D - C
whatever came before: it saves nothing. SOLAR reports 25.6 and 59.4 %: these cannot come from the
order alone where shuffles are independent, but they can from what it changes at the same time, a
buffer that knows the future in place of one that does not (from 1.3 to 2.6 (D - C) down to D - C,
in the same benchmark)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from monarch_py.policies.replay import in_time
from monarch_py.policies.solar.assignment import assign
from monarch_py.policies.view import Floats, Ints

__all__ = ["edge_costs", "lower_bound", "order_epochs", "path_cost"]

# Files in one block of the comparison of all epochs with all: 100 epochs take 50 MB.
BLOCK_FILES = 1 << 16
# Segments of at most so many epochs are moved elsewhere in the path.
LONGEST_SEGMENT = 3
ROUNDING = 1e-9


def edge_costs(
    orders: Callable[[int], Ints], epochs: int, capacity: int, files: int
) -> npt.NDArray[np.int64]:
    """N(u, v) = |First_C(v) without Last_C(u)|: samples that are loaded at the start of epoch v
    when u ran before it (SOLAR 4.2).

    orders : of an epoch (nodes, steps, batch), all nodes' accesses together in order of time;
    capacity : C, samples that the buffers of all nodes hold;  files : how many there are.
    Takes 2 bytes for each epoch and file.
    Returns (epochs, epochs) int64, u by v; the diagonal is 0 and means nothing.
    """
    first = np.zeros((epochs, files), dtype=bool)
    last = np.zeros((epochs, files), dtype=bool)
    for epoch in range(epochs):
        flat = in_time(orders(epoch))
        first[epoch, flat[:capacity]] = True
        last[epoch, flat[max(0, len(flat) - capacity) :]] = True
    common = np.zeros((epochs, epochs))
    for begin in range(0, files, BLOCK_FILES):
        block = slice(begin, begin + BLOCK_FILES)
        # Counts of one block are exact in float32.
        common += last[:, block].astype(np.float32) @ first[:, block].astype(np.float32).T
    costs = first.sum(axis=1)[None, :] - np.rint(common).astype(np.int64)
    np.fill_diagonal(costs, 0)
    return np.asarray(costs)


def path_cost(costs: npt.NDArray[np.integer], path: Ints) -> int:
    """The sum over the edges of a path: samples."""
    return int(costs[path[:-1], path[1:]].sum())


def lower_bound(costs: npt.NDArray[np.integer]) -> float:
    """No path through all epochs costs less: the cheapest way to give every epoch but one a
    successor of its own, which need not be a path (assignment bound)."""
    successor, table = _successors(costs)
    return float(table[np.arange(len(table)), successor].sum())


def order_epochs(costs: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """A cheap path through all epochs.

    costs : (epochs, epochs), u by v, as of `edge_costs`.  Returns (epochs,) int64.
    The better of the nearest neighbours and of the cheapest assignment whose cycles are joined
    (Karp 1979), improved by moving segments while that helps (Or 1976). The paper searches for the
    same with a particle swarm; gaps to `lower_bound` are in benchmarks/policies.
    """
    epochs = len(costs)
    if epochs < 3:
        paths = [np.arange(epochs), np.arange(epochs)[::-1]]
        return min(paths, key=lambda path: path_cost(costs, path))
    table = costs.astype(np.float64)
    starts = [_nearest(table), _patched(costs)]
    improved = [_move_segments(table, each) for each in starts]
    return min(improved, key=lambda path: path_cost(costs, path))


def _successors(costs: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int64], Floats]:
    """The cheapest successors, with one more epoch that costs nothing: where the path ends."""
    n = len(costs)
    table = np.zeros((n + 1, n + 1))
    table[:n, :n] = costs
    # No epoch follows itself: dearer than any path.
    np.fill_diagonal(table, float(costs.sum()) + 1)
    return assign(table), table


def _nearest(costs: Floats) -> npt.NDArray[np.int64]:
    """From the cheapest edge on, always the cheapest next epoch."""
    open_costs = costs.copy()
    np.fill_diagonal(open_costs, np.inf)
    current = int(open_costs.min(axis=1).argmin())
    path = [current]
    while len(path) < len(costs):
        open_costs[:, current] = np.inf
        current = int(open_costs[current].argmin())
        path.append(current)
    return np.array(path)


def _patched(costs: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """The cycles of the cheapest assignment, joined two at a time where that costs least."""
    successor, table = _successors(costs)
    n = len(table)
    while True:
        cycle = _cycles(successor)
        if cycle.max() == 0:
            break
        now = table[np.arange(n), successor]
        # i -> successor(j) and j -> successor(i), for i and j in different cycles.
        crossed = table[:, successor]
        change = crossed + crossed.T - now[:, None] - now[None, :]
        change[cycle[:, None] == cycle[None, :]] = np.inf
        i, j = divmod(int(change.argmin()), n)
        successor[i], successor[j] = successor[j], successor[i]
    path = [int(successor[n - 1])]
    while len(path) < n - 1:
        path.append(int(successor[path[-1]]))
    return np.array(path)


def _cycles(successor: Ints) -> npt.NDArray[np.int64]:
    """The number of the cycle in which each lies."""
    cycle = np.full(len(successor), -1)
    for start in range(len(successor)):
        at, number = start, int(cycle.max()) + 1
        while cycle[at] < 0:
            cycle[at] = number
            at = int(successor[at])
    return cycle


def _move_segments(costs: Floats, path: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Takes short segments out and puts them, as they are, where the path becomes shortest."""
    improved = True
    while improved:
        improved = False
        for length in range(1, min(LONGEST_SEGMENT, len(path) - 1) + 1):
            for begin in range(len(path) - length + 1):
                better = _moved(costs, path, begin, length)
                if better is not None:
                    path, improved = better, True
    return path


def _moved(
    costs: Floats, path: npt.NDArray[np.int64], begin: int, length: int
) -> npt.NDArray[np.int64] | None:
    """The path with this segment at its best place; None where it is there."""
    segment = path[begin : begin + length]
    rest = np.concatenate([path[:begin], path[begin + length :]])
    into = np.concatenate([[0.0], costs[rest, segment[0]]])
    out_of = np.concatenate([costs[segment[-1], rest], [0.0]])
    broken = np.concatenate([[0.0], costs[rest[:-1], rest[1:]], [0.0]])
    price = into + out_of - broken
    place = int(price.argmin())
    if price[place] >= price[begin] - ROUNDING:
        return None
    return np.concatenate([rest[:place], segment, rest[place:]])
