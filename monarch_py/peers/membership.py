"""The daemons of one session that know of each other, one a node: what each is told when it starts.

Whoever brings them up (MPI, a test) makes it, alike on every node but for `rank`; it goes to the
daemon in memory, because the secret in it must be on no command line and in no file. A daemon tells
it again to its own user alone, for one that has ended and comes back.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Cluster", "Member"]


@dataclass(frozen=True, slots=True)
class Member:
    """One node's daemon.  name : the node's own, for people;  host, port : where it serves peers, a
    numeric address;  quotas : of its tiers, fastest first [bytes]."""

    name: str
    host: str
    port: int
    quotas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """rank : which of the members this node is;  secret : 32 bytes that all of them share;
    agreed : key -> value of what all of them had alike when they started"""

    rank: int
    members: tuple[Member, ...]
    secret: bytes
    agreed: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The same on all its nodes, and another for every other cluster; it tells no secret."""
        return hashlib.sha256(b"name" + self.secret).hexdigest()[:16]

    def told(self) -> dict[str, Any]:
        """What `of` takes, in JSON's types; with the secret."""
        return {**asdict(self), "secret": self.secret.hex()}

    @classmethod
    def of(cls, told: dict[str, Any]) -> Cluster:
        """ValueError, KeyError or TypeError for what `told` has not made."""
        members = tuple(Member(**{**m, "quotas": tuple(m["quotas"])}) for m in told["members"])
        return cls(
            int(told["rank"]), members, bytes.fromhex(told["secret"]), dict(told.get("agreed", {}))
        )

    def dumps(self) -> bytes:
        return json.dumps(self.told()).encode()

    @classmethod
    def loads(cls, data: bytes) -> Cluster:
        """ValueError, KeyError or TypeError for what `dumps` did not write."""
        return cls.of(json.loads(data))
