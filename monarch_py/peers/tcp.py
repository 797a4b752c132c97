"""Links over TCP: connected and introduced here, used by C (csrc/peers/client.c)."""

from __future__ import annotations

import socket
import time
from typing import Any

from monarch_py.native import ffi, lib
from monarch_py.peers.handshake import Keys, Party, Purpose, introduce
from monarch_py.peers.ranges import PeerStatus
from monarch_py.peers.transport import Unreachable

__all__ = ["TcpTransport", "connected"]

# Two nodes of one cluster answer within a millisecond; a lost first packet is sent again after a
# second, which is later than the source would have answered [s].
CONNECT_LIMIT_S = 0.8
# Longer than a server lets a request wait for bytes (server.WAIT_LIMIT_S), so that it says so
# itself and the link can go on; with it, a read that turns to the source has waited below 2 s [s].
FIRST_BYTE_LIMIT_S = 1.0
# For the next 256 KiB, or the frame that ends a block; also longer than the server lets it wait
# [s].
BETWEEN_LIMIT_S = 0.9


class TcpTransport:
    """Links to the other nodes' servers, at addresses in numbers: a name would be looked up without
    a bound.

    party : this node;  connect_s : for the connection and the proof;  first_byte_s : for the
    beginning of an answer;  between_s : for its next 256 KiB [all s]. ValueError for a bound of 0.
    """

    def __init__(
        self,
        party: Party,
        *,
        connect_s: float = CONNECT_LIMIT_S,
        first_byte_s: float = FIRST_BYTE_LIMIT_S,
        between_s: float = BETWEEN_LIMIT_S,
    ) -> None:
        # The kernel takes no time at all for no bound at all.
        if min(connect_s, first_byte_s, between_s) < 0.001:
            raise ValueError("every bound of a link is at least a millisecond")
        self._party, self._content_key = party, party.content_key
        self._connect_s, self._first_byte_s, self._between_s = connect_s, first_byte_s, between_s

    def connect(self, rank: int) -> Any:
        connection, keys = connected(self._party, rank, self._connect_s, Purpose.FILES)
        with connection:  # which closes nothing once a link has taken the connection over
            bounds = [round(s * 1000) for s in (self._first_byte_s, self._between_s)]
            made = ffi.new("struct monarch_peer_keys *", [keys.mine, keys.theirs])
            link = lib.monarch_peer_link_new(connection.fileno(), made, self._content_key, *bounds)
            if link == ffi.NULL:
                raise MemoryError("no memory for a link to a peer")
            connection.detach()
            return link


def connected(
    party: Party, rank: int, limit_s: float, purpose: Purpose
) -> tuple[socket.socket, Keys]:
    """A connection to the server of that rank, and its keys. Unreachable if there is none in
    time."""
    deadline = time.monotonic() + limit_s
    try:
        connection = socket.create_connection(party.addresses[rank], timeout=limit_s)
        try:
            keys = introduce(connection, party, rank, deadline, purpose)
        except BaseException:
            connection.close()
            raise
    except TimeoutError:
        raise Unreachable(PeerStatus.TIMEOUT) from None
    except OSError:
        raise Unreachable(PeerStatus.CUT) from None
    return connection, keys
