"""The outcomes of requests to a peer."""

from enum import IntEnum

from monarch_py.native import lib


class PeerStatus(IntEnum):
    """The outcome of a request (csrc/peers/wire.h defines each value). In a reply, the value
    MOVED + n means that the node of rank n keeps the file."""

    OK = lib.MONARCH_PEER_OK
    REFUSED = lib.MONARCH_PEER_REFUSED
    UNKNOWN_FILE = lib.MONARCH_PEER_UNKNOWN_FILE
    CHANGED = lib.MONARCH_PEER_CHANGED
    COMING = lib.MONARCH_PEER_COMING
    TIMEOUT = lib.MONARCH_PEER_TIMEOUT
    CUT = lib.MONARCH_PEER_CUT
    WRONG_BYTES = lib.MONARCH_PEER_WRONG_BYTES
    NO_ROOM = lib.MONARCH_PEER_NO_ROOM
    FORGED = lib.MONARCH_PEER_FORGED
    OTHER_NODE = lib.MONARCH_PEER_OTHER_NODE
    MOVED = lib.MONARCH_PEER_MOVED


class Unreachable(Exception):  # noqa: N818 - a state of a peer, never shown to a user
    """A peer cannot be reached.

    status : TIMEOUT, CUT (no process listens, or there is no route), REFUSED (another session),
        FORGED (an altered answer), or OTHER_NODE (the node of rank `who` answered instead of the
        intended one)
    """

    def __init__(self, status: PeerStatus, who: int | None = None) -> None:
        super().__init__(status.name)
        self.status, self.who = status, who
