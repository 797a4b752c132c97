"""How long a file takes from each place that has it: the performance model (NoPFS 4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from monarch_py.policies.view import Cluster, Floats, Ints

__all__ = ["NONE", "Places", "Source", "fetch_seconds", "is_source_better", "queued_seconds"]

# In the place of a storage class: there is no such copy.
NONE = -1
# Nobody takes notice of less [s]; and the file system, which all share, is read instead of a node's
# copy only where that takes no more than this part of the time.
NOTICED_S, PART = 0.1, 0.5


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


def queued_seconds(size: int, each: float, queue: int, threads: int, parts: int = 1) -> float:
    """The time until a file is there from a place where others wait before it: its own, as above,
    and as often that of what each thread has to do first.

    size [bytes];  each : what a thread gets there, r(p) / p [bytes/s];  queue : files before it;
    threads : that work there;  parts : of the file, which as many threads may move at a time
    """
    return size / (each * max(1, min(threads, parts))) * (1 + queue / threads)


def is_source_better(holder_s: float, source_s: float, due_s: float) -> bool:
    """Whether a file that another node has is read from the file system all the same.

    Not where the node is in time: the file system is everybody's.
    holder_s, source_s : as `queued_seconds` has it;  due_s : when the file is needed
    """
    return holder_s > max(due_s, NOTICED_S, source_s / PART)
