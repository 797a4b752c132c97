"""The cluster: the daemons of one session that know of each other, one per node.

Whatever brings the daemons up (MPI, a test) makes a `Cluster` for each, the same but for `rank`. It
is passed to the daemon in memory, because its secret must not appear on a command line or in a
file. A daemon tells its cluster only to its own user, so that a daemon that ended can rejoin.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Cluster", "Member"]


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
    """The cluster as one node knows it.

    rank : of this node among the members;  secret : 32 bytes that all members share
    agreed : key -> value of the settings that all members had in common when they started
    """

    rank: int
    members: tuple[Member, ...]
    secret: bytes
    agreed: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """An identifier: the same on all nodes, different for every cluster, and not secret."""
        return hashlib.sha256(b"name" + self.secret).hexdigest()[:16]

    def told(self) -> dict[str, Any]:
        """The cluster, with its secret, in JSON's types; `of` reads it."""
        return {**asdict(self), "secret": self.secret.hex()}

    @classmethod
    def of(cls, told: dict[str, Any]) -> Cluster:
        """ValueError, KeyError or TypeError for anything that `told` did not make."""
        members = tuple(Member(**{**m, "quotas": tuple(m["quotas"])}) for m in told["members"])
        return cls(
            int(told["rank"]), members, bytes.fromhex(told["secret"]), dict(told.get("agreed", {}))
        )

    def dumps(self) -> bytes:
        return json.dumps(self.told()).encode()

    @classmethod
    def loads(cls, data: bytes) -> Cluster:
        """ValueError, KeyError or TypeError for anything that `dumps` did not write."""
        return cls.of(json.loads(data))
