"""Connects links to other nodes when the daemon starts, before a program waits for a file."""

import threading
import time
from collections.abc import Sequence

from monarch_py.peers.peer import Peer

# How many links are connected to each peer, and to all peers together. In a first epoch of small
# files, nodes that have a few peers use about this many links to each of them. A handshake takes
# both nodes a millisecond of processor time, which the programs of that epoch would lack.
LINKS_A_PEER, MOST_LINKS = 4, 64
# The daemons of a cluster do not start at exactly the same time. A peer that does not answer is
# contacted again after RETRY_S [s], until LIMIT_S [s] after the daemon's start.
RETRY_S, LIMIT_S = 0.05, 10.0


class EarlyLinks:
    """Connects LINKS_A_PEER links to each of the first of `peers` in a thread of its own, and gives
    up without an error where that is not possible. Fetches connect the links that they lack."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self._end = threading.Event()
        missing = [*peers] * LINKS_A_PEER
        self._thread = threading.Thread(
            target=self._connect, args=(missing[:MOST_LINKS],), name="peers-early", daemon=True
        )
        # If no thread can be started, fetches connect all links.
        try:
            self._thread.start()
        except RuntimeError:
            self._end.set()

    def _connect(self, missing: Sequence[Peer]) -> None:
        limit = time.monotonic() + LIMIT_S
        while not self._end.is_set() and time.monotonic() < limit:
            missing = [peer for peer in missing if self._end.is_set() or not peer.connect_early()]
            if not missing:
                break
            self._end.wait(RETRY_S)

    def close(self) -> None:
        """Ends the thread. Waits for a handshake that has begun, which has a time limit."""
        if not self._end.is_set():
            self._end.set()
            self._thread.join()
