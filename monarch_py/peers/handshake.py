"""How two daemons of one session know each other: each proves the secret, that it is the node which
the other means, and that it means the other. Nobody sends the secret.

    server -> client   GREETING, 32 random bytes s
    client -> server   GREETING, 32 random bytes c, one byte p: what the connection is for,
                       the client's rank i, the rank j that it means,
                       HMAC-SHA256(secret, "client" t)
    server -> client   its own rank,
                       HMAC-SHA256(secret, "server" t) if that is j;
                       HMAC-SHA256(secret, "another" own-rank t), and the end, if it is not

t is GREETING s c p i j and the addresses of i and j, as whoever makes or checks the proof knows
them. The labels keep one side's proof from being the other's; both random numbers make an old proof
worthless; ranks and addresses make a proof worthless that is passed on to another node by somebody
who sits at the address of one. Whoever connects proves first, so that a stranger learns nothing.

From the secret and t each side then makes a key for what it says and one for what it hears, and
everything that follows is authenticated with them: requests and frames in C (csrc/peers/wire.h),
what daemons tell each other in queries.py. Nothing is encrypted.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from enum import Enum

from monarch_py.errors import SessionError
from monarch_py.native import lib
from monarch_py.peers.membership import Cluster
from monarch_py.peers.ranges import PeerStatus
from monarch_py.peers.transport import Unreachable

__all__ = [
    "LIBCRYPTO_HINT",
    "NO_LIBCRYPTO",
    "Greeter",
    "Keys",
    "Party",
    "Purpose",
    "has_libcrypto",
    "introduce",
    "new_secret",
]

NO_LIBCRYPTO = "libcrypto of OpenSSL 1.1 or later, by which nodes know each other, is not found"
LIBCRYPTO_HINT = "install OpenSSL's library (libssl3, openssl-libs), or set LD_LIBRARY_PATH"

# Name and version of what is spoken; another version is refused before anything else.
GREETING = b"MONARCH\x03"
NONCE_BYTES = 32
PROOF_BYTES = 32
HELLO_BYTES = len(GREETING) + NONCE_BYTES
# Purpose, own rank, the rank that is meant.
_ABOUT = struct.Struct("<cII")
_RANK = struct.Struct("<I")
ANSWER_BYTES = HELLO_BYTES + _ABOUT.size + PROOF_BYTES
REPLY_BYTES = _RANK.size + PROOF_BYTES
# As many bits as AES-128 has: no shorter secret is one [bytes].
LEAST_SECRET_BYTES = 16


class Purpose(Enum):
    """What a connection is for, which decides who answers it: C (csrc/peers), or the daemon."""

    FILES = b"f"
    STATUS = b"s"


def new_secret() -> bytes:
    """A session's secret (32 bytes), from the kernel's random numbers."""
    return secrets.token_bytes(32)


def has_libcrypto() -> bool:
    """Whether this process finds the libcrypto that computes what authenticates
    (csrc/peers/mac.c)."""
    return bool(lib.monarch_mac_is_there())


@dataclass(frozen=True, slots=True)
class Keys:
    """Of one connection: for what this end says, and for what it hears (16 bytes each)."""

    mine: bytes
    theirs: bytes


@dataclass(frozen=True, slots=True)
class Party:
    """One node of a session, as it sees all of them.

    secret : what they share;  rank : its own;  addresses : where each serves, by rank: a numeric
    address and a port. ValueError for a secret that could be guessed; SessionError without
    libcrypto.
    """

    secret: bytes
    rank: int
    addresses: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if len(self.secret) < LEAST_SECRET_BYTES:
            raise ValueError(f"a session's secret has at least {LEAST_SECRET_BYTES} bytes")
        if not has_libcrypto():
            raise SessionError(f"{NO_LIBCRYPTO}: {LIBCRYPTO_HINT}")

    @classmethod
    def of(cls, cluster: Cluster) -> Party:
        addresses = tuple((member.host, member.port) for member in cluster.members)
        return cls(cluster.secret, cluster.rank, addresses)

    @property
    def content_key(self) -> bytes:
        """For digests of content, which all nodes make alike (csrc/peers/mac.h)."""
        return hmac.digest(self.secret, b"content", "sha256")[: lib.MONARCH_KEY_BYTES]

    def prove(self, label: bytes, transcript: bytes) -> bytes:
        return hmac.digest(self.secret, label + transcript, "sha256")

    def keys(self, transcript: bytes, mine: bytes, theirs: bytes) -> Keys:
        """mine, theirs : the labels of the two ends' proofs"""
        size = lib.MONARCH_KEY_BYTES
        says, hears = (self.prove(b"key of " + end, transcript)[:size] for end in (mine, theirs))
        return Keys(says, hears)

    def transcript(self, servers: bytes, clients: bytes, client: int, server: int) -> bytes:
        """servers, clients : all that each side has said, but for its GREETING and proofs.
        IndexError for ranks of which there are none."""
        said = [GREETING, servers, clients]
        for host, port in (self.addresses[client], self.addresses[server]):
            said.append(struct.pack("<HH", port, len(host)) + host.encode())
        return b"".join(said)


