"""Chooses the order in which whole epochs run (SOLAR 4.2).

The order of samples within an epoch follows from the epoch's seed, but the order of epochs is free.
SOLAR chooses an order in which each epoch begins with samples that the previous epoch used last.

If the epochs are independent shuffles, their order hardly matters. An order of epochs is a path;
its edges lead from each epoch to the next. The cost of an edge is the number of samples loaded when
the epoch changes. Suppose that the dataset has `n` samples, and that the buffers of all nodes
together have room for `c` of them. When the epoch changes, the buffers hold the last `c` samples of
one epoch, and the first `c` samples of the next epoch are needed. Both sets of samples are random
subsets of the dataset. So the mean cost of an edge is `c (1 - c / n)`, and the standard deviation
is only `1 / sqrt(n)` of the mean: 0.34 % for 88,064 samples. The cheapest of 100 edges lies 2.5
standard deviations below the mean, and the complete path is 0.7 to 0.8 % cheaper than the given
order. LRU then loads 0.1 to 0.3 % less (benchmarks/policies).

If the buffers drop the samples with the farthest next use, the order of epochs saves nothing: the
buffers load `n - c` samples in an epoch, whichever epoch came before. SOLAR's paper reports savings
of 25.6 and 59.4 %. With independent shuffles, the order of epochs alone cannot save that much. But
SOLAR also replaces LRU by eviction according to known future uses. In benchmarks/policies, a buffer
with this eviction loads exactly `n - c` samples in an epoch. LRU loads 1.3 to 2.6 times as many.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from monarch_py.policies.replay import in_time
from monarch_py.policies.solar.assignment import assign
from monarch_py.policies.view import Floats, Ints

# `edge_costs` processes this many files at a time for all pairs of epochs. With 100 epochs, this
# takes 50 MB of memory.
BLOCK_FILES = 1 << 16
# `_move_segments` moves at most this many consecutive epochs of the path at a time.
LONGEST_SEGMENT = 3
ROUNDING = 1e-9


def edge_costs(
    orders: Callable[[int], Ints], epochs: int, capacity: int, files: int
) -> npt.NDArray[np.int64]:
    """Returns the costs of all edges, (epochs, epochs) int64. Element [u, v] is the number of
    samples that are loaded at the start of epoch `v` if epoch `u` ran before it. These samples are
    among the first `capacity` samples of `v`, but not among the last `capacity` samples of `u`.
    (Section 4.2 of the SOLAR paper calls this cost N(u, v).) The diagonal is 0 and has no meaning.

    orders : epoch -> (nodes, steps, batch), whose accesses are taken in order of time
    capacity : how many samples the buffers of all nodes hold together
    files : the number of files

    The computation takes 2 bytes of memory for each epoch and file.
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
        # float32 represents the counts of one block exactly.
        common += last[:, block].astype(np.float32) @ first[:, block].astype(np.float32).T
    costs = first.sum(axis=1)[None, :] - np.rint(common).astype(np.int64)
    np.fill_diagonal(costs, 0)
    return np.asarray(costs)


def path_cost(costs: npt.NDArray[np.integer], path: Ints) -> int:
    """Returns the cost of a path: the sum of the costs of its edges [samples]."""
    return int(costs[path[:-1], path[1:]].sum())


def lower_bound(costs: npt.NDArray[np.integer]) -> float:
    """Returns a lower bound on the cost of a path through all epochs. A path gives each epoch
    except the last one a different successor. The bound is the lowest cost of such successors, even
    if they form cycles instead of a path."""
    successor, table = _successors(costs)
    return float(table[np.arange(len(table)), successor].sum())


def order_epochs(costs: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Returns a cheap path through all epochs, (epochs,) int64.

    costs : (epochs, epochs), the result of `edge_costs`

    Two paths are constructed: one by nearest neighbours, and one by joining the cycles of the
    cheapest assignment (Karp 1979). Both are improved by moving segments while that helps (Or
    1976), and the better one is returned. The paper uses a particle swarm instead.
    benchmarks/policies measures how far the results are above `lower_bound`.
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
    """Assigns a different successor to each epoch at the lowest total cost. Returns the successors,
    and the table of costs. The table contains one additional epoch, which stands between the end of
    the path and its beginning. All edges of this epoch cost 0."""
    n = len(costs)
    table = np.zeros((n + 1, n + 1))
    table[:n, :n] = costs
    # No epoch may follow itself, so the diagonal costs more than any path.
    np.fill_diagonal(table, float(costs.sum()) + 1)
    return assign(table), table


def _nearest(costs: Floats) -> npt.NDArray[np.int64]:
    """Returns the path that starts with the cheapest edge, and continues from each epoch along the
    cheapest edge to an epoch that is not on the path yet."""
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
    """Returns a path, made from the cheapest assignment of successors (`_successors`). The
    assignment consists of cycles. The two cycles that are cheapest to join are joined, until only
    one cycle is left. The path follows this cycle, from the epoch after the additional epoch of
    `_successors`."""
    successor, table = _successors(costs)
    n = len(table)
    while True:
        cycle = _cycles(successor)
        if cycle.max() == 0:
            break
        now = table[np.arange(n), successor]
        # For each pair of epochs, `change` is the additional cost if the two epochs exchange their
        # successors. If the two are in different cycles, the exchange joins these cycles.
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
    """Returns the number of the cycle that contains each epoch, (epochs,), counted from 0."""
    cycle = np.full(len(successor), -1)
    for start in range(len(successor)):
        at, number = start, int(cycle.max()) + 1
        while cycle[at] < 0:
            cycle[at] = number
            at = int(successor[at])
    return cycle


def _move_segments(costs: Floats, path: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Moves short segments of the path to better positions, until no move makes the path cheaper.
    Returns the improved path."""
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
    """Returns the path with the segment path[begin : begin + length] moved to its best position.
    Returns None if no position is better than the present one."""
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
