"""A policy's input, a `Job`, and its output, a `Decision`, as the simulator knows them.

A policy looks at a `Job` and answers with a `Decision`; it touches nothing. Everything goes by
arrays over all files or all accesses of an epoch, never file by file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from monarch_py.errors import PolicyError
from monarch_py.plan.access import NEVER, add_first_uses, add_uses

__all__ = [
    "NO_FILE",
    "PFS",
    "STAGING",
    "Cluster",
    "Copies",
    "Decision",
    "Job",
    "Policy",
    "Served",
    "When",
    "need_equal_ranks",
    "same_shape",
]

Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]

# The holder of a file that only the parallel file system has.
PFS = -1
# In a policy's order: the node takes fewer samples in this step than others do.
NO_FILE = -1
# The storage class that is the staging buffer: files lie there between prefetch and use.
STAGING = 0


@dataclass(frozen=True)
class Cluster:
    """The machine: nodes, their storage classes, the links, the parallel file system (NoPFS 4).

    capacity : (nodes, classes) int64 [bytes]; the first class is the staging buffer
    threads : (classes,) int, prefetching threads of each class
    read_rate : (nodes, classes) float64 [bytes/s], all threads of the class together
    network : (nodes,) float64 [bytes/s], each node's link
    ranks : (nodes,) int, processes that train
    preprocess : (nodes,) float64 [bytes/s], what a staging thread prepares
    pfs_rate : what the file system gives to a number of clients together [bytes/s]
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
    """A training job: the files, who uses them when, and on what machine.

    sizes : (files,) int64 [bytes];  epochs : how many;  batch : samples of a node in a step, of the
    one with most ranks;  orders : for an epoch, (nodes, steps, batch) int32, the files in the order
    of the sampler: a node takes those of a step one after the other, and all nodes meet at the end
    of each step; behind those of a node with fewer ranks there is NO_FILE;
    seed : for policies that draw numbers of their own.
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
        """(nodes, files): how often each node uses each file in the whole job (NoPFS 3.1)."""
        counts = np.full((self.cluster.nodes, self.files), 0, dtype=np.uint32)
        for epoch in range(self.epochs):
            for order, row in zip(self.orders(epoch), counts, strict=True):
                add_uses(np.ascontiguousarray(order, np.int32), row)
        return counts

    @cached_property
    def first_use(self) -> npt.NDArray[np.int64]:
        """(nodes, files): the number of the access by which a node first uses a file, counted over
        all epochs; NEVER for one that it does not use."""
        first = np.full((self.cluster.nodes, self.files), NEVER, dtype=np.int64)
        before = 0
        for epoch in range(self.epochs):
            orders = self.orders(epoch)
            for order, row in zip(orders, first, strict=True):
                add_first_uses(np.ascontiguousarray(order, np.int32), before, row)
            before += orders[0].size
        return first


def same_shape(order: Ints, files: Ints) -> npt.NDArray[np.int32]:
    """Another order for the accesses of one.  order : as in `Job.orders`;  files : as many as there
    are in it, in its order (nodes, then steps)"""
    dealt: npt.NDArray[np.int32] = np.array(order, np.int32)
    dealt[order != NO_FILE] = files
    return dealt


def need_equal_ranks(job: Job, name: str) -> None:
    """PolicyError where nodes have different numbers of ranks: for policies that deal samples out
    anew, to batches of one size."""
    if len(set(job.cluster.ranks.tolist())) > 1:
        raise PolicyError(
            f"{name}: deals equal batches to all nodes, and overrides.ranks makes them different"
        )


class When(Enum):
    """When a policy's copies are made."""

    BEFORE = "before"  # in a phase of their own, before the first step; nobody trains meanwhile
    BESIDE = "beside"  # by the class's threads, in the given order, beside training
    ON_USE = "on_use"  # when the node reads the file for the first time, by that very read alone


