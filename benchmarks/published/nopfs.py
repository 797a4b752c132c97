"""The prefetchers of NoPFS (section 5.1), which fill the storage classes (memory, disk) of nodes.

The prefetchers of a node first copy the files that the node reads most often.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.published.behaviours import Behaviour
from benchmarks.published.clients import ClientLog
from benchmarks.published.fills import thread_ends
from benchmarks.published.holders import Holders
from benchmarks.published.inputs import Inputs

__all__ = ["ClassPrefetchers"]

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int32]


class ClassPrefetchers:
    """Fills the storage classes of every node with copies. Each node has a list of its files. The
    first files of the list fill the fastest class, the following files fill the next class, and so
    on."""

    def __init__(self, inputs: Inputs, holders: Holders, log: ClientLog) -> None:
        self._inputs = inputs
        self._holders = holders
        self._log = log
        classes = inputs.scenario.classes
        self._orders = [self._order(node) for node in range(inputs.nodes)]
        self._next = [0] * inputs.nodes
        self._used = [[0.0] * len(classes) for _ in range(inputs.nodes)]
        # The time [s] at which each thread of a class has fetched all files assigned to it so far.
        self._free = [[np.zeros(c.threads) for c in classes] for _ in range(inputs.nodes)]
        # For each node, whether another call of `fill` may place files. The value is False after a
        # call that placed no file: then all files are placed, or no class has room for the next
        # file.
        self.is_open = [True] * inputs.nodes

    def fill(self, node: int) -> None:
        """Fills the classes of `node` one after the other with the next files of the node's list.
        Continues with the next class when a file does not fit.

        Files are placed only during the first requests of a run. At this time, the threads are
        still fetching files that were placed before. So a thread fetches the new files directly
        after the earlier files, without any idle time.
        """
        before = self._next[node]
        for level in range(1, len(self._used[node])):
            files = self._fitting(node, level)
            if len(files):
                self._load(node, files, level)
        self.is_open[node] = self._next[node] != before

    def _fitting(self, node: int, level: int) -> Numbers:
        order, begin = self._orders[node], self._next[node]
        end = len(order) - (Behaviour.LAST_FILE_LEFT_OUT in self._inputs.on)
        room = float(self._inputs.scenario.classes[level].capacity_bytes)
        used = self._used[node][level]
        if begin >= end or used + self._inputs.sizes[order[begin]] > room:
            return order[:0]
        fill = np.cumsum([used, *self._inputs.sizes[order[begin:end]]])[1:]
        count = int(np.searchsorted(fill, room, "right"))
        self._used[node][level] = float(fill[count - 1])
        self._next[node] += count
        return order[begin : begin + count]

    def _load(self, node: int, files: Numbers, level: int) -> None:
        inputs, threads = self._inputs, self._free[node][level]
        if Behaviour.CLASSES_AT_ALL_CLIENTS in inputs.on:
            pfs = inputs.speeds.pfs[inputs.nodes]
            seconds = inputs.speeds.load_seconds(inputs.sizes[files], pfs)
            ends = thread_ends(seconds, threads)
            self._log.prefetch_many(node, _begins(ends, threads).tolist())
            for thread in range(min(len(threads), len(files))):
                threads[thread] = ends[thread :: len(threads)][-1]
        else:
            ends = np.array(
                [self._load_one(node, file, threads, k) for k, file in enumerate(files)]
            )
        self._holders.hold(node, files, level, ends)

    def _load_one(self, node: int, file: int, threads: Floats, number: int) -> float:
        speeds, size = self._inputs.speeds, self._inputs.sizes[file]
        begin = float(threads[number % len(threads)])
        clients = self._log.clients(begin, node)
        self._log.prefetch(node, begin)
        end = begin + float(size / speeds.write + size / speeds.pfs[clients])
        threads[number % len(threads)] = end
        return end

    def _order(self, node: int) -> Numbers:
        """Returns the files of `node` in the order in which they are placed. The files are sorted
        by how often the node reads them, and divided into groups. There is one group for each class
        that is filled. With ORDERED_BY_OTHER_CLASSES, there is also a group for the staging buffer.
        Within a group, the files are sorted by their first use."""
        inputs = self._inputs
        reads = inputs.orders[node]
        counts = np.bincount(reads, minlength=inputs.files)
        order = np.argsort(-counts, kind="stable").astype(np.int32)
        if Behaviour.UNREAD_FILES_TAKE_ROOM not in inputs.on:
            order = order[counts[order] > 0]
        first = np.full(inputs.files, len(reads), np.int64)
        seen, at = np.unique(reads, return_index=True)
        first[seen] = at
        begin, is_published = 0, Behaviour.ORDERED_BY_OTHER_CLASSES in inputs.on
        classes = inputs.scenario.classes
        for storage in classes if is_published else classes[1:]:
            fill = np.cumsum(inputs.sizes[order[begin:]])
            end = begin + int(np.searchsorted(fill, storage.capacity_bytes, "right")) + is_published
            group = order[begin:end]
            order[begin:end] = group[np.argsort(first[group], kind="stable")]
            begin = end
        return order


def _begins(ends: Floats, threads: Floats) -> Floats:
    """Returns the time at which the fetch of each file began, (files,) [s]. The threads fetch the
    files in rotation. A thread begins a fetch when its previous fetch ends.

    ends : when the fetch of each file ended, (files,) [s]
    threads : when each thread begins its first fetch, (threads,) [s]
    """
    begins = np.empty_like(ends)
    begins[len(threads) :] = ends[: -len(threads)] if len(ends) > len(threads) else ends[:0]
    begins[: len(threads)] = threads[: len(ends)]
    return begins
