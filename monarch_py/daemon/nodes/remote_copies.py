"""Knows which node has which file whole, and has the policy choose between node and source.

A file's first copy is for its owner alone to read. So there is a choice (NoPFS 4) only where a node
is known to have the file: it has given all of it before, or all nodes are beyond the file's first
use in a plan.
"""

import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from monarch_py.config.schema import Config
from monarch_py.daemon.copies.engine import Engine
from monarch_py.daemon.nodes.throughput import Throughput
from monarch_py.native import Floats, Ids, Int32s, Uints, lib
from monarch_py.peers.peer import Peer
from monarch_py.peers.status import PeerStatus
from monarch_py.policies.node import NOBODY
from monarch_py.policies.routing import Routing

# Threads that wait for peers: enough to ask all nodes of a small job at a time. A single peer gets
# two thirds of them; the others are left for the peer that is asked next (can_ask in
# csrc/engine/schedule.c).
PEER_THREADS = 24

Asked = Int32s


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
    def of(cls, config: Config, engine: Engine, peers: Mapping[int, Peer]) -> "RouteChooser":
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

    def choose(self, ids: Ids, asked: Asked, sizes: Uints, due_s: Floats) -> None:
        """Takes from `asked`, (n, MONARCH_ASKED) nodes, those files that are to come from the
        source, and marks for the engine the nodes that have their files whole. Where a node is
        known to have a file, the source is compared with the node that would be asked first.

        sizes : (n,) [bytes];  due_s : (n,) in how long the files are needed [s]
        """
        if not self.chooses:
            return
        has = (asked >= 0) & (asked == self._known(ids)[:, None])
        if has.any():
            self.chosen += self._routing().choose(asked, has, sizes, due_s)
        asked[has & (asked >= 0)] += np.int32(lib.MONARCH_HAS_IT)

    def _routing(self) -> Routing:
        engine, throughput = self._engine, self._throughput
        throughput.look()
        queues = engine.queues(len(self._peers) + 1).astype(np.int64)
        pending = engine.pending(in_use=True) + engine.pending(in_use=False)
        # The threads of one place when so many places share them (schedule.c).
        busy = max(1, int((queues > 0).sum()))
        return Routing(
            throughput.each,
            queues,
            at_source=pending - int(queues.sum()),
            node_threads=2 * PEER_THREADS // (1 + 2 * busy),
            source_threads=max(1, engine.width),
            block_bytes=engine.block_bytes,
            tried=self._tried,
            now_s=self._clock(),
        )
