"""The interface of policies in the simulator: their input, a `Job`, and their output, a `Decision`.

A policy reads a `Job`, changes nothing, and returns a `Decision`. All data are arrays that cover
all files, or all accesses of an epoch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.errors import PolicyError
from monarch_py.plan.access import NEVER, add_first_uses, add_uses

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer[Any]]
Int32s = npt.NDArray[np.int32]
Uints = npt.NDArray[np.uint64]

# Used instead of a node's number for a file that only the parallel file system has.
PFS = -1
# A row of an order lists the samples that one node takes in a step. If other nodes take more, the
# rest of the row has this value.
NO_FILE = -1
# The storage class of the staging buffer, where files lie between prefetch and use.
STAGING = 0


@dataclass(frozen=True)
class Cluster:
    """The machine, as section 4 of the NoPFS paper models it: nodes, their storage classes, the
    links, the parallel file system.

    capacity : (nodes, classes) int64 [bytes]; the first class is the staging buffer
    threads : (classes,) int, how many threads prefetch into each class
    read_rate : (nodes, classes) float64 [bytes/s], the rate of all threads of a class together
    network : (nodes,) float64 [bytes/s], the rate of each node's link
    ranks : (nodes,) int, how many training processes each node has
    preprocess : (nodes,) float64 [bytes/s], the rate at which one thread of the staging buffer
        preprocesses samples
    pfs_rate : a function that returns the rate of the file system for all its clients together
        [bytes/s]. Argument: the number of clients
    """

    capacity: npt.NDArray[np.int64]
    threads: npt.NDArray[np.int64]
    read_rate: Floats
    network: Floats
    ranks: npt.NDArray[np.int64]
    preprocess: Floats
    pfs_rate: Callable[[float], float]

    @property
    def nodes(self) -> int:
        return int(self.capacity.shape[0])

    @property
    def classes(self) -> int:
        return int(self.capacity.shape[1])


@dataclass(frozen=True)
class Job:
    """A training job: its files, its machine, and which node uses which file when.

    sizes : (files,) int64 [bytes]
    epochs : number of epochs
    batch : the number of samples that the node with the most ranks takes in a step
    orders : a function that returns the order of an epoch, (nodes, steps, batch) int32: the files
        that each node uses in each step, in the sampler's order. A node uses the files of a step
        one after the other. All nodes wait for each other at the end of each step. If a node has
        fewer ranks than others, its rows are padded with NO_FILE
    seed : the seed for policies that draw random numbers of their own
    """

    sizes: npt.NDArray[np.int64]
    cluster: Cluster
    epochs: int
    batch: int
    orders: Callable[[int], Ints]
    seed: int = 0

    @property
    def files(self) -> int:
        return len(self.sizes)

    @cached_property
    def frequencies(self) -> npt.NDArray[np.uint32]:
        """How often each node uses each file in the whole job, (nodes, files) (NoPFS 3.1)."""
        counts = np.full((self.cluster.nodes, self.files), 0, dtype=np.uint32)
        for epoch in range(self.epochs):
            for order, row in zip(self.orders(epoch), counts, strict=True):
                add_uses(np.ascontiguousarray(order, np.int32), row)
        return counts

    @cached_property
    def first_use(self) -> npt.NDArray[np.int64]:
        """When each node first uses each file, (nodes, files). This is the position of the node's
        first access to the file among all accesses of the node, over all epochs; NEVER if the node
        does not use the file."""
        first = np.full((self.cluster.nodes, self.files), NEVER, dtype=np.int64)
        before = 0
        for epoch in range(self.epochs):
            orders = self.orders(epoch)
            for order, row in zip(orders, first, strict=True):
                add_first_uses(np.ascontiguousarray(order, np.int32), before, row)
            before += orders[0].size
        return first


def same_shape(order: Ints, files: Ints) -> Int32s:
    """Returns an order of the same shape as `order`, but with the files `files`.

    order : (nodes, steps, batch), the order of an epoch
    files : as many files as `order` contains: first the files of node 0, step by step, then the
        files of node 1, and so on
    """
    dealt: Int32s = np.array(order, np.int32)
    dealt[order != NO_FILE] = files
    return dealt


def need_equal_ranks(job: Job, name: str) -> None:
    """Checks that all nodes have the same number of ranks, for policies that distribute samples in
    batches of one size. Raises PolicyError otherwise."""
    if len(set(job.cluster.ranks.tolist())) > 1:
        raise PolicyError(
            f"{name}: the policy gives all nodes batches of one size, so all of them must have "
            "the same number of ranks; remove overrides.ranks"
        )


class When(Enum):
    """When a policy's copies are made."""

    # Before training: no node trains until all copies are made.
    BEFORE = "before"
    # During training: the threads of each storage class make the copies that the class keeps, in
    # the order of the rows of Copies.
    BESIDE = "beside"
    # When the node first reads the file: the node then keeps the file's content as the copy.
    ON_USE = "on_use"


