"""Small clusters and jobs for the tests of policies.

The orders of a job are either given as a table or drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.policies.view import NO_FILE, PFS, Cluster, Decision, Job

# The rate [bytes/s] of everything whose rate does not matter to a test.
FAST = 1e9
STAGING_BYTES = 1 << 20


def cluster(
    capacity: Sequence[Sequence[int]],
    *,
    threads: Sequence[int] | None = None,
    read_rate: npt.ArrayLike = FAST,
    network: npt.ArrayLike = FAST,
    ranks: npt.ArrayLike = 1,
    preprocess: float = FAST,
    pfs: Callable[[float], float] = lambda clients: FAST,
) -> Cluster:
    """Returns a `Cluster` with a staging buffer of STAGING_BYTES on each node.

    capacity : for each node, the room of each storage class [bytes] except the staging buffer"""
    room = np.array([[STAGING_BYTES, *each] for each in capacity], dtype=np.int64)
    nodes, classes = room.shape
    return Cluster(
        capacity=room,
        threads=np.array(threads or [1] * classes, dtype=np.int64),
        read_rate=np.broadcast_to(np.asarray(read_rate, np.float64), (nodes, classes)).copy(),
        network=np.broadcast_to(np.asarray(network, np.float64), (nodes,)).copy(),
        ranks=np.broadcast_to(np.asarray(ranks, np.int64), (nodes,)).copy(),
        preprocess=np.full(nodes, preprocess),
        pfs_rate=pfs,
    )


def written(
    orders: npt.ArrayLike, machine: Cluster, sizes: npt.ArrayLike | None = None, seed: int = 0
) -> Job:
    """Returns a job with the given orders.

    orders : the numbers of the files, in the shape (epochs, nodes, steps, batch)
    """
    table = np.array(orders, dtype=np.int32)
    weights = np.ones(int(table.max()) + 1) if sizes is None else np.asarray(sizes)
    return Job(
        sizes=weights.astype(np.int64),
        cluster=machine,
        epochs=len(table),
        batch=table.shape[3],
        orders=lambda epoch: table[epoch],
        seed=seed,
    )


def shuffled(
    files: int,
    machine: Cluster,
    *,
    epochs: int,
    batch: int,
    sizes: npt.ArrayLike | None = None,
    seed: int = 0,
) -> Job:
    """Returns a job in which each epoch is a new permutation, dealt round-robin to the nodes.

    Files at the end of an epoch that do not fill a step are dropped."""
    nodes = machine.nodes
    steps = files // (nodes * batch)

    # All nodes have batches of the same size, which the node with the most ranks fills. A node with
    # fewer ranks fills only a part of its batch.
    own = batch * machine.ranks // machine.ranks.max()

    def orders(epoch: int) -> npt.NDArray[Any]:
        order = np.random.default_rng([seed, epoch]).permutation(files).astype(np.int32)
        whole = order[: steps * nodes * batch].reshape(steps, batch, nodes)
        dealt = np.ascontiguousarray(whole.transpose(2, 0, 1))
        dealt[np.broadcast_to(np.arange(batch) >= own[:, None, None], dealt.shape)] = NO_FILE
        return dealt

    weights = np.ones(files) if sizes is None else np.asarray(sizes)
    return Job(weights.astype(np.int64), machine, epochs, batch, orders, seed)


def order_of(job: Job, decision: Decision, epoch: int) -> npt.NDArray[Any]:
    return (decision.orders or job.orders)(epoch)


def holders(job: Job, decision: Decision, epoch: int) -> npt.NDArray[Any]:
    """Returns, for each access in an epoch, the node that holds the file, as an array
    (nodes, accesses); see `Served`."""
    assert decision.served is not None
    return decision.served(epoch, order_of(job, decision, epoch)).holder


def loads(job: Job, decision: Decision) -> list[int]:
    """Returns, for each epoch, how many files all nodes together read from the file system."""
    counts = []
    for epoch in range(job.epochs):
        order = order_of(job, decision, epoch).reshape(job.cluster.nodes, -1)
        missed = (holders(job, decision, epoch) == PFS) & (order != NO_FILE)
        counts.append(int(np.count_nonzero(missed)))
    return counts


def held_by(decision: Decision, node: int, level: int) -> list[int]:
    """Returns the files in one storage class of a node, in the order in which they are copied."""
    copies = decision.copies
    chosen: list[int] = copies.file[(copies.node == node) & (copies.cls == level)].tolist()
    return chosen
