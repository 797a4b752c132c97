"""One peer as its askers see it: where it is, and when it is asked again after a failure.

Its idle links are kept in C (csrc/peers/peer.c), which comes here for a new link and to tell of a
failure.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from monarch_py.native import ffi, lib, pointer
from monarch_py.peers.ranges import GET, PeerStatus
from monarch_py.peers.transport import Transport, Unreachable

__all__ = ["Peer"]

log = logging.getLogger("monarch.peers")

# A peer that failed is left alone for this long, doubled with every further failure: the first is
# about what a restarted daemon needs, the last bounds how long a mended link is not used [s].
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
# After a pause one thread tries it, and the others wait for so long to hear of it: many times what
# a peer that lives takes to greet, and a part of what one that hangs costs who tries it [s].
HEARSAY_S = 0.1
# Failures that somebody else than the peer has caused, as a rule.
SUSPICIOUS = (PeerStatus.FORGED, PeerStatus.OTHER_NODE, PeerStatus.REFUSED)


class Peer:
    """Fetches from the node of that rank over links of its own; any number of threads may ask at a
    time.

    No failure raises: each range has its status, and what is not OK is read from the source.
    MemoryError when there is no memory for it.
    """

    def __init__(
        self,
        transport: Transport,
        rank: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rank = rank
        self._transport, self._clock = transport, clock
        self._lock = threading.Lock()
        self._was_tried = threading.Condition(self._lock)
        self._is_tried = self._has_greeted = False  # by a thread, for all; since it failed last
        self._failures, self._again_at = 0, 0.0
        self._broken = 0  # so many failures ever
        self._failed_ns = 0  # when the last one was told of, on CLOCK_MONOTONIC as C has it
        self._last_failure = PeerStatus.OK
        # Why it is left alone: another thread's success does not end the pause.
        self._pause_status = PeerStatus.CUT
        self._handle: Any = ffi.new_handle(self)
        # The handle for C; the engine has it too.
        self.c: Any = lib.monarch_peer_new(
            lib.monarch_connect_peer, lib.monarch_report_peer, self._handle
        )
        if self.c == ffi.NULL:
            raise MemoryError("no memory for a peer")

    @property
    def is_usable(self) -> bool:
        """False while it is left alone after a failure; a fetch then ends at once."""
        with self._lock:
            return self._clock() >= self._again_at

    @property
    def last_failure(self) -> PeerStatus:
        """Why it was left alone last; OK if it works."""
        with self._lock:
            return self._last_failure

    def fetch(self, gets: npt.NDArray[Any]) -> None:
        """Sets the status of every range (n,) of dtype GET, within the transport's bounds."""
        if gets.dtype != GET:
            raise TypeError("ranges have dtype GET (new_gets)")
        where = pointer(gets, "struct monarch_peer_get *")
        lib.monarch_peer_ask(self.c, where, len(gets), ffi.NULL, ffi.NULL, ffi.NULL)

    def close(self) -> None:
        """Closes its links, once nobody asks it any more; a second call does nothing."""
        if self.c != ffi.NULL:
            lib.monarch_peer_free(self.c)
            self.c = self._handle = ffi.NULL

    def _connect(self) -> Any:
        """A new link; Unreachable when there is none, or the peer is left alone."""
        with self._lock:
            self._was_tried.wait_for(lambda: not self._is_tried, HEARSAY_S)
            if self._is_tried or self._clock() < self._again_at:
                raise Unreachable(self._pause_status)
            self._is_tried = tries = self._failures > 0 and not self._has_greeted
            broken = self._broken
        link = None
        began_ns = time.monotonic_ns()
        try:
            link = self._transport.connect(self.rank)
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
        """began_ns : when that which failed was begun, on CLOCK_MONOTONIC. What was under way when
        another thread failed is one incident with that, however much later it ends."""
        with self._lock:
            if status == PeerStatus.OK:
                self._failures, self._last_failure = 0, status
                return
            if began_ns < self._failed_ns:
                return
            self._failed_ns = time.monotonic_ns()
            self._has_greeted = False
            self._broken += 1
            pause = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
            if self._clock() >= self._again_at:
                level = logging.WARNING if status in SUSPICIOUS else logging.INFO
                log.log(level, "peer %d: %s; asked again in %.1f s", self.rank, status.name, pause)
                self._failures = min(self._failures + 1, 10)
                self._again_at = self._clock() + pause
            self._last_failure = self._pause_status = status


# Functions that C calls must not raise; an error that is not foreseen counts as a peer that cannot
# be reached.


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
