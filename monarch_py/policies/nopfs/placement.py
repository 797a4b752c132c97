"""Decides which node holds which files: the placement of the NoPFS paper, and a better one.

In the paper (section 5.1) every node fills its storage classes with the files that it uses most
often, and nothing ensures that each file has a holder. `literal` computes this placement. It leaves
a sixth of the files without a holder if the dataset just fits into the tiers of all nodes together;
these files are read from the file system in every epoch. The function `place` first gives every
file one holder; further holders only get room that is left. Within the quotas, `place` maximises
the sum of frequency x size over all copies.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.policies.node import ASKED, NOBODY, Holders
from monarch_py.policies.nopfs.prices import Prices, Program, Rows, find_prices
from monarch_py.policies.placement import take
from monarch_py.policies.view import PFS, Array, Bools, Floats, Int32s, Ints

# A placement needs two tables of how often each node uses each file. Together they take
# BYTES_OF_USES for each node and file [bytes]. No placement is computed if the tables would take
# more than MOST_OF_USES [bytes]. All nodes must come to the same decision, so the limit does not
# depend on a node's free memory.
BYTES_OF_USES, MOST_OF_USES = 6, 4 << 30


@dataclass(frozen=True)
class Placement:
    """Which node holds which files.

    owner : (files,) int32, the node that holds a file for all nodes; PFS if no node has room
    extra : for each node, the files that it holds in addition to those that it owns
    """

    owner: Int32s
    extra: tuple[npt.NDArray[np.int64], ...]

    def holders(self) -> Holders:
        """Returns the nodes that hold each file, the owner first, (files, ASKED). If a file has
        several further holders, only one of them is named. The choice differs from file to file, so
        that every holder is asked for some files."""
        holders = np.full((len(self.owner), ASKED), NOBODY, dtype=np.int32)
        holders[:, 0] = self.owner
        for node, extra in enumerate(self.extra):
            is_free = (holders[extra, 1] == NOBODY) | (extra % len(self.extra) == node)
            holders[extra[is_free], 1] = node
        return holders

    def held(self, node: int) -> npt.NDArray[np.int64]:
        """Returns all files that a node holds."""
        return np.concatenate([np.flatnonzero(self.owner == node), self.extra[node]])


def is_placeable(nodes: int, files: int) -> bool:
    """Whether `place` can be called for this many nodes and files: its tables may take at most
    MOST_OF_USES bytes."""
    return nodes * files * BYTES_OF_USES <= MOST_OF_USES


def place(
    frequencies: Rows,
    sizes: Ints,
    quotas: Ints,
    *,
    weights: Floats | None = None,
    seed: int = 0,
) -> Placement:
    """Assigns an owner to every file that fits on any node, and further holders in the room that is
    left.

    frequencies : for each node (files,), how often it uses each file: an array (nodes, files), or
        rows that are computed one at a time
    sizes : (files,) [bytes];  quotas : (nodes,) [bytes]
    weights : (nodes,), how much each node saves if it reads a file locally instead of from another
        node, relative to the mean of all nodes; None = 1 for all nodes

    Returns a Placement whose sum of frequency x weight x size over all copies is within 1 % of the
    maximum, if files are small compared with quotas. benchmarks/policies/bound.py measures this.

    The function solves the placement of NoPFS 5.1 as a linear program. `x[n, k]` is 1 if node `n`
    holds file `k`, otherwise 0. `s[k]` is the file's size, and `f[n, k]` is its frequency on the
    node times the node's weight. The sum of `f[n, k] s[k] x[n, k]` over all `n` and `k` is
    maximised, under two constraints. First, for each node the sum of `s[k] x[n, k]` over its files
    is at most the node's quota. Second, each file has at least one holder if the quotas together
    hold the dataset. Otherwise it has at most one, because a second copy would displace another
    file. Prices of room from the dual (`prices`) determine which node owns which file. If a node is
    full, its other files go to other nodes, so that the quotas hold.
    """
    everything = int(quotas.sum()) >= int(sizes.sum())
    program = Program(frequencies, weights, sizes, quotas, everything)
    prices = find_prices(program, np.random.default_rng(seed))
    owner, left = _own(program, prices)
    # A file without an owner is larger than the room left on any node, so it gets no further holder
    # either.
    extra = [
        _most_used(frequencies[node], sizes, owner == node, int(left[node]))
        for node in range(len(quotas))
    ]
    return Placement(owner, tuple(extra))


def _own(program: Program, prices: Prices) -> tuple[Int32s, npt.NDArray[np.int64]]:
    """Returns the owner of each file, (files,), and the room that is left, (nodes,) [bytes].

    If the nodes have room for all files, each node first reserves the room that it wants for copies
    of files that other nodes own. Without these reservations, all room that is left in the end
    would be on the nodes that are filled last. Owners are then assigned within the room that is not
    reserved. Files that get no owner there may use the reserved room too.
    """
    owner = np.full(len(program.sizes), PFS, dtype=np.int32)
    left = np.array(program.quotas, dtype=np.int64)
    if program.everything:
        kept = np.minimum(_wanted_besides(program, prices), left)
        left -= kept
        _settle(program, prices, owner, left)
        left += kept
    _settle(program, prices, owner, left)
    _squeeze(owner, program.sizes, left)
    return owner, left


def _wanted_besides(program: Program, prices: Prices) -> npt.NDArray[np.int64]:
    """Returns the bytes of the files that each node wants in addition to its own, (nodes,). Each
    file has a value at each node, and the room of each node has a price. A node's own files are
    those for which value - price is larger at this node than at any other. In addition, the node
    wants every other file whose value at this node is above the price of its room."""
    nodes, files = len(program.quotas), len(program.sizes)
    best, _, _ = _two_best(program, prices, np.arange(nodes), np.arange(files))
    wanted = np.zeros(nodes, dtype=np.int64)
    for node in range(nodes):
        value = program.values(node) + prices.noise(node)
        wanted[node] = program.sizes[(value > prices.room[node]) & (best != node)].sum()
    return wanted


def _settle(program: Program, prices: Prices, owner: Int32s, left: npt.NDArray[np.int64]) -> None:
    """Assigns owners to files that have none, within the room that is left. Changes `owner` and
    `left`.

    In each round every file goes to the node where value - price is largest. A full node keeps the
    files that would lose most elsewhere, and passes the others on.
    """
    sizes, open_nodes = program.sizes, left > 0
    waiting = np.flatnonzero(owner == PFS)
    while len(waiting) and open_nodes.any():
        nodes = np.flatnonzero(open_nodes)
        best, gain, second = _two_best(program, prices, nodes, waiting)
        # The loss of a file is how much less the file gains if its best node does not take it. The
        # file then goes to its second-best node. If the quotas do not hold all files, it may also
        # go to no node, where it gains 0.
        loss = gain - (second if program.everything else np.maximum(second, 0))
        for node in np.unique(best):
            mine = np.flatnonzero(best == node)
            mine = waiting[mine[np.argsort(-loss[mine], kind="stable")]]
            fits = take(sizes[mine], int(left[node]))
            owner[mine[fits]] = node
            left[node] -= int(sizes[mine[fits]].sum())
            open_nodes[node] = bool(fits.all())
        waiting = waiting[owner[waiting] == PFS]


def _two_best(
    program: Program, prices: Prices, nodes: Ints, files: Ints
) -> tuple[Int32s, Floats, Floats]:
    """Returns, for each file, the node with the largest gain, that gain, and the second largest
    gain. The gain of a file at a node is the file's value there, with the noise that breaks ties,
    minus the price of the node's room."""
    best = np.zeros(len(files), dtype=np.int32)
    first = np.full(len(files), -np.inf)
    second = first.copy()
    for node in nodes.tolist():
        # All nodes must compute the same numbers. Without this conversion, NumPy 1 would subtract
        # in float32, but NumPy 2 in float64.
        value = program.values(node)[files].astype(np.float64)
        gain = value - prices.room[node] + prices.noise(node, files)
        better = gain > first
        second = np.where(better, first, np.maximum(second, gain))
        first = np.where(better, gain, first)
        best[better] = node
    return best, first, second


