"""Jobs for the tests of policies: small clusters, orders written out or drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.policies.view import NO_FILE, PFS, Cluster, Decision, Job

# Rates play no part where a test does not set them [bytes/s].
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
    """capacity : for each node the room of each class [bytes], the staging buffer not among them"""
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
    """A job whose orders are written out.  orders : (epochs, nodes, steps, batch), files"""
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
    """Every epoch a permutation of its own, dealt to the nodes in turn; what is left over at the
    end of an epoch is dropped."""
    nodes = machine.nodes
    steps = files // (nodes * batch)

    # Nodes with fewer ranks than the others leave out what does not fit into their batch.
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
    """(nodes, accesses), the holder of each access's file as `Served` says."""
    assert decision.served is not None
    return decision.served(epoch, order_of(job, decision, epoch)).holder


def loads(job: Job, decision: Decision) -> list[int]:
    """Files that each epoch reads from the file system, by all nodes together."""
    counts = []
    for epoch in range(job.epochs):
        order = order_of(job, decision, epoch).reshape(job.cluster.nodes, -1)
        missed = (holders(job, decision, epoch) == PFS) & (order != NO_FILE)
        counts.append(int(np.count_nonzero(missed)))
    return counts


def held_by(decision: Decision, node: int, level: int) -> list[int]:
    """The files of a class of a node, in the order of filling."""
    copies = decision.copies
    chosen: list[int] = copies.file[(copies.node == node) & (copies.cls == level)].tolist()
    return chosen
