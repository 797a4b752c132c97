"""Connects and authenticates TCP links, which C then uses (csrc/peers/client.c)."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from monarch_py.native import ffi, lib, not_null
from monarch_py.peers.handshake import Keys, Party, Purpose, introduce
from monarch_py.peers.status import PeerStatus, Unreachable

# Time limit [s] for the connection and the handshake. Nodes of one cluster answer within a
# millisecond. If the first packet is lost, TCP resends it only after a second. A read from the
# source takes less, so the limit is shorter than that second.
CONNECT_LIMIT_S = 0.8
# Time limit [s] for the first bytes of an answer. It is longer than server.WAIT_LIMIT_S, so that
# the server can report in time that the bytes are late. The link then stays usable. If a peer sends
# nothing, the source is read after at most this limit plus CONNECT_LIMIT_S, which is less than 2 s.
FIRST_BYTE_LIMIT_S = 1.0
# The time limit [s] for each further 256 KiB of the answer, and for the checksum after each block
# (SUM in csrc/peers/wire.h). It is longer than server.WAIT_LIMIT_S, so that the server can report
# in time that these bytes are late.
BETWEEN_LIMIT_S = 0.9


def connect_link(
    party: Party,
    rank: int,
    *,
    connect_s: float = CONNECT_LIMIT_S,
    first_byte_s: float = FIRST_BYTE_LIMIT_S,
    between_s: float = BETWEEN_LIMIT_S,
) -> Any:
    """Returns a link to the server of the node `rank`. Raises Unreachable as `connected` does, and
    ValueError for a limit below a millisecond.

    party : this node's data for handshakes. Its addresses are numeric, because a name lookup has no
        time limit
    connect_s, first_byte_s, between_s : time limits for the connection and the handshake, for the
        first bytes of an answer, and for each further 256 KiB [s]
    """
    # The limits are rounded to milliseconds. A limit must never become 0, because to the kernel a
    # timeout of 0 means that there is no timeout.
    if min(connect_s, first_byte_s, between_s) < 0.001:
        raise ValueError("each time limit of a link must be at least 1 ms")
    bounds = [round(s * 1000) for s in (first_byte_s, between_s)]
    with connected(party, rank, connect_s, Purpose.FILES) as (connection, keys):
        both = ffi.new("struct monarch_peer_keys *", [keys.mine, keys.theirs])
        link = lib.monarch_peer_link_new(connection.fileno(), both, party.content_key, *bounds)
        not_null(link, "no memory for a link to a peer")
        connection.detach()
        return link


@contextmanager
def connected(
    party: Party, rank: int, limit_s: float, purpose: Purpose
) -> Iterator[tuple[socket.socket, Keys]]:
    """Yields an authenticated connection to the server of the node `rank`, with its keys. Raises
    Unreachable if there is no connection within `limit_s` [s], or if the connection breaks in the
    `with` block."""
    deadline = time.monotonic() + limit_s
    try:
        with socket.create_connection(party.addresses[rank], timeout=limit_s) as connection:
            yield connection, introduce(connection, party, rank, deadline, purpose)
    except TimeoutError:
        raise Unreachable(PeerStatus.TIMEOUT) from None
    except OSError:
        raise Unreachable(PeerStatus.CUT) from None
