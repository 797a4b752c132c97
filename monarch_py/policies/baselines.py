"""Baselines: policies that keep nothing, and data stores that divide the dataset among the nodes.

The policies perfect, naive, staging buffer, DeepIO and LBANN follow section 6 of the NoPFS paper
and their own papers. Baselines that change the order of samples are in `reordering`.
"""

import numpy as np

from monarch_py.errors import PolicyError
from monarch_py.policies.caches import used_in_order
from monarch_py.policies.filling import copies_of, first_fit_policy, shards
from monarch_py.policies.view import STAGING, Decision, Job, When
from monarch_py.util.units import format_size

# The storage class of a node's memory: the first class after the staging buffer, and the fastest
# class that holds copies.
MEMORY = STAGING + 1


def perfect(job: Job) -> Decision:
    """No access waits, and only computing takes time. The resulting time is a lower bound for every
    policy (NoPFS 6)."""
    return Decision(free=True)


def naive(job: Job) -> Decision:
    """Each access reads the file system when it happens, and nothing is kept (NoPFS 6)."""
    return Decision(staging=False)


def staging_buffer(job: Job) -> Decision:
    """The staging buffer is filled from the file system in the order of access, and files are
    dropped after their use, as with double buffering or tf.data (NoPFS 6)."""
    return Decision()


def deepio(job: Job) -> Decision:
    """Ordered mode of DeepIO (Zhu et al. 2018): every node loads a contiguous share of the dataset
    into its memory before training. Batches are read from these memories, in the sampler's order.

    Files that fit into no memory are read from the file system when they are used (the paper's
    hybrid mode).
    """
    need_memory(job, "deepio-ordered")
    copies = shards(job, classes=MEMORY + 1)
    return Decision(copies=copies, when=When.BEFORE, remote=True, pfs=False)


def lbann_preloading(job: Job) -> Decision:
    """Preloading mode of LBANN's data store (Jacobs et al. 2019): every node loads a contiguous
    share into its memory before training. During training, samples come only from the nodes'
    memories.

    Raises PolicyError if the dataset is larger than all memories together, since the store has no
    other place for samples.
    """
    _need_all_memory(job, "lbann-preloading")
    copies = shards(job, classes=MEMORY + 1)
    return Decision(copies=copies, when=When.BEFORE, remote=True, pfs=False)


def lbann_dynamic(job: Job) -> Decision:
    """Dynamic mode of LBANN's data store (Jacobs et al. 2019): in the first epoch, each sample
    stays in the memory of the node that reads it first. All nodes get the sample from there.

    Assumption: a node whose memory is full keeps no further samples. The samples that no node keeps
    are read from the file system in every epoch. There may be such samples even if the dataset fits
    into all memories together: the memory of a node that is the first reader of many samples
    becomes full, while other memories have room. Raises PolicyError if the dataset is larger than
    all memories together.
    """
    _need_all_memory(job, "lbann-dynamic")
    # If several nodes make the first use of a sample at the same time, the node with the lowest
    # number keeps the sample.
    owner, first = job.first_use.argmin(axis=0), job.first_use.min(axis=0)
    order = used_in_order(first)
    copies = copies_of(
        job.cluster,
        job.sizes,
        lambda node: first_fit_policy(node, order[owner[order] == node]),
        classes=MEMORY + 1,
    )
    return Decision(copies=copies, when=When.ON_USE, remote=True, pfs=False)


def need_memory(job: Job, name: str) -> None:
    """Checks that the cluster has a storage class for copies. Raises PolicyError if it has none."""
    if job.cluster.classes <= MEMORY:
        raise PolicyError(
            f"{name}: 'classes' has only the staging buffer; add a class that holds copies"
        )


def _need_all_memory(job: Job, name: str) -> None:
    need_memory(job, name)
    room, needed = int(job.cluster.capacity[:, MEMORY].sum()), int(np.sum(job.sizes))
    if needed > room:
        raise PolicyError(
            f"{name}: the dataset ({format_size(needed)}) is larger than the memory of all nodes "
            f"(classes: {format_size(room)} in all), and this store holds samples nowhere else; "
            "add nodes or memory"
        )