class Greeter:
    """The server's side of one connection, which never waits: bytes in, bytes out."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._got = b""
        self.hello = GREETING + self._nonce
        # Once the client has proved itself, and that it means this node.
        self.keys: Keys | None = None

    @property
    def missing(self) -> int:
        """Bytes of the client's answer that have not come yet."""
        return ANSWER_BYTES - len(self._got)

    def feed(self, data: bytes) -> bool:
        """Takes at most `missing` bytes; False as soon as they cannot be an answer."""
        self._got += data
        known = min(len(self._got), len(GREETING))
        return self._got[:known] == GREETING[:known]

    def reply(self) -> bytes | None:
        """What a client whose whole answer is right is told, None for any other. One that means
        another node is told which this is, has no keys, and is to be sent away."""
        party, said = self._party, self._got[len(GREETING) : -PROOF_BYTES]
        _, client, meant = _ABOUT.unpack(said[NONCE_BYTES:])
        try:
            transcript = party.transcript(self._nonce, said, client, meant)
        except IndexError:
            return None
        if not hmac.compare_digest(party.prove(b"client", transcript), self._got[-PROOF_BYTES:]):
            return None
        rank = _RANK.pack(party.rank)
        if meant != party.rank:
            return rank + party.prove(b"another" + rank, transcript)
        self.keys = party.keys(transcript, b"server", b"client")
        return rank + party.prove(b"server", transcript)

    @property
    def purpose(self) -> bytes:
        """What the client that has proved itself came for; a later version may know others than
        Purpose has."""
        return self._got[HELLO_BYTES : HELLO_BYTES + 1]


def introduce(
    connection: socket.socket,
    party: Party,
    rank: int,
    deadline: float,
    purpose: Purpose = Purpose.FILES,
) -> Keys:
    """The client's side, on a connected socket.  rank : whose server it ought to be;  deadline : on
    time.monotonic() [s]

    Unreachable: TIMEOUT; OTHER_NODE, if another node of the session has answered; or REFUSED, by a
    server of another session, or by what is no server of ours.
    """
    hello = _receive(connection, HELLO_BYTES, deadline)
    servers = hello[len(GREETING) :]
    if hello[: len(GREETING)] != GREETING:
        raise Unreachable(PeerStatus.REFUSED)
    clients = secrets.token_bytes(NONCE_BYTES) + _ABOUT.pack(purpose.value, party.rank, rank)
    transcript = party.transcript(servers, clients, party.rank, rank)
    connection.sendall(GREETING + clients + party.prove(b"client", transcript))
    reply = _receive(connection, REPLY_BYTES, deadline)
    who, proof = reply[: _RANK.size], reply[_RANK.size :]
    is_meant = who == _RANK.pack(rank)
    label = b"server" if is_meant else b"another" + who
    if not hmac.compare_digest(party.prove(label, transcript), proof):
        raise Unreachable(PeerStatus.REFUSED)
    if not is_meant:
        raise Unreachable(PeerStatus.OTHER_NODE, _RANK.unpack(who)[0])
    return party.keys(transcript, b"client", b"server")


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
