"""The policy SOLAR (Sun et al., VLDB'22). It evicts samples by their known future uses, and
fills the batches of a node with samples that the node's buffer holds."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from monarch_py.errors import PolicyError
from monarch_py.policies.eviction import MISS, FarthestUse
from monarch_py.policies.replay import Replay, in_time, next_uses
from monarch_py.policies.solar.chunks import join
from monarch_py.policies.solar.epochs import edge_costs, order_epochs
from monarch_py.policies.solar.mapping import deal
from monarch_py.policies.view import (
    NO_FILE,
    PFS,
    STAGING,
    Bools,
    Decision,
    Floats,
    Ints,
    Job,
    Served,
    When,
    need_equal_ranks,
)


@dataclass(frozen=True)
class Solar:
    """Assigns samples to the nodes that hold them, balances loads, and drops the samples with the
    farthest next use.

    cap : the largest number of samples that a node takes in a step, as a multiple of its batch.
        (In SOLAR, batches may differ between ranks, and the memory of a GPU bounds them.)
    chunk : how many samples a chunk of the file has; a read stays within one chunk
    gap : a read may include at most this many unwanted samples between two wanted samples
    vain : how many unwanted samples a node may read for each sample that it loads. A larger value
        leads to fewer reads, which include more unwanted bytes
    reorder : whether the epochs are reordered too. By default they are not, because reordering
        gains nearly nothing with independent shuffles. The module `epochs` explains why

    The node that loads a sample becomes the sample's only holder. Later steps assign the sample to
    its holder. If the holder has reached the cap, another node loads the sample for this one use,
    and the holder keeps the sample. Assumptions: a node's buffer consists of all its storage
    classes together, and every node has the same cap. Raises PolicyError in three cases: if the cap
    is below 1, if `chunks.join` refuses the arguments, or if nodes have different numbers of ranks.
    """

    cap: float = 1.5
    chunk: int = 1
    gap: int = 0
    vain: float = 0.01
    reorder: bool = False

    def __post_init__(self) -> None:
        if self.cap < 1:
            raise PolicyError(
                f"solar: cap is {self.cap}, which leaves some samples of a step without a node;"
                " write 1 or more"
            )
        join(np.zeros(0, dtype=np.int64), self.gap, self.chunk)

    def __call__(self, job: Job) -> Decision:
        need_equal_ranks(job, "solar-reordered" if self.reorder else "solar")
        if self.reorder:
            path, given = self._path(job), job.orders
            job = replace(job, orders=lambda epoch: given(int(path[epoch])))
        replay = Replay(lambda: self._epochs(job))
        return Decision(
            when=When.ON_USE,
            pfs=False,
            orders=lambda epoch: replay.at(epoch)[0],
            served=lambda epoch, _: replay.at(epoch)[1],
        )

    @staticmethod
    def _path(job: Job) -> npt.NDArray[np.int64]:
        room = int(job.cluster.capacity[:, STAGING + 1 :].sum())
        capacity = min(job.files, room // max(1, int(job.sizes.mean())))
        return order_epochs(edge_costs(job.orders, job.epochs, capacity, job.files))

    def _epochs(self, job: Job) -> Iterator[tuple[Ints, Served]]:
        nodes = job.cluster.nodes
        upcoming = next_uses(job, together=True)
        buffers = _Buffers(job)
        # The offset of each sample in the file [bytes].
        offset = np.concatenate([[0], np.cumsum(job.sizes)])
        # How many more unwanted samples each node may read, (nodes,); see `vain`.
        spare = np.zeros(nodes)
        start = 0
        for epoch in range(job.epochs):
            steps, batch = job.orders(epoch).shape[1:]
            shape = (nodes, steps, int(np.ceil(self.cap * batch)))
            order = np.full(shape, NO_FILE, dtype=np.int32)
            cls, into = np.zeros((2, *shape), dtype=np.int8)
            redundant = np.zeros(shape, dtype=np.int64)
            files = in_time(job.orders(epoch)).reshape(steps, -1)
            after = in_time(upcoming[epoch]).reshape(steps, -1)
            for step in range(steps):
                node, loaded = deal(files[step], buffers.holder[files[step]], nodes, shape[2])
                place = (node, step, _places(node))
                order[place] = files[step]
                now = start + (step + 1) * nodes * batch - 1
                cls[place], into[place] = buffers.use(files[step], after[step], node, loaded, now)
                redundant[place] = self._redundant(files[step], node, loaded, offset, spare)
            start += nodes * steps * batch
            buffers.forget(start - 1)
            rows = np.arange(nodes, dtype=np.int32)[:, None, None]
            holder = np.where(cls == MISS, PFS, rows).reshape(nodes, -1).astype(np.int32)
            cls, into = cls.reshape(nodes, -1), into.reshape(nodes, -1)
            served = Served(holder, cls, into, into, redundant.reshape(nodes, -1))
            yield order, served

    def _redundant(
        self, files: Ints, node: Ints, loaded: Bools, offset: Ints, spare: Floats
    ) -> npt.NDArray[np.int64]:
        """Returns how many redundant bytes are read with each sample, (samples,). Redundant bytes
        are those of unwanted samples. All redundant bytes of a read are attributed to one wanted
        sample of the read; the elements of the read's other samples are 0.

        spare : (nodes,), how many more unwanted samples each node may read. Each load of this step
            increases the number, and each unwanted sample that is read decreases it
        """
        answer = np.zeros(len(files), dtype=np.int64)
        if self.gap == 0:
            return answer
        for each in np.unique(node[loaded]):
            at = np.flatnonzero(loaded & (node == each))
            spare[each] += self.vain * len(at)
            reads = join(files[at], self.gap, self.chunk, float(spare[each]))
            spare[each] -= reads.redundant.sum()
            whole = offset[reads.start + reads.count] - offset[reads.start]
            sizes = offset[files[at] + 1] - offset[files[at]]
            wanted = np.bincount(reads.read_of, sizes, len(whole)).astype(np.int64)
            _, first = np.unique(reads.read_of, return_index=True)
            answer[at[first]] = whole - wanted
        return answer


def _places(node: Ints) -> npt.NDArray[np.int64]:
    """Returns the position of each sample in its node's batch. Samples keep their order."""
    by_node = np.argsort(node, kind="stable")
    rank = np.empty(len(node), dtype=np.int64)
    rank[by_node] = np.arange(len(node)) - np.searchsorted(node[by_node], node[by_node])
    return rank