@dataclass(frozen=True)
class Copies:
    """What is to be copied where. One row a copy; those of one (node, class) in the order in which
    they are filled.

    node : (copies,) int32;  cls : (copies,) int8, never the staging buffer;  file : (copies,) int32
    """

    node: npt.NDArray[np.int32]
    cls: npt.NDArray[np.int8]
    file: npt.NDArray[np.int32]

    @classmethod
    def none(cls) -> Copies:
        return cls(np.zeros(0, np.int32), np.zeros(0, np.int8), np.zeros(0, np.int32))

    @classmethod
    def of(cls, parts: Sequence[tuple[int, int, Ints]]) -> Copies:
        """parts : (node, class, files in the order of filling)"""
        if not parts:
            return cls.none()
        lengths = [len(files) for _, _, files in parts]
        return cls(
            np.repeat(np.array([node for node, _, _ in parts], np.int32), lengths),
            np.repeat(np.array([level for _, level, _ in parts], np.int8), lengths),
            np.concatenate([np.asarray(files, np.int32) for _, _, files in parts]),
        )


@dataclass(frozen=True)
class Served:
    """Where the accesses of one epoch find their files, for policies whose copies come and go.

    holder : (nodes, accesses) int32, the node that has it, or PFS
    cls : (nodes, accesses) int8, the storage class there (anything where the holder is PFS)
    into, down : (nodes, accesses) int8, the classes from `into` to `down` of the file's owner, or
        of the node that uses it where it has none, take as many bytes as it has: the file itself,
        and what it pushes from one class into the next; STAGING where nothing is written. What is
        missed is read through the owner if it goes into a class there
    redundant : (nodes, accesses) int64 [bytes], read from the file system besides the file, by
        policies that read in larger pieces; None for nothing
    """

    holder: npt.NDArray[np.int32]
    cls: npt.NDArray[np.int8]
    into: npt.NDArray[np.int8]
    down: npt.NDArray[np.int8]
    redundant: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Decision:
    """What a policy wants done.

    staging : files are prefetched into the staging buffer in the exact order of access (NoPFS 5.1,
        Rule 1); without it each is fetched when it is asked for
    copies, when : what the other classes hold, and when it gets there
    remote : a node may read copies of other nodes
    due : (copies,) int64, the access of its node by which each copy should be there, as numbered in
        `Job.first_use`; a node that has not come so far itself does not ask for it (NoPFS 5.2.2).
        None: nodes know what is where
    owner : (files,) int32, the node that alone reads a file from the file system and sends it on to
        those who asked for it, PFS for a file that everybody reads himself; None: so for all. What
        several want while it is read is read once, so that an owner that keeps it reads it once
    pfs : a file that has a copy somewhere may still be read from the file system, if the
        performance model says that this is faster now (NoPFS 4)
    orders : the order of an epoch, as in Job, where the policy changes it; it may be wider than
        the batch, with NO_FILE behind the samples of nodes that take fewer (nothing is read then)
    served : for an epoch and its order, where its accesses find their files; where it is given,
        `copies` only tell what lies there before the first step
    keep : a read from elsewhere of a file that has a place on the node puts it there, so that it
        is not fetched twice
    threads : for an epoch and its order, (nodes, steps, ranks) int32, how many of its node's
        staging threads fetch the samples of a rank in a step, 1 or more: a thread that is free goes
        where most of them are missing, in proportion (Lobster 4.3); None: every rank has its own
    free : reading costs nothing (the perfect policy)
    notes : what the reader of a report should know
    """

    staging: bool = True
    copies: Copies = field(default_factory=Copies.none)
    when: When = When.BESIDE
    remote: bool = False
    due: npt.NDArray[np.int64] | None = None
    owner: npt.NDArray[np.int32] | None = None
    pfs: bool = True
    orders: Callable[[int], Ints] | None = None
    served: Callable[[int, Ints], Served] | None = None
    keep: bool = True
    threads: Callable[[int, Ints], npt.NDArray[np.int32]] | None = None
    free: bool = False
    notes: tuple[str, ...] = ()


class Policy(Protocol):
    """name : as on the command line, in lower case with hyphens"""

    name: str

    def decide(self, job: Job) -> Decision:
        """Raises PolicyError where the policy cannot work on this job (its paper excludes it)."""
        ...
