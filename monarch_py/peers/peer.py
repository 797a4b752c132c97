"""The client's side of the connections to one peer: connects links, and decides when to retry after
a failure.

A link is an authenticated TCP connection to a peer's server. An exchange is one request with its
answer. C (csrc/peers/peer.c) keeps the idle links. It calls this module to obtain a new link, and
to report the outcome of an exchange.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from monarch_py.native import ffi, lib, not_null
from monarch_py.peers.status import PeerStatus, Unreachable

log = logging.getLogger("monarch.peers")

# After a failure, the peer is not contacted for this time [s], in which a daemon can restart. With
# each further failure in a row, the pause doubles.
FIRST_PAUSE_S = 0.5
# The longest pause after failures [s]. A peer that works again stays unused for at most this long.
LONGEST_PAUSE_S = 30.0
# After the pause that follows a failure, one thread tries to connect to the peer. All other threads
# that need a link wait for the outcome, but at most this long [s]. A handshake with a live peer
# takes far less. If the peer hangs, these threads give up long before the connecting thread.
HEARSAY_S = 0.1
# Failures that are usually not caused by the peer itself, but by another process or machine. They
# are logged as warnings.
SUSPICIOUS = (PeerStatus.FORGED, PeerStatus.OTHER_NODE, PeerStatus.REFUSED)


class Peer:
    """A node from which the engine fetches files. This object connects the links to the node. The
    constructor raises MemoryError if there is no memory for the peer.

    connect : a function that takes a node's rank, and returns a new link to that node, a struct
        monarch_peer_link *. It raises Unreachable if no link can be made within the time limits.
        The Peer closes the link
    last_failure : the last failure; OK if an exchange has succeeded since then
    """

    def __init__(
        self, connect: Callable[[int], Any], rank: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rank = rank
        self._connect_to, self._clock = connect, clock
        self._lock = threading.Lock()
        self._was_tried = threading.Condition(self._lock)
        # `_is_tried` : whether a thread tries to connect after a pause. Other threads wait for the
        #     result.
        # `_has_greeted` : whether a handshake has succeeded since the last failure.
        self._is_tried = self._has_greeted = False
        self._failures, self._again_at = 0, 0.0
        self._broken = 0  # number of failures since the start
        self._failed_ns = 0  # the time of the last report of a failure, on CLOCK_MONOTONIC
        self.last_failure = PeerStatus.OK
        # The failure that has caused the present pause. `_connect` raises Unreachable with this
        # status during the pause. If an exchange of another thread succeeds meanwhile,
        # `last_failure` becomes OK, but the pause and this status remain.
        self._pause_status = PeerStatus.CUT
        self._handle: Any = ffi.new_handle(self)
        # The C struct of the peer, which the engine uses.
        calls = lib.monarch_connect_peer, lib.monarch_report_peer
        self.c = not_null(lib.monarch_peer_new(*calls, self._handle), "no memory for a peer")

    @property
    def is_usable(self) -> bool:
        """Whether the peer may be contacted. During the pause after a failure, the peer is not
        contacted, and every fetch from it fails at once."""
        return self._clock() >= self._again_at

    def close(self) -> None:
        """Closes the links. Call it when no thread fetches from the peer any more. A second call
        has no effect."""
        if self.c != ffi.NULL:
            lib.monarch_peer_free(self.c)
            self.c = self._handle = ffi.NULL

    def connect_early(self) -> bool:
        """Connects one more link for later fetches. Returns whether the link is connected. A
        failure does not count as a failure of the peer, because the peer's daemon may still be
        starting."""
        try:
            link = self._connect_to(self.rank)
        except Unreachable:
            return False
        lib.monarch_peer_add_link(self.c, link)
        return True

    def _connect(self) -> Any:
        """Returns a new link. Raises Unreachable if no link can be connected, or during the pause
        after a failure."""
        with self._lock:
            self._was_tried.wait_for(lambda: not self._is_tried, HEARSAY_S)
            if self._is_tried or self._clock() < self._again_at:
                raise Unreachable(self._pause_status)
            self._is_tried = tries = self._failures > 0 and not self._has_greeted
            broken = self._broken
        link = None
        began_ns = time.monotonic_ns()
        try:
            link = self._connect_to(self.rank)
        except Unreachable as error:
            self._mark(error.status, began_ns)
            raise
        finally:
            if tries:
                with self._lock:
                    self._is_tried = False
                    self._has_greeted = link is not None and self._broken == broken
                    self._was_tried.notify_all()
        return link

    def _mark(self, status: PeerStatus, began_ns: int) -> None:
        """Records the outcome of an exchange with the peer.

        began_ns : when the exchange began, on CLOCK_MONOTONIC. If an exchange began before the last
            recorded failure and failed later, it belongs to the same incident, and is not counted
        """
        with self._lock:
            if status == PeerStatus.OK:
                self._failures, self.last_failure = 0, status
                return
            if began_ns < self._failed_ns:
                return
            self._failed_ns = time.monotonic_ns()
            self._has_greeted = False
            self._broken += 1
            pause = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
            if self._clock() >= self._again_at:
                level = logging.WARNING if status in SUSPICIOUS else logging.INFO
                log.log(level, "peer %d: %s; next attempt in %.1f s", self.rank, status.name, pause)
                self._failures = min(self._failures + 1, 10)
                self._again_at = self._clock() + pause
            self.last_failure = self._pause_status = status


# C calls the functions below, so they must not raise errors. If `_connect` raises an unexpected
# error, they report CUT, as for a peer that cannot be reached.


@ffi.def_extern(name="monarch_connect_peer")  # type: ignore[untyped-decorator]
def _connect_peer(handle: Any, status: Any) -> Any:
    try:
        return ffi.from_handle(handle)._connect()
    except Unreachable as error:
        status[0] = error.status
    except Exception:
        log.exception("a peer could not be reached")
        status[0] = PeerStatus.CUT
    return ffi.NULL


@ffi.def_extern(name="monarch_report_peer")  # type: ignore[untyped-decorator]
def _report_peer(handle: Any, status: int, began_ns: int) -> None:
    ffi.from_handle(handle)._mark(PeerStatus(status), began_ns)
