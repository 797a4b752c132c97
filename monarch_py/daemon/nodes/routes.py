"""Chooses where a fill comes from: a node that has the file whole, or the source if that is faster.

A file's first copy is for its owner alone to read. So there is a choice (NoPFS 4) only where a node
is known to have the file: it has given all of it before, or all nodes are beyond the file's first
use in a plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from monarch_py.config import Config
from monarch_py.daemon.copies.copies import Ids
from monarch_py.daemon.copies.engine import Engine
from monarch_py.daemon.nodes.throughput import SOURCES, Throughput
from monarch_py.native import lib
from monarch_py.peers import Peer, PeerStatus
from monarch_py.policies.nopfs.fetching import is_source_better, queued_seconds

__all__ = ["NOBODY", "PEER_THREADS", "RouteChooser"]

NOBODY = -1
# Threads that wait for peers: enough to ask all nodes of a small job at a time. A single peer gets
# two thirds of them; the others are left for the peer that is asked next (can_ask in
# csrc/engine/schedule.c).
PEER_THREADS = 24
# A place that is not chosen is tried again after this long: it may have become faster [s].
TRY_AGAIN_S = 2.0

Asked = npt.NDArray[np.int32]


class RouteChooser:
    """Runs in turns of the daemon's loop and never waits.

    chooses : whether it does; else holders are asked as long as they answer
    chosen : fills so far that were given to the source though a node has the file
    """

    def __init__(
        self,
        engine: Engine,
        throughput: Throughput,
        peers: Mapping[int, Peer],
        *,
        chooses: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._throughput, self._peers, self._clock = engine, throughput, peers, clock
        self.chooses = chooses
        self.chosen = 0
        self._who = np.zeros(0, dtype=np.int16)  # by entry, the node that has it whole, or NOBODY
        self._tried: dict[int, float] = {}  # when each place was last asked

    @classmethod
    def of(cls, config: Config, engine: Engine, peers: Mapping[int, Peer]) -> RouteChooser:
        places = len(peers) + 2  # the sources, and each node by its number, this one too
        throughput = Throughput(places, lambda: engine.flows(places), config.performance)
        return cls(engine, throughput, peers, chooses=config.peers.fetch == "fastest")

    # --- who has what ---------------------------------------------------------------------------

    def know(self, ids: Ids, nodes: npt.NDArray[np.integer]) -> None:
        """Notes the (n,) nodes that have the files of (n,) entries whole; NOBODY says nothing of a
        file."""
        known = nodes != NOBODY
        if not known.any():
            return
        ids = ids[known]
        missing = int(ids.max()) + 1 - len(self._who)
        if missing > 0:
            more = np.full(max(missing, len(self._who)), NOBODY, dtype=np.int16)
            self._who = np.concatenate([self._who, more])
        self._who[ids] = nodes[known]

    def _known(self, ids: Ids) -> npt.NDArray[np.int16]:
        who = np.full(len(ids), NOBODY, dtype=np.int16)
        inside = ids < len(self._who)
        who[inside] = self._who[ids[inside]]
        for node in np.unique(who[who != NOBODY]).tolist():
            # A daemon that was restarted may have lost the file; one that is late has not.
            if self._peers[node].last_failure == PeerStatus.CUT:
                self._who[self._who == node] = NOBODY
                who[who == node] = NOBODY
        return who

    # --- the choice -----------------------------------------------------------------------------

    def choose(
        self,
        ids: Ids,
        asked: Asked,
        sizes: npt.NDArray[np.uint64],
        due_s: npt.NDArray[np.float64],
    ) -> None:
        """Takes from `asked`, (n, MONARCH_ASKED) nodes, those files that are to come from the
        source, and marks for the engine the nodes that have their files whole. Where a node is
        known to have a file, the source is compared with the node that would be asked first.

        sizes : (n,) [bytes];  due_s : (n,) in how long the files are needed [s]
        """
        if not self.chooses:
            return
        has = (asked >= 0) & (asked == self._known(ids)[:, None])
        candidates = np.flatnonzero(has.any(axis=1)).tolist()
        if candidates:
            turn = _Turn(self._engine, self._throughput, len(self._peers) + 1, self._tried)
            now = self._clock()
            for i in candidates:
                first, second = int(asked[i, 0]), int(asked[i, 1])
                if second >= 0 and turn.is_second_faster(first, second, int(sizes[i]), now):
                    asked[i], has[i] = asked[i, ::-1].copy(), has[i, ::-1].copy()
                if turn.is_source_better(int(asked[i, 0]), int(sizes[i]), float(due_s[i]), now):
                    asked[i] = NOBODY
                    self.chosen += 1
        asked[has & (asked >= 0)] += np.int32(lib.MONARCH_HAS_IT)


class _Turn:
    """Choices that are made one after the other, each with the queues that the earlier ones
    leave."""

    def __init__(
        self, engine: Engine, throughput: Throughput, nodes: int, tried: dict[int, float]
    ) -> None:
        throughput.look()
        self._throughput, self._tried, self._width = throughput, tried, max(1, engine.width)
        self._block_bytes = engine.block_bytes
        self._queues = engine.queues(nodes).astype(np.int64)
        pending = engine.pending(in_use=True) + engine.pending(in_use=False)
        # The threads of one place when so many places share them (schedule.c).
        busy = max(1, int((self._queues > 0).sum()))
        self._threads = 2 * PEER_THREADS // (1 + 2 * busy)
        self._at_source = pending - int(self._queues.sum())
        self._each: dict[tuple[int, int], float | None] = {}

    def is_second_faster(self, first: int, second: int, size: int, now: float) -> bool:
        """Whether the second of two nodes that may have a file is faster. A first node that was not
        asked for long is asked again: it may be fast by now."""
        if self._is_due(first + 1, now):
            return False
        one = self._seconds(first + 1, size, int(self._queues[first]), self._threads)
        two = self._seconds(second + 1, size, int(self._queues[second]), self._threads)
        return one is not None and two is not None and two < one

    def is_source_better(self, node: int, size: int, due_s: float, now: float) -> bool:
        """Whether the source is better than a node for a file. Counts the file in the queue where
        it goes."""
        holder_s = self._seconds(node + 1, size, int(self._queues[node]), self._threads)
        source_s = self._seconds(SOURCES, size, self._at_source, self._width)
        better = holder_s is not None
        if better and source_s is None:
            # Nothing is known of the source: once in a while it is worth a try.
            better = self._is_due(SOURCES, now)
            source_s = 0.0
        if better:
            assert holder_s is not None and source_s is not None
            better = is_source_better(holder_s, source_s, due_s) and not self._is_due(node + 1, now)
        self._tried[SOURCES if better else node + 1] = now
        if better:
            self._at_source += 1
        else:
            self._queues[node] += 1
        return better

    def _is_due(self, place: int, now: float) -> bool:
        return now - self._tried.get(place, -np.inf) >= TRY_AGAIN_S

    def _seconds(self, place: int, size: int, queue: int, threads: int) -> float | None:
        readers = min(queue + 1, threads)
        if (place, readers) not in self._each:
            self._each[place, readers] = self._throughput.each(place, readers)
        each = self._each[place, readers]
        parts = -(-size // self._block_bytes)
        return None if each is None else queued_seconds(size, each, queue, threads, parts)
