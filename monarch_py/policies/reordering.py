"""Baselines that change which node uses which sample, so that more samples are local.

`locality_aware` exchanges samples between nodes within a step; all nodes together still use the
same samples in the step. DeepIO's opportunistic mode and `parallel_staging` draw random orders of
their own. If the dataset exceeds the nodes' storage, these two policies never use the samples that
did not fit, as section 6 of the NoPFS paper notes.
"""

import numpy as np

from monarch_py.errors import PolicyError
from monarch_py.policies.baselines import MEMORY, need_memory
from monarch_py.policies.filling import shards
from monarch_py.policies.replay import in_time
from monarch_py.policies.view import (
    NO_FILE,
    PFS,
    Copies,
    Decision,
    Int32s,
    Ints,
    Job,
    When,
    need_equal_ranks,
    same_shape,
)

NOT_ALL = "uses only the samples held in {what}, not the whole dataset"


def deepio_opportunistic(job: Job) -> Decision:
    """Opportunistic mode of DeepIO (Zhu et al. 2018): nodes ignore the sampler's order, and use
    only samples that are in some node's memory.

    Assumptions: samples are loaded before training, as in DeepIO's ordered mode (`deepio`). In each
    epoch, all samples in memory are distributed over the nodes at random, each sample once. If the
    epoch needs more samples than are in memory, the samples are distributed again. As the
    distribution is random, one in `N` samples is local if there are `N` nodes. Samples that did not
    fit into any memory are not used.
    """
    need_memory(job, "deepio-opportunistic")
    copies = shards(job, classes=MEMORY + 1)
    held = _held(copies)

    def orders(epoch: int) -> Ints:
        order = job.orders(epoch)
        rng = np.random.default_rng([job.seed, epoch])
        # The first sample goes to the first node, the second sample to the second node, and so on.
        # So all nodes together use every sample once before any sample is used again.
        turns = in_time(order)
        dealt = same_shape(turns, _passes(held, int(np.sum(turns != NO_FILE)), rng))
        return np.asarray(dealt.reshape(-1, len(order)).T.reshape(order.shape))

    notes = () if len(held) == job.files else (NOT_ALL.format(what="memory"),)
    return Decision(
        copies=copies, when=When.BEFORE, remote=True, pfs=False, orders=orders, notes=notes
    )


def parallel_staging(job: Job) -> Decision:
    """Data sharding: every node copies a contiguous share of the dataset to its own storage before
    training, and uses only its share, in a random order of its own (NoPFS 6).

    In each epoch a node uses its share once. If it needs more samples in the epoch than its share
    has, it uses the share again. If it needs fewer, it uses only a part of the share.
    """
    need_memory(job, "parallel-staging")
    copies = shards(job)
    held = [copies.file[copies.node == node] for node in range(job.cluster.nodes)]
    empty = next((node for node, files in enumerate(held) if not len(files)), None)
    if empty is not None:
        raise PolicyError(
            f"parallel-staging: node {empty} has no room for any file of its share; "
            "raise the capacity of its classes"
        )

    def orders(epoch: int) -> Ints:
        order = job.orders(epoch)
        own = np.count_nonzero(order != NO_FILE, axis=(1, 2))
        dealt = [
            _passes(files, int(own[node]), np.random.default_rng([job.seed, epoch, node]))
            for node, files in enumerate(held)
        ]
        return same_shape(order, np.concatenate(dealt))

    whole = sum(map(len, held)) == job.files
    notes = () if whole else (NOT_ALL.format(what="the shares"),)
    return Decision(copies=copies, when=When.BEFORE, pfs=False, orders=orders, notes=notes)


def locality_aware(job: Job) -> Decision:
    """Locality-aware loading (Yang and Cong 2019): every node holds a share of the dataset. From
    the samples that all nodes together use in a step, each node takes those that it holds.

    If a node holds more samples of the step than its batch has room for, the surplus goes to nodes
    that hold too few. These nodes read the surplus samples from the holder. Assumption: shares are
    contiguous and loaded before training, as in NoPFS's simulation. Raises PolicyError if nodes
    have different numbers of ranks.
    """
    need_memory(job, "locality-aware")
    need_equal_ranks(job, "locality-aware")
    copies = shards(job)
    holder = np.full(job.files, PFS, dtype=np.int32)
    holder[copies.file] = copies.node

    def orders(epoch: int) -> Ints:
        order = job.orders(epoch)
        return exchange(order, holder[order])

    return Decision(copies=copies, when=When.BEFORE, remote=True, pfs=False, orders=orders)


def exchange(order: Ints, holder: Ints) -> Ints:
    """Redistributes the samples of every step, so that as many as possible go to nodes that hold
    them.

    order : (nodes, steps, batch), files
    holder : (nodes, steps, batch), the node that holds each of these files, or PFS

    Returns an order of the same shape, in which every step has the same files as before. Each node
    first gets the files of the step that it holds, but at most `batch` of them. The remaining files
    of the step then fill up the nodes' batches.
    """
    nodes, steps, batch = order.shape
    files = order.transpose(1, 0, 2).reshape(steps, -1)
    held = holder.transpose(1, 0, 2).reshape(steps, -1).astype(np.int64)
    # The files are sorted by step, and within each step by holder. `rank` numbers the files of the
    # same step and holder from 0: it is a file's position in the batch of its holder.
    key = np.arange(steps)[:, None] * (nodes + 1) + np.where(held == PFS, nodes, held)
    by_key = np.argsort(key.ravel(), kind="stable")
    sorted_key = key.ravel()[by_key]
    rank = np.arange(len(by_key)) - np.searchsorted(sorted_key, sorted_key)
    node = sorted_key % (nodes + 1)
    settled = (node < nodes) & (rank < batch)
    dealt = np.full((steps, nodes, batch), -1, dtype=order.dtype)
    step = sorted_key // (nodes + 1)
    flat = files.ravel()[by_key]
    dealt[step[settled], node[settled], rank[settled]] = flat[settled]
    # The free positions take the remaining files, step by step. A step has as many free positions
    # as remaining files.
    dealt[dealt == -1] = flat[~settled]
    return np.asarray(dealt.transpose(1, 0, 2))


def _held(copies: Copies) -> Int32s:
    if not len(copies.file):
        raise PolicyError("classes: no node has room for any file; raise their capacity")
    return np.sort(copies.file)


def _passes(files: Ints, count: int, rng: np.random.Generator) -> Int32s:
    """Returns `count` files in random order; no file is repeated before all files were used."""
    passes = [rng.permutation(files) for _ in range(-(-count // len(files)))]
    return np.concatenate(passes)[:count].astype(np.int32)
