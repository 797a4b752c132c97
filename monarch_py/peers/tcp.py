"""Links over TCP: connected and introduced here, used by C (csrc/peers/client.c)."""

from __future__ import annotations

import socket
import time
from typing import Any

import numpy.typing as npt

from monarch_py.native import ffi, lib, pointer
from monarch_py.peers.handshake import Purpose, check_secret, introduce
from monarch_py.peers.ranges import GET, PeerStatus
from monarch_py.peers.transport import Unreachable

__all__ = ["TcpTransport", "connected"]

# Two nodes of one cluster answer within a millisecond; a lost first packet is sent again after a
# second, which is later than the source would have answered [s].
CONNECT_LIMIT_S = 0.8
# Longer than a server lets a request wait for bytes (server.WAIT_LIMIT_S), so that it says so
# itself and the link can go on; with it, a read that turns to the source has waited below 2 s [s].
FIRST_BYTE_LIMIT_S = 1.0
# For the next 256 KiB, or the frame that ends a block [s].
BETWEEN_LIMIT_S = 0.8


class TcpLink:
    """One connection; for one thread at a time."""

    def __init__(self, connection: socket.socket, first_byte_s: float, between_s: float) -> None:
        fd = connection.fileno()
        self._link: Any = lib.monarch_peer_link_new(
            fd, round(first_byte_s * 1000), round(between_s * 1000)
        )
        if self._link == ffi.NULL:
            raise MemoryError("no memory for a link to a peer")
        connection.detach()
        self._frames_before = 0

    def fetch(self, gets: npt.NDArray[Any]) -> bool:
        if gets.dtype != GET:
            raise TypeError("ranges have dtype GET (new_gets)")
        self._frames_before = lib.monarch_peer_link_frames(self._link)
        where = pointer(gets, "struct monarch_peer_get *")
        return bool(lib.monarch_peer_fetch(self._link, where, len(gets), ffi.NULL, ffi.NULL) == 0)

    @property
    def answered(self) -> bool:
        return bool(lib.monarch_peer_link_frames(self._link) > self._frames_before)

    def close(self) -> None:
        if self._link != ffi.NULL:
            lib.monarch_peer_link_close(self._link)
            self._link = ffi.NULL


class TcpTransport:
    """Links to servers that know the same secret, at addresses in numbers: a name would be looked
    up without a bound.

    connect_s : for the connection and the proof;  first_byte_s : for the beginning of an answer;
    between_s : for its next 256 KiB [all s]. ValueError for a short secret or a bound of 0.
    """

    def __init__(
        self,
        secret: bytes,
        *,
        connect_s: float = CONNECT_LIMIT_S,
        first_byte_s: float = FIRST_BYTE_LIMIT_S,
        between_s: float = BETWEEN_LIMIT_S,
    ) -> None:
        # The kernel takes no time at all for no bound at all.
        if min(connect_s, first_byte_s, between_s) < 0.001:
            raise ValueError("every bound of a link is at least a millisecond")
        self._secret = check_secret(secret)
        self._connect_s, self._first_byte_s, self._between_s = connect_s, first_byte_s, between_s

    def connect(self, address: tuple[str, int]) -> TcpLink:
        # Which closes nothing once a link has taken the connection over.
        with connected(address, self._secret, self._connect_s, Purpose.FILES) as connection:
            return TcpLink(connection, self._first_byte_s, self._between_s)


def connected(
    address: tuple[str, int], secret: bytes, limit_s: float, purpose: Purpose
) -> socket.socket:
    """A connection to a server that knows the same secret. Unreachable if there is none in time."""
    deadline = time.monotonic() + limit_s
    try:
        connection = socket.create_connection(address, timeout=limit_s)
        try:
            introduce(connection, secret, deadline, purpose)
        except BaseException:
            connection.close()
            raise
    except TimeoutError:
        raise Unreachable(PeerStatus.TIMEOUT) from None
    except OSError:
        raise Unreachable(PeerStatus.CUT) from None
    return connection
