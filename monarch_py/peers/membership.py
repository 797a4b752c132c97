"""The cluster: the daemons of several nodes, one per node, which know each other's addresses.

The program that starts the daemons (with MPI, or in a test) creates one `Cluster` object for each
daemon. These objects differ only in `rank`. The secret must not appear on a command line or in a
file, so each daemon receives its `Cluster` in memory. To replace a daemon that has ended, a command
needs the `Cluster` of another daemon. A daemon sends it only to root and to its own user.
"""

import hashlib
from dataclasses import dataclass, field

from monarch_py.errors import SessionError

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Member:
    """One node's daemon.

    name : the node's name, for messages
    host, port : the numeric address and the port where the daemon serves peers
    quotas : the quotas of the daemon's tiers, fastest tier first [bytes]
    """

    name: str
    host: str
    port: int
    quotas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster, with the rank of one of its nodes. msgspec converts it to JSON, with the secret
    in base64.

    rank : the rank of this node among the members;  secret : 32 bytes, the same for all members
    agreed : the settings that were equal on all nodes when the cluster was started, key -> value
    """

    rank: int
    members: tuple[Member, ...]
    secret: bytes
    agreed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:  # a daemon of another version has made this secret
            raise SessionError(
                "another version of Monarch wrote the nodes' secret; stop all daemons first"
            )

    @property
    def name(self) -> str:
        """The cluster's identifier. It is not secret, is the same on all nodes of the cluster, and
        differs between clusters."""
        return hashlib.sha256(b"name" + self.secret).hexdigest()[:16]
