"""The probability distribution of how often a node accesses a sample (section 3.1 of NoPFS).

The distribution follows from a formula, so no order of samples is computed.

In each epoch, one of `N` nodes accesses the sample, chosen at random. So the number of a node's
accesses to the sample in `E` epochs has a binomial distribution: `E` trials, each with probability
`1 / N`.
"""

from math import log1p

import numpy as np

from monarch_py.arrays import Floats
from monarch_py.errors import ConfigError


def distribution(epochs: int, nodes: int) -> Floats:
    """Returns probabilities, (epochs + 1,) float64. Element `k` is the probability that a node
    accesses a sample `k` times (NoPFS, 3.1). Raises ConfigError if `epochs` or `nodes` is below
    1."""
    _check(epochs, nodes)
    if nodes == 1:
        return np.array([0.0] * epochs + [1.0])
    k = np.arange(epochs)
    # Let P(k) be the probability of k accesses. `ratios` contains log(P(k + 1) / P(k)) for each k.
    # The sums of these logarithms are accurate even if P(0) is too small for a float. In this case,
    # products of probabilities would be 0 for every k.
    ratios = np.log((epochs - k) / ((k + 1) * (nodes - 1)))
    found = np.exp(epochs * log1p(-1 / nodes) + np.concatenate([[0.0], ratios.cumsum()]))
    return np.asarray(found)


def _check(epochs: int, nodes: int) -> None:
    for key, value in (("epochs", epochs), ("nodes", nodes)):
        if value < 1:
            raise ConfigError(f"{key}: {value} is out of range; write 1 or more")
