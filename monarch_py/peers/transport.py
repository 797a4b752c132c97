"""What a way between nodes has to offer. TCP is the one there is; a fabric can have its own."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

from monarch_py.peers.ranges import PeerStatus

__all__ = ["Link", "Transport", "Unreachable"]


class Unreachable(Exception):  # noqa: N818 - a state of a peer, which no user is told of
    """No link: `status` is TIMEOUT, CUT (nobody listens, no route) or REFUSED (another session)."""

    def __init__(self, status: PeerStatus) -> None:
        super().__init__(status.name)
        self.status = status


class Link(Protocol):
    """One conversation with a peer, for one thread at a time."""

    def fetch(self, gets: npt.NDArray[Any]) -> bool:
        """Asks for all ranges (n,) of dtype GET at once and sets the status of each, within the
        link's bounds of time. False: the link cannot be used any more."""
        ...

    @property
    def answered(self) -> bool:
        """Whether anything of an answer has come since the last fetch began."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    def connect(self, address: tuple[str, int]) -> Link:
        """A link to the peer that listens there; Unreachable when there is none within bounds."""
        ...
