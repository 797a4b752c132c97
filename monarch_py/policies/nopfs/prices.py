"""Prices of a byte of each node's room: the dual of the placement problem (see `placement`).

The placement is a linear program with two kinds of constraints: the quota of each node, and the
number of holders of each file. Lagrange multipliers, one per node, move the quotas into the
objective; they are the prices of the nodes' room. The problem then separates into one small problem
per file: compare what each node would gain by holding the file. For any prices, the optimum of this
separated problem is an upper bound for the value of every placement (weak duality). The least of
these bounds, at the best prices, equals the linear program's optimum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.policies.view import Array, Floats, Ints

# One array (files,) for each node. Either the rows of a table, or a sequence that computes a node's
# array each time it is accessed.
Rows = Sequence[Array]

# Prices are optimised on random samples of the files, in two stages. The first stage finds rough
# prices. The second stage samples more files, so that each node's demand comes close to its quota.
# Each stage is a pair: the largest size of the table (files x nodes), and the number of steps.
STAGES = ((320_000, 150), (2_000_000, 60))
# The values of files are small integers, so thousands of files have the same value. A small change
# of a price could then move all of these files to another node. So random noise is added to the
# values to make them differ. NOISE is the width of the noise, relative to the mean value of a file
# on its best node. The noise makes the result worse by at most this fraction.
NOISE = 0.01


@dataclass(frozen=True)
class Program:
    """The placement as a linear program.

    uses : for each node an array (files,) of how often the node uses each file
    weights : (nodes,), the time that each node saves by reading a file locally instead of from
        another node, divided by the mean of all nodes; None = 1 for all nodes
    sizes : (files,) [bytes];  quotas : (nodes,) [bytes]
    everything : True if every file must be held by at least one node; False if each file may be
        held by at most one node
    """

    uses: Rows
    weights: Floats | None
    sizes: Ints
    quotas: Ints
    everything: bool

    def values(self, node: int) -> npt.NDArray[np.float32]:
        """Returns how much a node gains per byte of each file that it holds, (files,)."""
        row = np.asarray(self.uses[node], dtype=np.float32)
        return row if self.weights is None else row * np.float32(self.weights[node])


@dataclass(frozen=True)
class Prices:
    """Prices of room, and the noise with which they were computed.

    room : (nodes,), the price of a byte of room
    width : the width of the noise that breaks ties
    draws : (files,), random numbers, uniform in [0, 1), from which the noise is derived
    """

    room: Floats
    width: float
    draws: Floats

    def noise(self, node: int, files: Ints | slice = slice(None)) -> Floats:
        """Returns the noise that is added to the values of these files at the node: uniform in [0,
        width), and practically independent between nodes."""
        turned = self.draws[files] * (1009.0 + 613.0 * node)
        turned -= np.floor(turned)
        return np.asarray(turned * self.width)


def find_prices(program: Program, rng: np.random.Generator) -> Prices:
    """Returns prices at which each node's demand is about equal to its quota.

    The prices are found by subgradient steps on samples of the files. If a node demands more than
    its quota, its price rises; if it demands less, its price falls. Later steps are smaller. Each
    step yields an upper bound for the value of every placement. The result of a stage (see STAGES)
    is the prices with the least bound. The next stage starts from these prices. The result of the
    last stage is returned.
    """
    sizes, nodes = program.sizes, len(program.quotas)
    draws = rng.random(len(sizes))
    prices, width = np.zeros(nodes), 0.0
    share = program.quotas / max(1, int(sizes.sum()))
    for entries, steps in STAGES:
        chosen = np.arange(len(sizes), dtype=np.int64)
        most = max(1000, entries // nodes)
        if len(sizes) > most:
            chosen = np.sort(rng.choice(len(sizes), most, replace=False))
        rows = [program.values(node)[chosen] for node in range(nodes)]
        table = np.stack(rows)
        # After the first stage, the prices determine the node of most files. Apart from the noise,
        # the other files have equal values at several nodes. So the second stage takes small steps:
        # at most four times the width of the noise.
        pace = 4 * width if width else 0.3 * max(1e-9, float(table.max()))
        width = NOISE * max(1e-9, float(table.max(axis=0).mean()))
        found = Prices(prices, width, draws)
        table += np.stack([found.noise(node, chosen) for node in range(nodes)])
        weights = (sizes[chosen] / max(1, int(sizes[chosen].sum()))).astype(np.float32)
        sample = _Sample(table, weights, share, program.everything)
        prices = _descend(sample, prices, pace, steps)
    return Prices(prices, width, draws)


@dataclass(frozen=True)
class _Sample:
    """A random sample of the files.

    table : (nodes, files), `Program.values` of each node, plus `Prices.noise`
    weights : (files,), the files' sizes, divided by their sum
    share : (nodes,), quotas relative to the size of all files
    everything : True if every file must be held, False if each file may be held by at most one node
    """

    table: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]
    share: Floats
    everything: bool

    def at(self, prices: Floats) -> tuple[float, Floats]:
        """Returns the upper bound that these prices give for the value of a placement. Also returns
        the room that each node demands at these prices, (nodes,), as a share of the total size of
        the sampled files."""
        gain = self.table - prices.astype(np.float32)[:, None]
        largest = gain.max(axis=0)
        # If every file must be held, two kinds of nodes demand a file: the file's best node, even
        # if the gain there is negative, and every other node with a positive gain. If each file may
        # be held only once, only its best node demands it, and only if the gain there is positive.
        pivot = np.minimum(largest, 0) if self.everything else np.maximum(largest, 0)
        wanted = gain >= pivot
        # Every node must compute the same prices, so numbers must be added in a fixed order, as
        # NumPy's `sum` does. A matrix product would use a BLAS library, and its order of additions
        # depends on the processor.
        used = np.where(wanted, self.weights, np.float32(0)).sum(axis=1, dtype=np.float64)
        gain *= wanted
        gain *= self.weights
        got = gain.sum(dtype=np.float64)
        return float((prices * self.share).sum() + got), used


def _descend(sample: _Sample, prices: Floats, pace: float, steps: int) -> Floats:
    """Takes subgradient steps from `prices`. Returns the prices of the step that gave the least
    upper bound (`_Sample.at`).

    pace : the size of the first step
    """
    best, best_value = prices, np.inf
    for step in range(steps):
        value, used = sample.at(prices)
        if value < best_value:
            best, best_value = prices, value
        excess = (used - sample.share) / np.maximum(sample.share, 1e-12)
        # A tiny quota makes any relative excess huge, so the excess is clipped. If the excess of
        # every node is small, all excesses are scaled up. Otherwise the prices would hardly change.
        most = min(1.0, 4 * float(np.abs(excess).max()) + 1e-12)
        direction = np.clip(excess / most, -1, 1)
        prices = np.maximum(0, prices + pace / (1 + step / 3) * direction)
    return best
