"""Caching policies: first fit, hashed owners, LRU, and Belady's algorithm with bypass.

With LRU and Belady, every node has a cache of its own. With `shared`, the nodes' caches work
together: every file has one home, the only node that may hold the file. The other nodes read the
file from its home.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from monarch_py.policies.eviction import MISS, FarthestUse, LeastRecent, Uses
from monarch_py.policies.filling import copies_of, first_fit_policy, owners_of
from monarch_py.policies.node import NodePolicy
from monarch_py.policies.rendezvous import Keys, file_keys, homes, owners
from monarch_py.policies.replay import Replay, in_time, next_uses
from monarch_py.policies.view import (
    NO_FILE,
    PFS,
    STAGING,
    Decision,
    Int32s,
    Ints,
    Job,
    Served,
    When,
)

# A function that processes some accesses of an epoch in one node's cache. Arguments: the node, the
# epoch, the accessed files, and the number of each access. The accesses of all nodes in the epoch
# are numbered together, in the order of `in_time`.
Use = Callable[[int, int, Int32s, npt.NDArray[np.int64]], Uses]


def first_fit(job: Job) -> Decision:
    """Takes the files in order of first use, and keeps each file in the fastest storage class that
    has room. Evicts nothing (Dantas 2022, 4.1.2).

    This policy is the default, because no policy loads less if every file is used once an epoch.
    Suppose that the dataset has `D` bytes and the cache `C` bytes. An epoch reads all `D` bytes,
    and at most `C` of them are in the cache when the epoch starts. So every policy loads at least
    `D - C` bytes per epoch. A cache that always keeps the same files loads exactly that much,
    because these files are hits in every epoch. (MinIO's cache is based on the same argument, Mohan
    et al. 2021, 4.1.)
    """
    first = job.first_use
    copies = copies_of(
        job.cluster,
        job.sizes,
        lambda node: first_fit_policy(node, used_in_order(first[node])),
    )
    return Decision(copies=copies, when=When.ON_USE, pfs=False)


def hashed(job: Job, keys: Keys | None = None) -> Decision:
    """Assigns each file to an owner by rendezvous hashing; a node with more room owns more files
    (`rendezvous.owners`). Only the owner reads the file from the source. The daemon uses this
    policy if there are several nodes and no plan.

    A node that does not have a file gets it from the owner. The owner reads the file at the first
    request, and keeps it in the fastest storage class with room, as in `first_fit`. If no node has
    room for a file, every node that needs the file reads it from the source. The owners depend only
    on the files' keys and sizes and on the nodes' room. Assumption: the first requests for the
    files come in the order in which the job first uses the files.

    keys : (files,) hashes of the files' paths; None if the files have no paths
    """
    room = job.cluster.capacity[:, STAGING + 1 :].sum(axis=1)
    keys = file_keys(job.files) if keys is None else keys
    home = owners(keys, job.sizes, room)
    order = used_in_order(job.first_use.min(axis=0))

    def policy_of(node: int) -> NodePolicy:
        policy = NodePolicy(node, shares=True)
        policy.share(home, home == node)
        policy.foresee(order)
        return policy

    copies = copies_of(job.cluster, job.sizes, policy_of)
    return Decision(
        copies=copies,
        when=When.ON_USE,
        remote=True,
        owner=owners_of(copies, home),
        pfs=False,
    )


def lru(job: Job, *, shared: bool = False) -> Decision:
    """Evicts the least recently used file, and admits every missed file.

    If the order is random and the dataset exceeds the cache, LRU has few hits. It evicts the files
    that the current epoch has not used yet, although these files are needed next.
    """

    def begin() -> Iterator[Served]:
        caches = [LeastRecent(each) for each in job.cluster.capacity]

        def use(node: int, _: int, files: Ints, __: Ints) -> Uses:
            return caches[node].run(files.tolist(), job.sizes[files].tolist())

        return _served(job, shared, use)

    return _decision(job, begin, shared)


def belady(job: Job, *, shared: bool = False) -> Decision:
    """Evicts the file with the farthest next use. A missed file is not admitted if its next use is
    farther than the next use of every held file (Belady 1966, with bypass).

    If all files have the same size, and each node has a cache of its own, then no policy loads
    less. In every epoch after the first, the number of loaded bytes is the dataset's size minus the
    cache's size. The docstring of `first_fit` explains this bound.
    """
    known, sizes = next_uses(job, together=shared), job.sizes.tolist()
    starts = np.cumsum([0, *(each.size for each in known)])

    def begin() -> Iterator[Served]:
        caches = [FarthestUse(each, sizes) for each in job.cluster.capacity]

        def use(node: int, epoch: int, files: Ints, at: Ints) -> Uses:
            after = in_time(known[epoch])[at]
            times = (starts[epoch] + at).tolist()
            return caches[node].run(files.tolist(), after.tolist(), times)

        return _served(job, shared, use)

    return _decision(job, begin, shared)


def used_in_order(first: npt.NDArray[np.int64]) -> Int32s:
    """Returns the files that are used, in order of first use.

    first : (files,), the first use of each file, as in `Job.first_use`
    """
    order = np.argsort(first, kind="stable").astype(np.int32)
    return order[: np.count_nonzero(first != np.iinfo(np.int64).max)]


def _decision(job: Job, begin: Callable[[], Iterator[Served]], shared: bool) -> Decision:
    replay = Replay(begin)
    return Decision(
        when=When.ON_USE,
        remote=shared,
        owner=homes(job.files, job.cluster) if shared else None,
        pfs=False,
        served=lambda epoch, _: replay.at(epoch),
    )


def _served(job: Job, shared: bool, use: Use) -> Iterator[Served]:
    """Yields one `Served` for each epoch: where each access finds its file. If caches are shared,
    an access goes to the cache of the file's home. Otherwise it goes to the cache of the node that
    makes the access. Each cache processes its accesses in order of time."""
    nodes = job.cluster.nodes
    home = homes(job.files, job.cluster)
    for epoch in range(job.epochs):
        order = job.orders(epoch)
        files = in_time(order)
        reader = np.tile(np.arange(nodes, dtype=np.int32), len(files) // nodes)
        cache = home[files] if shared else reader
        found, into, down = np.zeros((3, len(files)), dtype=np.int8)
        for node in range(nodes):
            at = np.flatnonzero((cache == node) & (files != NO_FILE))
            uses = use(node, epoch, files[at], at)
            found[at] = np.frombuffer(uses.found, dtype=np.int8)
            into[at] = np.frombuffer(uses.into, dtype=np.int8)
            down[at] = np.frombuffer(uses.down, dtype=np.int8)
        holder = np.where(found == MISS, PFS, cache).astype(np.int32)
        yield Served(*(each.reshape(-1, nodes).T for each in (holder, found, into, down)))
