"""Tracks which nodes have complete copies of which files, and chooses where each fill reads from.

A fill can read from another node or from the source, whichever is faster (section 4 of the NoPFS
paper). But a file's first copy must be made by the file's owner, which reads the source. So a fill
can choose another node only if that node is known to have the complete file. This is known in two
cases. The node has sent the complete file before. Or all nodes have reached a point in the plan
after the file's first use.
"""

import math
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import Floats, Ids, Int32s, Uints
from monarch_py.config.schema import Config
from monarch_py.daemon.copies.engine import Engine
from monarch_py.daemon.nodes.throughput import Throughput
from monarch_py.native import lib
from monarch_py.peers.peer import Peer
from monarch_py.peers.status import PeerStatus
from monarch_py.policies.node import NOBODY
from monarch_py.policies.placement import LARGEST
from monarch_py.policies.routing import Routing

# The number of threads that fetch from peers: enough to ask all nodes of a small job at the same
# time. At most two thirds of them ask a single peer. The others are reserved, so that another peer
# can be asked at once (can_ask in csrc/engine/schedule.c).
PEER_THREADS = 24

# A result of `RouteChooser.sure_bytes` is reused for this long [s].
SURE_S = 0.2

Asked = Int32s


class RouteChooser:
    """Chooses a node or the source for each fill. Runs in the daemon's loop and never blocks.

    chooses : True: a fill reads from a node or from the source, whichever is faster. False: a fill
        reads from the nodes that have the file, as long as these nodes answer
    chosen : for how many fills so far the source was chosen although a node has the file
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
        # For each catalog entry: a node that has a complete copy of the file, or NOBODY.
        self._who = np.zeros(0, dtype=np.int16)
        # When each place was last chosen [s]. A place is either one node or all sources together.
        self._tried: dict[int, float] = {}
        self._sure_bytes, self._sure_until = 0, -math.inf

    @classmethod
    def of(cls, config: Config, engine: Engine, peers: Mapping[int, Peer]) -> "RouteChooser":
        # The places are all sources together, this node, and each of the other nodes (`peers`).
        places = len(peers) + 2
        throughput = Throughput(places, lambda: engine.flows(places), config.performance)
        return cls(engine, throughput, peers, chooses=config.peers.fetch == "fastest")

    # --- which nodes have which files -----------------------------------------------------------

    def know(self, ids: Ids, nodes: npt.NDArray[np.integer]) -> None:
        """Records that node nodes[i] has a complete copy of file ids[i]. If nodes[i] is NOBODY,
        records nothing for the file."""
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
            # If the connection to a node broke, its daemon may have restarted without its copies.
            # If a daemon only answered late, it still has them.
            if self._peers[node].last_failure == PeerStatus.CUT:
                self._who[self._who == node] = NOBODY
                who[who == node] = NOBODY
        return who

    # --- the choice between a node and the source -----------------------------------------------

    def choose(self, ids: Ids, asked: Asked, sizes: Uints, due_s: Floats) -> None:
        """Chooses between the source and a node, for files that a node is known to have completely.
        If `asked` contains two nodes for a file, and the second is known to be faster, they change
        places (see `Routing`). Then the first node is compared with the source. Writes the result
        into `asked`.

        asked : (n, MONARCH_ASKED) the nodes that the fill of each file asks. If the source is
            chosen, the fill asks no node. MONARCH_HAS_IT is added to the number of a node that has
            a complete copy
        sizes : (n,) [bytes];  due_s : (n,) the time until each file is needed [s]
        """
        if not self.chooses:
            return
        has = (asked >= 0) & (asked == self._known(ids)[:, None])
        if has.any():
            self.chosen += self._routing().choose(asked, has, sizes, due_s)
        asked[has & (asked >= 0)] += np.int32(lib.MONARCH_HAS_IT)

    def sure_bytes(self) -> int:
        """Returns a file size [bytes]. For a file of at most this size that a node is known to
        have, `choose` always chooses the node. This holds even if the file is needed at once."""
        now = self._clock()
        if self.chooses and now >= self._sure_until:
            self._sure_bytes, self._sure_until = self._routing().sure_bytes(), now + SURE_S
        return self._sure_bytes if self.chooses else int(LARGEST)

    def _routing(self) -> Routing:
        engine, throughput = self._engine, self._throughput
        throughput.look()
        queues = engine.queues(len(self._peers) + 1).astype(np.int64)
        pending = engine.pending(in_use=True) + engine.pending(in_use=False)
        # The number of peers that are being asked. These peers share the engine's threads for peers
        # (schedule.c).
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
