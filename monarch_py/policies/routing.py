"""Chooses whether a file is read from the source, or from a node that is known to have it.

The choice compares how long the two reads would take, as section 4 of the NoPFS paper proposes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from monarch_py.policies.placement import LARGEST
from monarch_py.policies.view import PFS, Bools, Floats, Int32s, Ints

# A place is where a file can be read from. Number SOURCES is all sources together, and number n + 1
# is node n.
SOURCES = 0
# A place that has not been chosen for this long [s] is tried again, because the place may have
# become faster.
TRY_AGAIN_S = 2.0
# NOTICED_S : waits shorter than this do not matter [s].
# PART : a file of which a node has a copy is read from the source if this takes less than PART
# times as long as fetching the copy. PART is below 1 to spare the source, which all nodes share.
NOTICED_S, PART = 0.1, 0.5


@dataclass
class Routing:
    """The places that have files (other nodes and the source), as one node sees them at one moment.
    When a place is chosen for a file, the file is added to the place's queue, so that later choices
    consider the longer queue.

    rate : a function that returns the rate [bytes/s] of one reader, or None if the rate is unknown.
        Arguments: the place, and how many readers read there at the same time
    queues : (nodes,) how many files wait to be fetched from each node
    at_source : how many files wait to be read from the sources
    node_threads : how many threads ask a node at a time
    source_threads : how many threads read the sources
    block_bytes : how much of a file a thread moves at a time
    tried : place -> when it was last chosen [s]; each choice updates this;  now_s : the time now
        [s]
    """

    rate: Callable[[int, int], float | None]
    queues: npt.NDArray[np.int64]
    at_source: int
    node_threads: int
    source_threads: int
    block_bytes: int
    tried: dict[int, float]
    now_s: float

    def __post_init__(self) -> None:
        self.rate = cache(self.rate)

    def choose(self, asked: Int32s, has: Bools, sizes: Ints, due_s: Floats) -> int:
        """Chooses, for each file that a node is known to have, whether to read it from a node or
        from the source. If two nodes have a file, the faster node is put first. Returns the number
        of files for which the source was chosen.

        asked : (n, ASKED) as `NodePolicy.route` returns it. Changed in place: in each row, the
            faster node comes first, or all elements are PFS if the source is chosen
        has : (n, ASKED) which of these nodes are known to have the file; reordered like `asked`
        sizes : (n,) [bytes];  due_s : (n,) the time until each file is needed [s]
        """
        chosen = 0
        for at in np.flatnonzero(has.any(axis=1)).tolist():
            size, (first, second) = int(sizes[at]), asked[at].tolist()
            if second >= 0 and self._is_second_faster(first, second, size):
                asked[at], has[at] = asked[at, ::-1].copy(), has[at, ::-1].copy()
            if self._is_source_better(int(asked[at, 0]), size, float(due_s[at])):
                asked[at] = PFS
                chosen += 1
        return chosen

    def sure_bytes(self) -> int:
        """Returns the size [bytes] of the largest file that every node delivers within NOTICED_S.
        If a node has a copy, no file up to this size is read from the source."""
        least = float(LARGEST)
        for node, queue in enumerate(self.queues.tolist()):
            rate = self.rate(node + 1, min(queue + 1, self.node_threads))
            if rate is not None:
                least = min(least, NOTICED_S * rate / (1 + queue / self.node_threads))
        return int(least)

    def _is_second_faster(self, first: int, second: int, size: int) -> bool:
        """Returns whether the second of two nodes is faster. Returns False if the first node was
        last asked at least TRY_AGAIN_S ago: its rate is then measured again, because it may have
        changed."""
        if self._is_due(first + 1):
            return False
        one, two = self._node_seconds(first, size), self._node_seconds(second, size)
        return one is not None and two is not None and two < one

    def _is_source_better(self, node: int, size: int, due_s: float) -> bool:
        """Returns whether to read a file from the source although a node has the file. All nodes
        share the source, so each node reads from it as little as possible. Returns False in three
        cases. First, the node delivers the file in time. Second, the source is at most 1 / PART
        times as fast as the node, or the source's speed is unknown and need not be tried yet.
        Third, the node's speed is unknown or must be measured again. Adds the file to the queue of
        the chosen place."""
        node_s = self._node_seconds(node, size)
        source_s = self._seconds(SOURCES, size, self.at_source, self.source_threads)
        if source_s is None and self._is_due(SOURCES):
            source_s = 0.0  # If the source's speed is unknown, the source is tried now and then.
        better = (
            node_s is not None
            and source_s is not None
            and node_s > max(due_s, NOTICED_S, source_s / PART)
            and not self._is_due(node + 1)
        )
        self.tried[SOURCES if better else node + 1] = self.now_s
        if better:
            self.at_source += 1
        else:
            self.queues[node] += 1
        return better

    def _is_due(self, place: int) -> bool:
        return self.now_s - self.tried.get(place, -np.inf) >= TRY_AGAIN_S

    def _node_seconds(self, node: int, size: int) -> float | None:
        return self._seconds(node + 1, size, int(self.queues[node]), self.node_threads)

    def _seconds(self, place: int, size: int, queue: int, threads: int) -> float | None:
        """Returns the time [s] until a file arrives from a place, or None if the place's rate is
        unknown. This is the time to move the files that wait in the place's queue, and then this
        file. Assumptions: all of these files are equally large, the threads divide the waiting
        files evenly, and several threads can move blocks of one file at the same time."""
        rate = self.rate(place, min(queue + 1, threads))
        if rate is None:
            return None
        blocks = -(-size // self.block_bytes)
        return size / (rate * max(1, min(threads, blocks))) * (1 + queue / threads)