def _squeeze(owner: Int32s, sizes: Ints, left: npt.NDArray[np.int64]) -> None:
    """Gives each file without an owner to the node with the most room, if the file fits there.
    Begins with the largest file. Changes `owner` and `left`."""
    waiting = np.flatnonzero(owner == PFS)
    waiting = waiting[sizes[waiting] <= left.max(initial=0)]
    for file in waiting[np.argsort(-sizes[waiting], kind="stable")]:
        node = int(left.argmax())
        if sizes[file] <= left[node]:
            owner[file] = node
            left[node] -= int(sizes[file])


def _most_used(frequency: Array, sizes: Ints, own: Bools, room: int) -> npt.NDArray[np.int64]:
    """Returns files that the node uses but does not own, the most frequently used first, as far as
    they fit into the room."""
    others = np.flatnonzero((np.asarray(frequency) > 0) & ~own)
    if not len(others) or room < int(sizes[others].min()):
        return np.zeros(0, dtype=np.int64)
    used = np.asarray(frequency)[others]
    most = used.max()
    # NumPy sorts integers of 8 or 16 bits by radix sort. Sorting wider integers takes ten times as
    # long.
    rank = (most - used).astype(np.min_scalar_type(int(most)))
    others = others[np.argsort(rank, kind="stable")]
    return others[take(sizes[others], room)]


def literal(frequencies: Rows, sizes: Ints, quotas: Ints) -> tuple[npt.NDArray[np.int64], ...]:
    """Returns the files that each node holds, exactly as section 5.1 of the NoPFS paper describes
    the placement: every node, independently of the others, holds the files that it uses most often.
    The arguments are as in `place`.

    Each node's files are ordered by frequency, the most used first. Files that are used equally
    often are in the order of their numbers, as in the published simulator.
    """
    nobody = np.zeros(len(sizes), dtype=bool)
    return tuple(
        _most_used(frequencies[node], sizes, nobody, int(quotas[node]))
        for node in range(len(quotas))
    )
