"""What a way between nodes has to offer. TCP is the one there is; a fabric can have its own."""

from __future__ import annotations

from typing import Any, Protocol

from monarch_py.peers.ranges import PeerStatus

__all__ = ["Transport", "Unreachable"]


class Unreachable(Exception):  # noqa: N818 - a state of a peer, which no user is told of
    """No link: `status` is TIMEOUT, CUT (nobody listens, no route), REFUSED (another session), or
    OTHER_NODE: of the session's, and not the one that was meant, but the one of rank `who`."""

    def __init__(self, status: PeerStatus, who: int | None = None) -> None:
        super().__init__(status.name)
        self.status, self.who = status, who


class Transport(Protocol):
    def connect(self, rank: int) -> Any:
        """A link (struct monarch_peer_link *) to the node of that rank, which is the caller's to
        close; Unreachable when there is none within bounds."""
        ...
