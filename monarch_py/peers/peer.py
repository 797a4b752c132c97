"""One peer as its askers see it: its idle links, and when it is asked again after a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from monarch_py.peers.ranges import PeerStatus
from monarch_py.peers.transport import Link, Transport, Unreachable

__all__ = ["Peer"]

# A peer that failed is left alone for this long, doubled with every further failure: the first is
# about what a restarted daemon needs, the last bounds how long a mended link is not used [s].
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
# More links than threads that ask at a time are of no use.
IDLE_LINKS = 16
# What says that the peer or the way to it is not well. NO_ROOM is our own fault.
FAILURES = (
    PeerStatus.REFUSED,
    PeerStatus.TIMEOUT,
    PeerStatus.CUT,
    PeerStatus.WRONG_BYTES,
)


class Peer:
    """Fetches from one peer over links of its own; any number of threads may ask at a time.

    No failure raises: each range has its status, and what is not OK is read from the source.
    """

    def __init__(
        self,
        transport: Transport,
        address: tuple[str, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self._transport, self._clock = transport, clock
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._failures, self._again_at = 0, 0.0
        self._last_failure = PeerStatus.OK
        # Why it is left alone: another thread's success does not end the pause.
        self._pause_status = PeerStatus.CUT
        self._is_closed = False

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
        if (paused := self._paused_by()) is not None:
            _fail(gets, paused)
            return
        try:
            link, is_new = self._take()
            is_good = _fetch(link, gets)
            # The peer closes what was idle for long, and may have been restarted: no failure yet.
            # One that is silent is one: its bound is used up.
            was_closed = (
                not (is_good or is_new or link.answered) and _reason(gets) == PeerStatus.CUT
            )
            if was_closed:
                link.close()
                self._forget_idle()
                link = self._transport.connect(self.address)
                is_good = _fetch(link, gets)
        except Unreachable as error:
            _fail(gets, error.status)
            self._mark(error.status)
            return
        if is_good:
            self._give_back(link)
        else:
            link.close()
            self._mark(_reason(gets))

    def close(self) -> None:
        """Closes the idle links. Those in use are closed by whoever uses them last."""
        with self._lock:
            self._is_closed = True
        self._forget_idle()

    def _paused_by(self) -> PeerStatus | None:
        with self._lock:
            return self._pause_status if self._clock() < self._again_at else None

    def _take(self) -> tuple[Link, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        return self._transport.connect(self.address), True

    def _give_back(self, link: Link) -> None:
        with self._lock:
            self._failures, self._last_failure = 0, PeerStatus.OK
            if len(self._idle) < IDLE_LINKS and not self._is_closed:
                self._idle.append(link)
                return
        link.close()

    def _forget_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def _mark(self, status: PeerStatus) -> None:
        if status not in FAILURES:
            return
        with self._lock:
            pause = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
            # Threads that failed together count once.
            if self._clock() >= self._again_at:
                self._failures = min(self._failures + 1, 10)
                self._again_at = self._clock() + pause
            self._last_failure = self._pause_status = status
        self._forget_idle()


def _fetch(link: Link, gets: npt.NDArray[Any]) -> bool:
    """As the link does; one that raises (what it was given is no array of ranges) is closed."""
    try:
        return link.fetch(gets)
    except BaseException:
        link.close()
        raise


def _fail(gets: npt.NDArray[Any], status: PeerStatus) -> None:
    gets["status"], gets["received"], gets["error"] = status, 0, 0


def _reason(gets: npt.NDArray[Any]) -> PeerStatus:
    """Why a link broke: what the answer before the first CUT says, or that."""
    for status in map(PeerStatus, gets["status"].tolist()):
        if status in (PeerStatus.TIMEOUT, PeerStatus.WRONG_BYTES, PeerStatus.NO_ROOM):
            return status
    return PeerStatus.CUT
