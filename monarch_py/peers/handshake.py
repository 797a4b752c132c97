"""How two daemons of one session know each other: each proves the secret, and nobody sends it.

    server -> client   GREETING, 32 random bytes s
    client -> server   GREETING, 32 random bytes c, one byte p: what the connection is for,
                       HMAC-SHA256(secret, "client" GREETING s c p)
    server -> client   HMAC-SHA256(secret, "server" GREETING s c p)

Whoever connects proves first, so that a stranger learns nothing. The labels keep one side's proof
from being the other's; both random numbers go into both, so that an old one is worth nothing, and
so does the purpose, so that nobody can change it. What follows is neither encrypted nor signed: the
network between the nodes is taken to be the cluster's own, as it is for MPI and for the file
system.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from enum import Enum

from monarch_py.peers.ranges import PeerStatus
from monarch_py.peers.transport import Unreachable

__all__ = ["Greeter", "Purpose", "introduce", "new_secret"]

# Name and version of what is spoken; another version is refused before anything else.
GREETING = b"MONARCH\x02"
NONCE_BYTES = 32
PROOF_BYTES = 32
HELLO_BYTES = len(GREETING) + NONCE_BYTES
PURPOSE_BYTES = 1
ANSWER_BYTES = HELLO_BYTES + PURPOSE_BYTES + PROOF_BYTES
# As many bits as AES-128 has: no shorter secret is one [bytes].
LEAST_SECRET_BYTES = 16


class Purpose(Enum):
    """What a connection is for, which decides who answers it: C (csrc/peers), or the daemon."""

    FILES = b"f"
    STATUS = b"s"


def new_secret() -> bytes:
    """A session's secret (32 bytes), from the kernel's random numbers."""
    return secrets.token_bytes(32)


def check_secret(secret: bytes) -> bytes:
    """ValueError for one that could be guessed."""
    if len(secret) < LEAST_SECRET_BYTES:
        raise ValueError(f"a session's secret has at least {LEAST_SECRET_BYTES} bytes")
    return secret


def _proof(secret: bytes, who: bytes, servers: bytes, clients: bytes) -> bytes:
    """servers, clients : all that each side has said, but for its GREETING and proofs."""
    return hmac.digest(secret, who + GREETING + servers + clients, "sha256")


class Greeter:
    """The server's side of one connection, which never waits: bytes in, bytes out."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._got = b""
        self.hello = GREETING + self._nonce

    @property
    def missing(self) -> int:
        """Bytes of the client's answer that have not come yet."""
        return ANSWER_BYTES - len(self._got)

    def feed(self, data: bytes) -> bool:
        """Takes at most `missing` bytes; False as soon as they cannot be an answer."""
        self._got += data
        known = min(len(self._got), len(GREETING))
        return self._got[:known] == GREETING[:known]

    def proof(self) -> bytes | None:
        """The server's proof for a client whose whole answer is right, None for any other."""
        said = self._got[len(GREETING) : -PROOF_BYTES]
        expected = _proof(self._secret, b"client", self._nonce, said)
        if not hmac.compare_digest(expected, self._got[-PROOF_BYTES:]):
            return None
        return _proof(self._secret, b"server", self._nonce, said)

    @property
    def purpose(self) -> bytes:
        """What the client that has proved itself came for; a later version may know others than
        Purpose has."""
        return self._got[HELLO_BYTES : HELLO_BYTES + PURPOSE_BYTES]


def introduce(
    connection: socket.socket, secret: bytes, deadline: float, purpose: Purpose = Purpose.FILES
) -> None:
    """The client's side, on a connected socket. deadline : on time.monotonic() [s]

    Unreachable: TIMEOUT, or REFUSED by a server of another session, or that is no server of ours.
    """
    hello = _receive(connection, HELLO_BYTES, deadline)
    servers = hello[len(GREETING) :]
    if hello[: len(GREETING)] != GREETING:
        raise Unreachable(PeerStatus.REFUSED)
    clients = secrets.token_bytes(NONCE_BYTES) + purpose.value
    connection.sendall(GREETING + clients + _proof(secret, b"client", servers, clients))
    proof = _receive(connection, PROOF_BYTES, deadline)
    if not hmac.compare_digest(_proof(secret, b"server", servers, clients), proof):
        raise Unreachable(PeerStatus.REFUSED)


def _receive(connection: socket.socket, n_bytes: int, deadline: float) -> bytes:
    data = b""
    while len(data) < n_bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Unreachable(PeerStatus.TIMEOUT)
        connection.settimeout(left)
        more = connection.recv(n_bytes - len(data))
        if not more:
            raise Unreachable(PeerStatus.REFUSED)
        data += more
    return data
