"""Computes the value of a placement of files on nodes, and an upper bound on the possible values.

A placement determines which nodes hold which files (NoPFS, section 5.1).
"""

from __future__ import annotations

import numpy as np

from monarch_py.arrays import Floats
from monarch_py.policies.nopfs.placement import Placement
from monarch_py.policies.nopfs.prices import Program, Rows, find_prices
from monarch_py.policies.view import Ints

__all__ = ["bound", "bound_of", "value_of"]


def value_of(
    placed: Placement, frequencies: Rows, sizes: Ints, weights: Floats | None = None
) -> float:
    """Returns the value of a placement: the sum of frequency x weight x size over all copies. The
    arguments are the same as in `place`."""
    nodes = len(placed.extra)
    program = Program(frequencies, weights, sizes, np.zeros(nodes, int), everything=True)
    return sum(
        float((program.values(node) * sizes)[placed.held(node)].sum()) for node in range(nodes)
    )


def bound_of(frequencies: Rows, sizes: Ints, quotas: Ints, seed: int = 0) -> float:
    """Returns an upper bound on the value of every placement in which the files of each node fit
    into the node's quota. The arguments are the same as in `place`."""
    everything = int(quotas.sum()) >= int(sizes.sum())
    program = Program(frequencies, None, sizes, quotas, everything)
    prices = find_prices(program, np.random.default_rng(seed))
    # Any prices of the nodes' room give a valid bound, and the lowest bound is the best.
    # `find_prices` adds noise to the values of files. The noise may make the prices too high, by at
    # most `width`. So try lower prices too.
    lower = np.maximum(0, prices.room - prices.width)
    tried = (prices.room, lower, *_at_values(program, prices.room))
    return min(bound(program, each) for each in tried)


def bound(program: Program, prices: Floats) -> float:
    """Returns an upper bound on the value of any placement. The bound is the sum of price x quota
    over the nodes, plus a term for each file.

    The gain of a file on a node is the file's value on this node, minus the node's price. There are
    two cases. If every file must have a holder, the term of a file is its size times the sum of its
    positive gains. If the file has no positive gain, the term is its size times its largest gain.
    In the other case, each file may have at most one holder. Then the term of a file is its size
    times its largest gain, or 0 if this gain is negative.

    prices : (nodes,), for each node, the price of a byte of room; any values >= 0
    """
    total = np.zeros(len(program.sizes))
    largest = np.full(len(program.sizes), -np.inf)
    # Compute the sums node by node, which saves the memory for a table of all nodes and files.
    for node, price in enumerate(prices):
        gain = program.values(node) - price
        np.maximum(largest, gain, out=largest)
        if program.everything:
            total += np.maximum(0, gain)
    files = total + np.minimum(0, largest) if program.everything else np.maximum(0, largest)
    return float(prices @ program.quotas + np.dot(program.sizes, files))


def _at_values(program: Program, room: Floats) -> tuple[Floats, Floats]:
    """Returns two arrays (nodes,) of rounded prices. In the first, each node's price is rounded to
    the nearest value that a file has on this node. In the second, the price is rounded up to the
    next such value.

    Thousands of files may have the same value on a node. Then this value is the best price. If the
    price differs a little from this value, the difference raises the bound for each of these files.

    room : (nodes,) the prices before rounding
    """
    nearest, above = room.copy(), room.copy()
    for node, price in enumerate(room):
        row = np.asarray(program.values(node))
        nearest[node] = row[np.abs(row - price).argmin()]
        above[node] = row[row >= price].min(initial=max(price, float(row.max())))
    return nearest, above
