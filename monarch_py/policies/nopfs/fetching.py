"""Where a file is read from, and what a prefetcher does next (NoPFS 4 and 5.2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from monarch_py.policies.replay import NEVER
from monarch_py.policies.view import Cluster, Floats, Ints

__all__ = ["NONE", "Places", "Source", "choose", "fetch_seconds", "is_ready", "late"]

# In the place of a storage class: there is no such copy.
NONE = -1


class Source(IntEnum):
    """Where a file comes from. Of equal times the first one is taken: it burdens nobody else."""

    LOCAL = 0
    REMOTE = 1
    PFS = 2


@dataclass(frozen=True)
class Places:
    """Where files have copies, as a node sees it.

    local : (files,) the node's own class that has the file, or NONE;  holder, remote : (files,)
    another node that has it, and its class there, or NONE
    """

    local: Ints
    holder: Ints
    remote: Ints


def fetch_seconds(
    cluster: Cluster, node: int, sizes: Ints, places: Places, clients: float
) -> Floats:
    """The time that a thread of `node` takes for each file from each source (NoPFS 4).

    sizes : (files,) [bytes];  clients : that read from the file system at the same time, this one
    included (1 or more).
    Returns (files, 3) [s] by `Source`; infinite where there is no copy.

        local   size / (r_j(p_j) / p_j)
        remote  size / min(b_c, r_j(p_j) / p_j), with the holder's class and the slower link
        pfs     size / (t(clients) / clients)

    Rates of classes and of the file system are those of all threads or clients together, so each
    gets its part; a link is one thread's alone, as there (no congestion is assumed).
    """
    each_thread = cluster.read_rate / np.maximum(1, cluster.threads)
    link = np.minimum(cluster.network[node], cluster.network[places.holder])
    there = each_thread[places.holder, places.remote]
    absent = (places.holder == NONE) | (places.remote == NONE)
    own = np.where(places.local == NONE, 0.0, each_thread[node, places.local])
    away = np.where(absent, 0.0, np.minimum(there, link))
    among = max(1.0, clients)
    source = np.full(len(sizes), cluster.pfs_rate(among) / among)
    # Without a copy even an empty file takes for ever: 0 / 0 is none.
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.stack([sizes / rate for rate in (own, away, source)], axis=1)
    seconds[own == 0, Source.LOCAL] = np.inf
    seconds[away == 0, Source.REMOTE] = np.inf
    return np.asarray(seconds)


def choose(
    cluster: Cluster, node: int, sizes: Ints, places: Places, clients: float
) -> npt.NDArray[np.int8]:
    """(files,) the `Source` that is fastest now; arguments as of `fetch_seconds`.

    Few clients on a fast file system can make it faster than another node's disk, and then it is
    chosen although there is a copy.
    """
    seconds = fetch_seconds(cluster, node, sizes, places, clients)
    return np.asarray(seconds.argmin(axis=1), dtype=np.int8)


def is_ready(first_use: Ints, reached: int) -> npt.NDArray[np.bool_]:
    """Whether another node has a file by now, as far as one can tell without asking (NoPFS 5.2.2).

    first_use : (files,), the place of each in the access stream of its holder;  reached : the
    place in its own stream up to which this node's prefetchers have come.
    All nodes prefetch at about the same pace: what lies before that place is there, likely. Where
    it is not, the holder says so and the file is read from elsewhere: an error costs time alone.
    """
    return np.asarray(first_use < reached)


def late(
    order: Ints, first_use: Ints, present: npt.NDArray[np.bool_], position: int
) -> npt.NDArray[np.int64]:
    """What a class prefetcher fetches before it goes on with its own order (NoPFS 5.2.2: if a
    sample should be there and is not, the prefetcher that notices fetches it itself).

    order : (copies,) files in the order in which the class is filled;  first_use, present :
    (files,) of all files;  position : of training in the access stream.
    Returns those used before `position` that are not there, the one waited for longest first.
    """
    missing = order[~present[order] & (first_use[order] <= position) & (first_use[order] != NEVER)]
    by_use = np.argsort(first_use[missing], kind="stable")
    return np.asarray(missing[by_use], dtype=np.int64)
