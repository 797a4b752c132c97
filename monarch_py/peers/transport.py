"""The interface of a transport between nodes. TCP is the only one; a fabric could have its own."""

from __future__ import annotations

from typing import Any, Protocol

from monarch_py.peers.ranges import PeerStatus

__all__ = ["Transport", "Unreachable"]


class Unreachable(Exception):  # noqa: N818 - a state of a peer, which no user is told of
    """There is no link. `status` is TIMEOUT, CUT (nobody listens, no route), REFUSED (another
    session), or OTHER_NODE (the node of rank `who` answered instead of the one that was meant)."""

    def __init__(self, status: PeerStatus, who: int | None = None) -> None:
        super().__init__(status.name)
        self.status, self.who = status, who


class Transport(Protocol):
    def connect(self, rank: int) -> Any:
        """A link (struct monarch_peer_link *) to the node of this rank, which the caller closes.
        Unreachable if there is none within the time limits."""
        ...
