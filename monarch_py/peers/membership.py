"""The cluster: the daemons of one session that know of each other, one per node.

Whatever brings the daemons up (MPI, a test) makes a `Cluster` for each, the same but for `rank`. It
is passed to the daemon in memory, because its secret must not appear on a command line or in a
file. A daemon tells its cluster only to its own user, so that a daemon that ended can rejoin.
"""

import hashlib
from dataclasses import dataclass, field

from monarch_py.errors import SessionError

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Member:
    """One node's daemon.  name : of the node, for people;  host, port : where it serves peers (a
    numeric address);  quotas : of its tiers, fastest first [bytes]."""

    name: str
    host: str
    port: int
    quotas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster as one node knows it. msgspec converts it to JSON, with the secret in base64.

    rank : of this node among the members;  secret : 32 bytes that all members share
    agreed : key -> value of the settings that all members had in common when they started
    """

    rank: int
    members: tuple[Member, ...]
    secret: bytes
    agreed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:  # a daemon of another version wrote it otherwise
            raise SessionError(
                "the nodes' secret was written by another version; stop all daemons first"
            )

    @property
    def name(self) -> str:
        """An identifier: the same on all nodes, different for every cluster, and not secret."""
        return hashlib.sha256(b"name" + self.secret).hexdigest()[:16]
