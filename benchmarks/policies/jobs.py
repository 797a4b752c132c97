"""Creates jobs with samples of equal size, which are shuffled in every epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.policies.view import NO_FILE, PFS, Cluster, Decision, Job

__all__ = ["loads_of_ranks", "shuffled_job"]

# The value of every rate of the jobs [bytes/s]. The value has no effect, because the benchmarks
# only count loads, and rates do not change the number of loads.
ANY_RATE = 1e9


def shuffled_job(
    files: int, nodes: int, *, part: float, epochs: int, batch: int, size: int = 1, seed: int = 0
) -> Job:
    """Returns a job whose samples have equal sizes and are shuffled in every epoch.

    part : the share of the dataset that all nodes together can hold
    batch : the number of samples that a node uses in one step
    size : the size of a sample [bytes]
    """
    capacity = np.zeros((nodes, 2), dtype=np.int64)
    capacity[:, 1] = int(part * files / nodes) * size
    machine = Cluster(
        capacity=capacity,
        threads=np.ones(2, dtype=np.int64),
        read_rate=np.full((nodes, 2), ANY_RATE),
        network=np.full(nodes, ANY_RATE),
        ranks=np.ones(nodes, dtype=np.int64),
        preprocess=np.full(nodes, ANY_RATE),
        pfs_rate=lambda clients: ANY_RATE,
    )
    steps = files // (nodes * batch)

    def orders(epoch: int) -> npt.NDArray[Any]:
        order = np.random.default_rng([seed, epoch]).permutation(files).astype(np.int32)
        whole = order[: steps * nodes * batch].reshape(steps, batch, nodes)
        return np.ascontiguousarray(whole.transpose(2, 0, 1))

    return Job(np.full(files, size, dtype=np.int64), machine, epochs, batch, orders, seed)


def loads_of_ranks(job: Job, decision: Decision, epoch: int) -> npt.NDArray[np.float64]:
    """Returns how many samples each node loads from the file system in an epoch, (nodes,). This
    includes samples that the node reads only because they lie between samples that it needs."""
    order = (decision.orders or job.orders)(epoch)
    flat = order.reshape(job.cluster.nodes, -1)
    if decision.served is None:
        held = np.zeros(job.files, dtype=bool)
        held[decision.copies.file] = True
        return np.asarray((~held[flat]).sum(axis=1), dtype=np.float64)
    served = decision.served(epoch, order)
    loads = ((served.holder == PFS) & (flat != NO_FILE)).sum(axis=1).astype(np.float64)
    if served.redundant is not None:
        loads += served.redundant.sum(axis=1) / float(job.sizes.mean())
    return np.asarray(loads)
