"""NoPFS's performance model (section 4 of its paper): the time to read a file from each place.

Tests compare the simulation with this model.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from monarch_py.arrays import Floats
from monarch_py.policies.view import Cluster, Ints

# Stands in `Places` for the node or storage class of a copy that does not exist.
NONE = -1


class Source(IntEnum):
    """Where a file comes from. Of sources with equal times, the first is taken, because it puts the
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
    """Computes the time that a thread of `node` takes for each file from each source, as in section
    4 of the NoPFS paper.

    sizes : (files,) [bytes];  clients : number of clients that read from the file system at the
    same time, including this one.
    Returns an array (files, 3) of times [s], by `Source`. A time is infinite if there is no copy.

        local   size / (r_j(p_j) / p_j)
        remote  size / min(b_c, r_j(p_j) / p_j), where j is the holder's class, and b_c is the rate
                of the slower link
        pfs     size / (t(clients) / clients)

    r_j is the read rate of storage class j, p_j the number of its threads, b_c the rate of a link,
    and t the rate of the file system. The threads of a class share its rate, and the clients share
    the rate of the file system. Threads do not share the rate of a link: each thread gets the full
    rate, because the paper's model has no congestion of links.
    """
    each_thread = cluster.read_rate / np.maximum(1, cluster.threads)
    link = np.minimum(cluster.network[node], cluster.network[places.holder])
    there = each_thread[places.holder, places.remote]
    absent = (places.holder == NONE) | (places.remote == NONE)
    own = np.where(places.local == NONE, 0.0, each_thread[node, places.local])
    away = np.where(absent, 0.0, np.minimum(there, link))
    among = max(1.0, clients)
    source = np.full(len(sizes), cluster.pfs_rate(among) / among)
    # The lines below set the time of each missing copy to infinity. If the file is empty, the
    # division has given 0 / 0, which is NaN.
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.stack([sizes / rate for rate in (own, away, source)], axis=1)
    seconds[own == 0, Source.LOCAL] = np.inf
    seconds[away == 0, Source.REMOTE] = np.inf
    return np.asarray(seconds)