@dataclass(frozen=True)
class Copies:
    """The copies to make, one per row. The copies of one node and storage class are made in the
    order of their rows.

    node : (copies,) int32;  cls : (copies,) int8, never the staging buffer;  file : (copies,) int32
    """

    node: Int32s
    cls: npt.NDArray[np.int8]
    file: Int32s

    @classmethod
    def of(cls, parts: Sequence[tuple[int, int, Ints]] = ()) -> "Copies":
        """Returns a Copies with the rows of all parts.

        parts : tuples of a node, a storage class, and the files in the order of filling
        """
        lengths = np.array([len(files) for _, _, files in parts], np.int64)
        return cls(
            np.repeat(np.array([node for node, _, _ in parts], np.int32), lengths),
            np.repeat(np.array([level for _, level, _ in parts], np.int8), lengths),
            np.concatenate(
                [np.zeros(0, np.int32), *(files for *_, files in parts)], dtype=np.int32
            ),
        )


@dataclass(frozen=True)
class Served:
    """Where the accesses of one epoch find their files, for policies that evict copies.

    holder : (nodes, accesses) int32, the node that has the file, or PFS
    cls : (nodes, accesses) int8, the storage class in which the holder has the file; meaningless if
        the holder is PFS
    into, down : (nodes, accesses) int8, the fastest and the slowest storage class that the access
        writes to; STAGING if it writes to none. They are classes of the file's owner. If the file
        has no owner, they are classes of the node that uses the file. Class `into` receives the
        file. Each slower class, down to `down`, receives the files that the next faster class drops
        to make room. The total size of these dropped files is assumed to be the size of the file.
        If no node has the file, and the file goes into a class of its owner, the owner reads the
        file from the file system
    redundant : (nodes, accesses) int64 [bytes], how much is read from the file system in addition
        to the file, because the policy joins reads; None if the policy reads only files
    """

    holder: Int32s
    cls: npt.NDArray[np.int8]
    into: npt.NDArray[np.int8]
    down: npt.NDArray[np.int8]
    redundant: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Decision:
    """The result of a policy: which copies to make, and how nodes read files.

    staging : whether files are prefetched into the staging buffer in the exact order of access
        (NoPFS 5.1, Rule 1); if False, each file is fetched when it is used
    copies, when : the copies in all classes except the staging buffer, and when they are made
    remote : whether a node may read copies of other nodes
    due : (copies,) int64, a deadline for each copy: a position among the accesses of a node, as in
        `Job.first_use`. The copy should exist when the node that makes it reaches this position.
        Other nodes cannot see whether the copy exists. So another node asks for the copy only when
        it has itself reached the same position among its own accesses (NoPFS 5.2.2). None means
        that every node knows at any time which copies exist
    owner : (files,) int32, the only node that reads a file from the file system; it sends the file
        to the nodes that ask for it. PFS for a file that every node reads itself. None means that
        no file has an owner. If several nodes ask while the owner reads a file, one read serves all
        of them. So an owner that keeps the file reads it only once
    pfs : whether a file that has a copy on some node may also be read from the file system, if this
        is faster at that moment by the performance model (NoPFS 4)
    orders : a function that returns the order of an epoch, as in Job; None if the policy keeps the
        job's orders. A node may take more samples in a step than the job's batch. The rows of nodes
        that take fewer samples than others are padded with NO_FILE
    served : a function that returns, for an epoch and its order, where the accesses find their
        files. If a policy sets `served`, `copies` describes only what the storage classes contain
        before the first step
    threads : a function that returns, for an epoch and its order, how many threads fetch the
        samples of each rank in each step, (nodes, steps, ranks) int32, each 1 or more. They are
        threads of the node's staging buffer. A thread that becomes free serves the rank with the
        lowest ratio of busy threads to assigned threads (Lobster 4.3). None means that every rank
        has threads of its own
    free : whether reading takes no time (the perfect policy)
    notes : remarks for the reader of a report
    """

    staging: bool = True
    copies: Copies = field(default_factory=Copies.of)
    when: When = When.BESIDE
    remote: bool = False
    due: npt.NDArray[np.int64] | None = None
    owner: Int32s | None = None
    pfs: bool = True
    orders: Callable[[int], Ints] | None = None
    served: Callable[[int, Ints], Served] | None = None
    threads: Callable[[int, Ints], Int32s] | None = None
    free: bool = False
    notes: tuple[str, ...] = ()


# A policy is a function that returns its decision for a job. It raises PolicyError for a job that
# it cannot handle.
Policy = Callable[[Job], Decision]
