"""NoPFS's performance model (section 4 of its paper): the time to read a file from each place.

Tests compare the simulation with this model.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from monarch_py.arrays import Floats
from monarch_py.policies.view import Cluster, Ints

# Used instead of a node or a storage class if there is no such copy.
NONE = -1


class Source(IntEnum):
    """Where a file comes from. If times are equal, the first source is taken, because it puts the
    least load on other nodes."""

    LOCAL = 0
    REMOTE = 1
    PFS = 2


@dataclass(frozen=True)
class Places:
    """Where files have copies, as seen by one node.

    local : (files,) the node's own class that has the file, or NONE
    holder : (files,) another node that has the file, or NONE
    remote : (files,) the class of the other node that has the file, or NONE
    """

    local: Ints
    holder: Ints
    remote: Ints


def fetch_seconds(
    cluster: Cluster, node: int, sizes: Ints, places: Places, clients: float
) -> Floats:
    """The time that a thread of `node` takes for each file from each source (NoPFS 4).

    sizes : (files,) [bytes];  clients : number of clients that read from the file system at the
    same time, including this one.
    Returns (files, 3) [s] by `Source`; infinite if there is no copy.

        local   size / (r_j(p_j) / p_j)
        remote  size / min(b_c, r_j(p_j) / p_j), with the holder's class and the slower link
        pfs     size / (t(clients) / clients)

    Rates of classes and of the file system are those of all threads or clients together, so each
    gets its part. Each thread gets the whole rate of a link, as in the paper (no congestion).
    """
    each_thread = cluster.read_rate / np.maximum(1, cluster.threads)
    link = np.minimum(cluster.network[node], cluster.network[places.holder])
    there = each_thread[places.holder, places.remote]
    absent = (places.holder == NONE) | (places.remote == NONE)
    own = np.where(places.local == NONE, 0.0, each_thread[node, places.local])
    away = np.where(absent, 0.0, np.minimum(there, link))
    among = max(1.0, clients)
    source = np.full(len(sizes), cluster.pfs_rate(among) / among)
    # The lines below set missing copies to infinity, also for empty files, where 0 / 0 is NaN.
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.stack([sizes / rate for rate in (own, away, source)], axis=1)
    seconds[own == 0, Source.LOCAL] = np.inf
    seconds[away == 0, Source.REMOTE] = np.inf
    return np.asarray(seconds)
