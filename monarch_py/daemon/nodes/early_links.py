"""Connects links to other nodes when the daemon starts, before a program waits for a file."""

import threading
import time
from collections.abc import Sequence

from monarch_py.peers.peer import Peer

# The largest numbers of early links to each peer, and to all peers together. The handshake of a
# link costs both nodes a millisecond of processor time. With early links, programs do not lose this
# time. In the first epoch of a dataset of small files, a node with few peers uses about
# LINKS_A_PEER links to each of them.
LINKS_A_PEER, MOST_LINKS = 4, 64
# The daemons of a cluster do not start at the same time. If a peer does not answer, it is tried
# again every RETRY_S [s], until LIMIT_S [s] after this daemon's start.
RETRY_S, LIMIT_S = 0.05, 10.0


class EarlyLinks:
    """Connects links to `peers` in a separate thread. Each peer gets its first link before any peer
    gets a second one. There are at most LINKS_A_PEER links per peer, and MOST_LINKS in all. A link
    that cannot be connected is no error: a fetch that finds no link connects one itself."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self._end = threading.Event()
        missing = [*peers] * LINKS_A_PEER
        self._thread = threading.Thread(
            target=self._connect, args=(missing[:MOST_LINKS],), name="peers-early", daemon=True
        )
        # If the thread cannot be started, there are no early links, and fetches connect the links.
        try:
            self._thread.start()
        except RuntimeError:
            self._end.set()

    def _connect(self, missing: Sequence[Peer]) -> None:
        limit = time.monotonic() + LIMIT_S

        def may_try() -> bool:
            return not self._end.is_set() and time.monotonic() < limit

        while missing and may_try():
            missing = [peer for peer in missing if not (may_try() and peer.connect_early())]
            if missing:
                self._end.wait(RETRY_S)

    def close(self) -> None:
        """Ends the thread. Waits for a handshake that has begun. Handshakes have a time limit."""
        if not self._end.is_set():
            self._end.set()
            self._thread.join()
