"""The handshake by which two daemons of one cluster authenticate each other.

Each side proves three things: its knowledge of the secret, its own identity, and the identity of
the node that it wants to reach. The secret itself is never sent.

    server -> client   GREETING, 32 random bytes s
    client -> server   GREETING, 32 random bytes c, the connection's purpose p (one byte),
                       the client's rank i, the rank j that it wants to reach,
                       HMAC-SHA256(secret, "client" t)
    server -> client   the server's rank,
                       HMAC-SHA256(secret, "server" t) if that rank is j;
                       otherwise HMAC-SHA256(secret, "another" own-rank t), and the server
                       disconnects

The transcript t is GREETING s c p i j, followed by the addresses of i and j. Each side takes these
addresses from its own list (`Party.addresses`), not from a message. The labels ("client", "server")
prevent reflection: one side's proof is never valid as the other side's proof. The random numbers
prevent replay of an old proof. The ranks and addresses prevent relay: an attacker at the address of
one node cannot pass a proof on to another node. The client sends its proof first. So a client
without the secret learns nothing.

From the secret and t, each side then derives two keys: one for the data that it sends, and one for
the data that it receives. These keys authenticate all further messages: requests and frames in C
(csrc/peers/wire.h), and the answers of daemons in queries.py. Nothing is encrypted.
"""

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
from monarch_py.peers.status import PeerStatus, Unreachable

NO_LIBCRYPTO = (
    "libcrypto (OpenSSL 1.1 or later) is not found; Monarch needs it to authenticate nodes"
)
LIBCRYPTO_HINT = "install OpenSSL's library (libssl3, openssl-libs), or set LD_LIBRARY_PATH"

# Name and version of the protocol. A peer with another version is rejected before any other check.
GREETING = b"MONARCH\x03"
NONCE_BYTES = 32
PROOF_BYTES = 32
HELLO_BYTES = len(GREETING) + NONCE_BYTES
# The connection's purpose, the client's own rank, and the rank that the client wants to reach.
_ABOUT = struct.Struct("<cII")
_RANK = struct.Struct("<I")
ANSWER_BYTES = HELLO_BYTES + _ABOUT.size + PROOF_BYTES
REPLY_BYTES = _RANK.size + PROOF_BYTES
# The least length of a secret: the key length of AES-128 [bytes]. A shorter secret is rejected.
LEAST_SECRET_BYTES = 16
# The largest number of bytes that are received at a time.
PIECE_BYTES = 1 << 16


class Purpose(Enum):
    """The purpose of a connection. C code (csrc/peers) serves connections for FILES; Python code
    (queries.py) serves connections for STATUS."""

    FILES = b"f"
    STATUS = b"s"


def new_secret() -> bytes:
    """Returns a new secret for a session: 32 bytes from the kernel's random number generator."""
    return secrets.token_bytes(32)


