"""Baselines that change who uses what, so that more of it lies on the node that uses it.

LocalityAware exchanges samples within a step and keeps the batch of the step as a set. DeepIO's
opportunistic mode and ParallelStaging draw orders of their own, and where the dataset does not fit
they never see a part of it (NoPFS section 6 marks them so).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from monarch_py.errors import PolicyError
from monarch_py.policies.baselines import MEMORY, need_memory
from monarch_py.policies.filling import copies_of, shards
from monarch_py.policies.replay import in_time
from monarch_py.policies.view import (
    NO_FILE,
    PFS,
    Copies,
    Decision,
    Ints,
    Job,
    When,
    need_equal_ranks,
    same_shape,
)

__all__ = ["DeepIOOpportunistic", "LocalityAware", "ParallelStaging", "exchange"]

NOT_ALL = "does not access the whole dataset: it uses what is held in {what} alone"


class DeepIOOpportunistic:
    """Opportunistic mode of DeepIO (Zhu et al. 2018): the order is relaxed, and nodes are served
    with what lies in some memory already.

    Assumptions: after the loading of DeepIO's ordered mode, every epoch deals all samples in
    memory at random, each once (and again from the start where the epoch is longer), so that one in
    `nodes` is a node's own. What fitted into no memory is not used.
    """

    name = "deepio-opportunistic"

    def decide(self, job: Job) -> Decision:
        need_memory(job, self.name)
        own = shards(job.files, job.cluster.nodes)
        copies = copies_of(job.cluster, job.sizes, own.__getitem__, classes=MEMORY + 1)
        held = _held(job, copies)

        def orders(epoch: int) -> Ints:
            order = job.orders(epoch)
            rng = np.random.default_rng([job.seed, epoch])
            # Nodes take turns, so that one pass over the samples is shared by all.
            turns = in_time(order)
            dealt = same_shape(turns, _passes(held, int(np.sum(turns != NO_FILE)), rng))
            return np.asarray(dealt.reshape(-1, len(order)).T.reshape(order.shape))

        notes = () if len(held) == job.files else (NOT_ALL.format(what="memory"),)
        return Decision(
            copies=copies, when=When.BEFORE, remote=True, pfs=False, orders=orders, notes=notes
        )


class ParallelStaging:
    """Data sharding: every node copies a contiguous share to its classes before training, and uses
    its share alone, in a random order of its own (NoPFS 6).

    Each epoch passes over the share once (and again from the start where the share is shorter than
    the epoch, a part of it where it is longer).
    """

    name = "parallel-staging"

    def decide(self, job: Job) -> Decision:
        need_memory(job, self.name)
        own = shards(job.files, job.cluster.nodes)
        copies = copies_of(job.cluster, job.sizes, own.__getitem__)
        held = [copies.file[copies.node == node] for node in range(job.cluster.nodes)]
        empty = next((node for node, files in enumerate(held) if not len(files)), None)
        if empty is not None:
            raise PolicyError(
                f"{self.name}: node {empty} has no room for a single file of its share; "
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


class LocalityAware:
    """Locality-aware loading (Yang and Cong 2019): every node holds a share; of the batch of a step
    each node takes what it holds, and the rest makes up for what is missing.

    The batch of the step stays the same set. Samples beyond a node's batch go to nodes that have
    too few of their own, and are read from their holder.
    Assumption: shares are contiguous and loaded before training, as in NoPFS's simulation.
    Raises PolicyError where nodes have different numbers of ranks.
    """

    name = "locality-aware"

    def decide(self, job: Job) -> Decision:
        need_memory(job, self.name)
        need_equal_ranks(job, self.name)
        own = shards(job.files, job.cluster.nodes)
        copies = copies_of(job.cluster, job.sizes, own.__getitem__)
        holder = np.full(job.files, PFS, dtype=np.int32)
        holder[copies.file] = copies.node

        def orders(epoch: int) -> Ints:
            order = job.orders(epoch)
            return exchange(order, holder[order])

        return Decision(copies=copies, when=When.BEFORE, remote=True, pfs=False, orders=orders)


def exchange(order: Ints, holder: Ints) -> Ints:
    """Deals the samples of every step anew, as many as possible to the node that holds them.

    order : (nodes, steps, batch), files;  holder : the same shape, the node that holds each, or
    PFS.  Returns the same shape: the files of every step are the same, and each node gets `batch`
    of them; the largest possible number lies with its holder, because a node gets all that it
    holds up to `batch`.
    """
    nodes, steps, batch = order.shape
    files = order.transpose(1, 0, 2).reshape(steps, -1)
    held = holder.transpose(1, 0, 2).reshape(steps, -1).astype(np.int64)
    # One sort for all steps: by step, then by holder. The rank within a group is the place.
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
    # Free places, step by step, take the rest, step by step: there are as many of each.
    dealt[dealt == -1] = flat[~settled]
    return np.asarray(dealt.transpose(1, 0, 2))


def _held(job: Job, copies: Copies) -> npt.NDArray[np.int32]:
    if not len(copies.file):
        raise PolicyError("classes: no node has room for a single file; raise their capacity")
    return np.sort(copies.file)


def _passes(files: Ints, count: int, rng: np.random.Generator) -> npt.NDArray[np.int32]:
    """`count` of the files in random order, each once before one comes again."""
    passes = [rng.permutation(files) for _ in range(-(-count // len(files)))]
    return np.concatenate(passes)[:count].astype(np.int32)
