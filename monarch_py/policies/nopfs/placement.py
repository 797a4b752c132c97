"""Decides which node holds which files: the placement of the NoPFS paper, and a better one.

In the paper (section 5.1) every node fills its storage classes with the files that it uses most
often, and nothing ensures that each file has a holder. `literal` computes this placement. If the
dataset just fits into the tiers of all nodes together, a sixth of the files have no holder. These
files are read from the file system in every epoch. The function `place` instead gives every file
one holder first, and uses only the remaining room for further holders. Within the quotas, `place`
maximises the sum of frequency x size over all copies.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.policies.node import ASKED, NOBODY, Holders
from monarch_py.policies.nopfs.prices import Prices, Program, Rows, find_prices
from monarch_py.policies.placement import take
from monarch_py.policies.view import PFS, Array, Bools, Floats, Int32s, Ints

# A placement needs two tables of how often each node uses each file. Together they take
# BYTES_OF_USES bytes for each pair of a node and a file. No placement is computed if the tables
# would take more than MOST_OF_USES bytes. All nodes must come to the same decision, so this limit
# is a constant and does not depend on a node's free memory.
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
        """Returns the nodes that hold each file, the owner first, (files, ASKED). If several nodes
        besides the owner hold a file, the result contains only one of them. This node differs from
        file to file, so that requests for files are distributed over all holders."""
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
    """Assigns an owner to every file that fits on any node. Then assigns further holders to files,
    within the remaining room.

    frequencies : for each node a row (files,) of how often it uses each file. Either an array
        (nodes, files), or a sequence that computes its rows one at a time
    sizes : (files,) [bytes];  quotas : (nodes,) [bytes]
    weights : (nodes,), the time that each node saves by reading a file locally instead of from
        another node, divided by the mean of all nodes; None = 1 for all nodes

    Returns a Placement whose sum of frequency x weight x size over all copies is within 1 % of the
    maximum, if files are small compared with quotas. benchmarks/policies/bound.py measures this.

    The function solves the placement of NoPFS 5.1 as a linear program. `x[n, k]` is 1 if node `n`
    holds file `k`, otherwise 0. `s[k]` is the file's size, and `f[n, k]` is its frequency on the
    node times the node's weight. The sum of `f[n, k] s[k] x[n, k]` over all `n` and `k` is
    maximised, under two constraints. First, for each node the sum of `s[k] x[n, k]` over its files
    is at most the node's quota. Second, each file has at least one holder if the quotas together
    have room for the dataset. Otherwise each file has at most one holder, because a second copy
    would displace another file. The dual program yields a price of each node's room (see `prices`).
    A file's owner is the node where the file's value, `f[n, k]`, exceeds the price by most. If a
    node is full, the files that would exceed its quota go to other nodes.
    """
    everything = int(quotas.sum()) >= int(sizes.sum())
    program = Program(frequencies, weights, sizes, quotas, everything)
    prices = find_prices(program, np.random.default_rng(seed))
    owner, left = _own(program, prices)
    # A file without an owner is larger than the remaining room of any node, so the loop below
    # assigns it no holder either.
    extra = [
        _most_used(frequencies[node], sizes, owner == node, int(left[node]))
        for node in range(len(quotas))
    ]
    return Placement(owner, tuple(extra))


def _own(program: Program, prices: Prices) -> tuple[Int32s, npt.NDArray[np.int64]]:
    """Returns the owner of each file, (files,), and the room that is left, (nodes,) [bytes].

    If the nodes have room for all files, each node first reserves room for second copies: copies of
    files that other nodes will own. Owners are then assigned within the room that is not reserved.
    Files that get no owner in this way may also use the reserved room. Without the reservations,
    some nodes would be full of their own files, and would have no room for second copies.
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
    """Returns how many bytes of further files each node wants in addition to its own files,
    (nodes,). Each file has a value at each node, and the room of each node has a price. A node's
    own files are those for which value - price is larger at this node than at any other node. In
    addition, a node wants every other file with a value above the price of the node's room."""
    nodes, files = len(program.quotas), len(program.sizes)
    best, _, _ = _two_best(program, prices, np.arange(nodes), np.arange(files))
    wanted = np.zeros(nodes, dtype=np.int64)
    for node in range(nodes):
        value = program.values(node) + prices.noise(node)
        wanted[node] = program.sizes[(value > prices.room[node]) & (best != node)].sum()
    return wanted


def _settle(program: Program, prices: Prices, owner: Int32s, left: npt.NDArray[np.int64]) -> None:
    """Assigns owners to files that have none, within the room `left` of each node. Changes `owner`
    and `left`.

    In each round, every file without an owner chooses the node where value - price is largest. If a
    node has too little room, it takes the files that would lose most elsewhere. The other files
    choose again in the next round.
    """
    sizes, open_nodes = program.sizes, left > 0
    waiting = np.flatnonzero(owner == PFS)
    while len(waiting) and open_nodes.any():
        nodes = np.flatnonzero(open_nodes)
        best, gain, second = _two_best(program, prices, nodes, waiting)
        # The gain of a file at a node is value - price. If the best node is full, the file goes to
        # the second-best node, and the difference of the two gains is the file's loss. If the
        # quotas have no room for all files, the file may also go to no node: then the gain is 0.
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
    """Assigns each file without an owner to the node with the most room, if the file fits there.
    Begins with the largest file. Changes `owner` and `left`."""
    waiting = np.flatnonzero(owner == PFS)
    waiting = waiting[sizes[waiting] <= left.max(initial=0)]
    for file in waiting[np.argsort(-sizes[waiting], kind="stable")]:
        node = int(left.argmax())
        if sizes[file] <= left[node]:
            owner[file] = node
            left[node] -= int(sizes[file])


def _most_used(frequency: Array, sizes: Ints, own: Bools, room: int) -> npt.NDArray[np.int64]:
    """Returns the files that a node holds besides its own, (n,). Of the files that the node uses,
    the most frequently used come first, until `room` bytes are full."""
    others = np.flatnonzero((np.asarray(frequency) > 0) & ~own)
    if not len(others) or room < int(sizes[others].min()):
        return np.zeros(0, dtype=np.int64)
    used = np.asarray(frequency)[others]
    most = used.max()
    # NumPy sorts integers of 8 or 16 bits by radix sort, which is ten times as fast as its sort of
    # wider integers.
    rank = (most - used).astype(np.min_scalar_type(int(most)))
    others = others[np.argsort(rank, kind="stable")]
    return others[take(sizes[others], room)]


def literal(frequencies: Rows, sizes: Ints, quotas: Ints) -> tuple[npt.NDArray[np.int64], ...]:
    """Returns the files that each node holds, exactly as section 5.1 of the NoPFS paper describes
    the placement: every node, independently of the others, holds the files that it uses most often.
    The arguments are the same as those of `place`.

    Each node's files are sorted by frequency, the most used first. Files that are used equally
    often are in the order of their numbers, as in the simulator that NoPFS's authors published.
    """
    nobody = np.zeros(len(sizes), dtype=bool)
    return tuple(
        _most_used(frequencies[node], sizes, nobody, int(quotas[node]))
        for node in range(len(quotas))
    )
