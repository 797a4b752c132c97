"""The policy Lobster (Liu et al., ICPP'22). It evicts copies by their reuse (section 4.4 of the
paper), and divides a node's threads among its GPUs (sections 4.1 to 4.3)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from monarch_py.plan.access import NEVER
from monarch_py.policies.eviction import MISS, FarthestUse
from monarch_py.policies.lobster.preprocessing import PiecewiseLinear
from monarch_py.policies.lobster.queues import queue_bytes, queue_seconds, share_threads
from monarch_py.policies.replay import Replay, next_uses
from monarch_py.policies.view import (
    NO_FILE,
    PFS,
    STAGING,
    Bools,
    Cluster,
    Decision,
    Floats,
    Int32s,
    Ints,
    Job,
    Served,
    When,
)


@dataclass
class Evictions:
    """The number of copies that each of the three rules of `lobster` has dropped."""

    reuse_count: int = 0
    reuse_distance: int = 0
    prefetch: int = 0


def lobster(job: Job, evictions: Evictions | None = None) -> Decision:
    """Nodes cache what they load, and three rules decide which copies are dropped (Lobster 4.4).

    1. Reuse count: after its last use on the node, a copy is dropped if another node also holds a
       copy of the sample.
    2. Reuse distance: after a use, a copy is dropped if the node does not use it again before the
       end of the next epoch. After a use in iteration `h` of an epoch with `I` iterations, this
       means that the next use is more than `2 I - h` iterations away.
    3. Coordination with prefetching: if the cache is full, the copy with the farthest next use is
       dropped to make room for the prefetched sample with the nearest use.

    A node that lacks a sample reads it from a node that holds it, or else from the file system, and
    keeps the sample. The threads of a node are divided among its GPUs so that all GPUs have the
    samples of a step at about the same time (Lobster 4.1 to 4.3; see `_threads`). On a single node
    every sample is used in every epoch, so only rule 3 can act.

    Assumptions: a sample is loaded shortly before its use, so it always is the prefetched sample
    with the nearest use. After the use, rule 3 compares the sample's next use with the next uses of
    the held samples, and decides whether to keep the sample. Nodes see which samples the other
    nodes held at the start of the step. Rule 2 applies to samples that are used again, rule 1 to
    all other samples.

    evictions : counters of the copies that each rule drops; the function increases them. None if
        these numbers are not needed
    """
    counted = evictions or Evictions()
    replay = Replay(lambda: _Nodes(job, counted).run())
    return Decision(
        when=When.ON_USE,
        remote=True,
        pfs=False,
        served=lambda epoch, _: replay.at(epoch),
        threads=lambda epoch, order: _threads(job, order, replay.at(epoch)),
    )


# The model of the preprocessing time is piecewise linear in the number of threads. It has at most
# this many pieces.
PIECES = 3


def _threads(job: Job, order: Ints, served: Served) -> Int32s:
    """Returns the number of threads that Algorithm 1 gives each rank in every step,
    (nodes, steps, ranks) int32, in the form of `Decision.threads`.

    A queue consists of the samples that one rank needs in a step. Each thread loads a sample and
    then preprocesses it, so the predicted time of a queue includes loading and preprocessing.
    (Section 4.1 of the paper reserves threads for preprocessing; this function does not.) The
    prediction assumes that all threads of all nodes read at the same time, and divide the rate of
    each source evenly.
    """
    cluster = job.cluster
    total, most = int(cluster.threads[STAGING]), int(cluster.ranks.max())
    answer = np.ones((*order.shape[:2], most), dtype=np.int32)
    # Each source of samples has a number. The first numbers are the node's own storage classes. The
    # next number stands for all other nodes, and the last number for the file system.
    remote, pfs = cluster.classes, cluster.classes + 1
    holder, cls = (each.reshape(order.shape) for each in (served.holder, served.cls))
    for node in range(cluster.nodes):
        ranks = int(cluster.ranks[node])
        if not 1 < ranks < total:
            continue
        shape = (order.shape[1], ranks, -1)
        own = (slice(None), slice(ranks * (order.shape[2] // most)))
        files, who = (each[node][own].reshape(shape) for each in (order, holder))
        source = np.where(
            who == PFS, pfs, np.where(who == node, cls[node][own].reshape(shape), remote)
        )
        loads = queue_bytes(job.sizes[files], source.astype(np.int8), pfs + 1)
        seconds = queue_seconds(loads, _rates(cluster, node), total)
        seconds += loads.sum(axis=-1)[..., None] * _preparing(cluster, node)(
            np.arange(1, total + 1)
        )
        answer[node, :, :ranks] = share_threads(seconds, total)
    return answer


def _rates(cluster: Cluster, node: int) -> Floats:
    """Returns the rate at which one thread of a node reads from each source if all threads of all
    nodes are busy, (sources,) [bytes/s]. The sources are: each storage class of the node, then the
    other nodes, then the file system."""
    total = int(cluster.threads[STAGING])
    each = cluster.read_rate / np.maximum(1, np.maximum(cluster.threads, total))
    others = np.delete(each[:, STAGING + 1 :], node, axis=0).max(initial=0.0)
    remote = min(others, cluster.network[node] / total)
    return np.array([*each[node], remote, cluster.pfs_rate(cluster.nodes) / cluster.nodes / total])


def _preparing(cluster: Cluster, node: int) -> PiecewiseLinear:
    """Returns the time to preprocess one byte [s], as a function of the number of threads (Lobster
    4.1)."""
    threads = np.arange(1, int(cluster.threads[STAGING]) + 1)
    return PiecewiseLinear.fit(threads, 1 / (cluster.preprocess[node] * threads), PIECES)


def no_more_use(upcoming: Ints, copies: Ints) -> Bools:
    """Returns, for each sample, whether rule 1 of `lobster` drops it, (samples,).

    upcoming : (samples,) the next use of each sample on this node, or NEVER
    copies : (samples,) how many nodes hold each sample
    """
    return np.asarray((upcoming == NEVER) & (copies > 1))


def too_far(upcoming: Ints, now: int, iteration: int, iterations: int) -> Bools:
    """Returns, for each sample, whether rule 2 of `lobster` drops it, (samples,).

    upcoming : (samples,) the iteration of the next use on this node, counted over all epochs
    now : the present iteration, counted over all epochs
    iteration : the number of the present iteration in its epoch, counted from 1
    iterations : the number of iterations of an epoch
    """
    distance = upcoming - now
    return np.asarray((upcoming != NEVER) & (distance > 2 * iterations - iteration))


class _Nodes:
    """The caches of all nodes, simulated step by step."""

    def __init__(self, job: Job, evictions: Evictions) -> None:
        self.job, self.evictions = job, evictions
        sizes = job.sizes.tolist()
        self.caches = [FarthestUse(each, sizes) for each in job.cluster.capacity]
        # One more than the number of the job's last access. Used as the next use of a sample that
        # is never used again.
        self.end = sum(job.orders(epoch).size for epoch in range(job.epochs))

    def run(self) -> Iterator[Served]:
        upcoming = next_uses(self.job, together=False)
        nodes, start = self.job.cluster.nodes, 0
        for epoch in range(self.job.epochs):
            order = self.job.orders(epoch)
            _, steps, batch = order.shape
            after = upcoming[epoch].reshape(order.shape)
            holder = np.full(order.shape, PFS, dtype=np.int32)
            cls, into = np.zeros((2, *order.shape), dtype=np.int8)
            for step in range(steps):
                # For each node, an index into `order` that selects the node's samples of the step,
                # without the NO_FILE elements that follow them.
                parts = [
                    (node, step, slice(np.count_nonzero(order[node, step] != NO_FILE)))
                    for node in range(nodes)
                ]
                for part in parts:
                    self._find(part[0], order[part], holder[part], cls[part])
                # All nodes have looked up their samples before any node drops a copy.
                now = start + (step + 1) * batch * nodes - 1
                for part in parts:
                    beyond = too_far(
                        np.where(after[part] == NEVER, NEVER, after[part] // (batch * nodes)),
                        now // (batch * nodes),
                        step + 1,
                        steps,
                    )
                    into[part] = self._use(part[0], order[part], after[part], beyond, now)
            start += order.size
            for cache in self.caches:
                cache.forget(start - 1)
            cls, into = cls.reshape(nodes, -1), into.reshape(nodes, -1)
            yield Served(holder.reshape(nodes, -1), cls, into, into)

    def _find(self, node: int, files: Ints, holder: Ints, cls: Ints) -> None:
        """Finds, for each sample of a step on `node`, a node that holds the sample, and the storage
        class in which that node holds it. Writes the nodes into `holder`, and the classes into
        `cls`."""
        levels = self._levels(files)
        nearest = np.where(levels[node] != MISS, node, (levels != MISS).argmax(axis=0))
        cls[:] = levels[nearest, np.arange(len(files))]
        holder[:] = np.where(cls == MISS, PFS, nearest)

    def _levels(self, files: Ints) -> Ints:
        """Returns the class in which each node holds each file, or MISS, (nodes, files)."""
        return np.stack([cache.levels()[files] for cache in self.caches])

    def _use(self, node: int, files: Ints, after: Ints, beyond: Bools, now: int) -> Ints:
        """Uses a node's samples of a step: keeps each sample in the node's cache, or drops it, by
        the rules of the policy. Returns the storage class into which each sample was newly put,
        (samples,); MISS for a sample that was in the cache before, or that was not put into any
        class.

        after : (samples,) the samples' next uses
        beyond : (samples,) whether rule 2 drops the sample: its next use is too far away
        now : the number of the last access of the step
        """
        into = np.zeros(len(files), dtype=np.int8)
        cache = self.caches[node]
        others = np.delete(self._levels(files), node, axis=0) != MISS
        last = no_more_use(after, others.sum(axis=0) + 1)
        # After its last use of a sample, a node keeps the sample if no other node holds it. The
        # next use of such a sample is set to a time after all real uses, so that the sample is
        # evicted first when room is needed.
        nexts = np.where(after == NEVER, self.end, after).tolist()
        for at, file in enumerate(files.tolist()):
            held = cache.level(file) != MISS
            if last[at] or beyond[at]:
                if held:
                    cache.drop(file)
                    self.evictions.reuse_count += int(last[at])
                    self.evictions.reuse_distance += int(beyond[at])
            elif held:
                cache.used(file, nexts[at])
            else:
                gone = cache.offer(file, nexts[at], now)
                if gone is not None:
                    self.evictions.prefetch += len(gone)
                    into[at] = cache.level(file)
        return into