def has_libcrypto() -> bool:
    """Whether this process finds libcrypto, which computes the authentication codes
    (csrc/peers/mac.c)."""
    return bool(lib.monarch_mac_is_there())


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one connection, 16 bytes each.

    mine : for data that this end sends;  theirs : for data that this end receives
    """

    mine: bytes
    theirs: bytes


@dataclass(frozen=True, slots=True)
class Party:
    """One node's data for handshakes. The constructor raises ValueError if the secret is too short,
    and SessionError if libcrypto is missing.

    secret : the same on all nodes
    rank : this node's rank
    addresses : for each rank, the numeric address and the port of the node's server
    """

    secret: bytes
    rank: int
    addresses: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if len(self.secret) < LEAST_SECRET_BYTES:
            raise ValueError(f"the secret of a session needs at least {LEAST_SECRET_BYTES} bytes")
        if not has_libcrypto():
            raise SessionError(f"{NO_LIBCRYPTO}: {LIBCRYPTO_HINT}")

    @classmethod
    def of(cls, cluster: Cluster) -> "Party":
        addresses = tuple((member.host, member.port) for member in cluster.members)
        return cls(cluster.secret, cluster.rank, addresses)

    @property
    def content_key(self) -> bytes:
        """The key for digests of file content (csrc/peers/mac.h). It is the same on all nodes."""
        return hmac.digest(self.secret, b"content", "sha256")[: lib.MONARCH_KEY_BYTES]

    def prove(self, label: bytes, transcript: bytes) -> bytes:
        return hmac.digest(self.secret, label + transcript, "sha256")

    def keys(self, transcript: bytes, mine: bytes, theirs: bytes) -> Keys:
        """Returns the keys of a connection.

        mine, theirs : the labels of this end's proof and of the other end's proof
        """
        size = lib.MONARCH_KEY_BYTES
        says, hears = (self.prove(b"key of " + end, transcript)[:size] for end in (mine, theirs))
        return Keys(says, hears)

    def transcript(self, servers: bytes, clients: bytes, client: int, server: int) -> bytes:
        """Returns the transcript t (see the docstring of this file). Raises IndexError if `client`
        or `server` is not the rank of a node.

        servers, clients : the bytes that the server and the client have sent, without GREETING and
            proofs
        client, server : the ranks of the two nodes
        """
        said = [GREETING, servers, clients]
        for host, port in (self.addresses[client], self.addresses[server]):
            said.append(struct.pack("<HH", port, len(host)) + host.encode())
        return b"".join(said)


class Greeter:
    """The server's side of one handshake. This class does no I/O and never blocks; the caller
    receives and sends the bytes."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._got = b""
        self.hello = GREETING + self._nonce
        # None until the client has proved that it knows the secret and wants to reach this node.
        self.keys: Keys | None = None

    @property
    def missing(self) -> int:
        """The number of bytes of the client's message that were not received yet."""
        return ANSWER_BYTES - len(self._got)

    def feed(self, data: bytes) -> bool:
        """Adds the next bytes of the client's message, at most `missing` bytes. Returns False if
        the bytes so far cannot be the beginning of a client's message."""
        self._got += data
        known = min(len(self._got), len(GREETING))
        return self._got[:known] == GREETING[:known]

    def reply(self) -> bytes | None:
        """Returns the reply to the client's complete message; None if the message is not valid. If
        the client wants to reach another node, the reply contains this node's rank, and `keys`
        stays None. The caller must then send the reply and close the connection."""
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
        """The purpose of an authenticated client's connection, as a byte. A client of a later
        version may send a byte that the enum Purpose does not contain."""
        return self._got[HELLO_BYTES : HELLO_BYTES + 1]


def introduce(
    connection: socket.socket,
    party: Party,
    rank: int,
    deadline: float,
    purpose: Purpose = Purpose.FILES,
) -> Keys:
    """Performs the client's side of the handshake on a connected socket. Returns the connection's
    keys.

    rank : the rank of the node that should answer
    deadline : a time on the clock time.monotonic() [s]

    Raises Unreachable: TIMEOUT at the deadline; OTHER_NODE if another node of the session has
    answered; REFUSED if the server belongs to another session, or is not a server of Monarch.
    """
    hello = receive(connection, HELLO_BYTES, deadline, PeerStatus.REFUSED)
    servers = bytes(hello[len(GREETING) :])
    if hello[: len(GREETING)] != GREETING:
        raise Unreachable(PeerStatus.REFUSED)
    clients = secrets.token_bytes(NONCE_BYTES) + _ABOUT.pack(purpose.value, party.rank, rank)
    transcript = party.transcript(servers, clients, party.rank, rank)
    connection.sendall(GREETING + clients + party.prove(b"client", transcript))
    reply = receive(connection, REPLY_BYTES, deadline, PeerStatus.REFUSED)
    who, proof = bytes(reply[: _RANK.size]), reply[_RANK.size :]
    is_meant = who == _RANK.pack(rank)
    label = b"server" if is_meant else b"another" + who
    if not hmac.compare_digest(party.prove(label, transcript), proof):
        raise Unreachable(PeerStatus.REFUSED)
    if not is_meant:
        raise Unreachable(PeerStatus.OTHER_NODE, _RANK.unpack(who)[0])
    return party.keys(transcript, b"client", b"server")


def receive(
    connection: socket.socket, n_bytes: int, deadline: float, at_end: PeerStatus
) -> bytearray:
    """Receives `n_bytes` bytes. Raises Unreachable: TIMEOUT at the deadline; `at_end` if the
    connection ends too early.

    deadline : a time on the clock time.monotonic() [s]
    """
    data = bytearray()
    while len(data) < n_bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Unreachable(PeerStatus.TIMEOUT)
        connection.settimeout(left)
        more = connection.recv(min(n_bytes - len(data), PIECE_BYTES))
        if not more:
            raise Unreachable(at_end)
        data += more
    return data