class _Buffers:
    """The buffers of all nodes.

    holder : (files,) int32, the node that holds each file, or PFS
    """

    def __init__(self, job: Job) -> None:
        sizes = job.sizes.tolist()
        self._caches = [FarthestUse(each, sizes) for each in job.cluster.capacity]
        self.holder = np.full(job.files, PFS, dtype=np.int32)

    def use(
        self, files: Ints, after: Ints, node: Ints, loaded: Bools, now: int
    ) -> npt.NDArray[np.int8]:
        """Uses the samples of a step, and keeps the loaded samples that a cache admits. Returns an
        array (2, samples): the storage class that held each sample (MISS for a loaded sample), and
        the class into which it was newly put (MISS if it was put into none).

        after, node, loaded : (samples,), the next use of each sample, the node that uses it, and
            whether it is loaded
        now : the number of the last access of the step
        """
        cls, into = answer = np.zeros((2, len(files)), dtype=np.int8)
        owner = self.holder[files].tolist()
        # The rows are made of lists, because access to single elements of arrays is slow.
        rows = zip(files.tolist(), after.tolist(), node.tolist(), owner, strict=True)
        for at, (file, upcoming, who, had) in enumerate(rows):
            if had == PFS:
                # With replacement, a sample may occur twice in the step. Then a node may have kept
                # the sample at its first occurrence.
                if self.holder[file] != PFS:
                    self._caches[self.holder[file]].used(file, upcoming)
                    continue
                gone = self._caches[who].offer(file, upcoming, now)
                if gone is not None:
                    self.holder[gone] = PFS
                    self.holder[file] = who
                    into[at] = self._caches[who].level(file)
                continue
            # The holder's cache may have evicted this sample a moment ago, to admit another sample
            # of this step. If this sample is not to be loaded, the holder is assumed to have used
            # it before the eviction: the sample is recorded as found in memory.
            level = self._caches[had].level(file)
            if level == MISS:
                cls[at] = MISS if loaded[at] else STAGING + 1
                continue
            if not loaded[at]:
                cls[at] = level
            self._caches[had].used(file, upcoming)
            if self._caches[had].level(file) == MISS:
                self.holder[file] = PFS
        return answer

    def forget(self, now: int) -> None:
        for cache in self._caches:
            cache.forget(now)
