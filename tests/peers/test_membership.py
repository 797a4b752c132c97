"""Tests the cluster's description and the cluster's name. Each daemon gets this description."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec

from monarch_py.peers.membership import Cluster, Member

SECRET = bytes(range(100, 132))
CLUSTER = Cluster(0, (Member("node", "192.0.2.1", 7321, (1 << 30,)),), SECRET)


def test_its_name_is_one_for_all_nodes_and_another_for_every_other_secret() -> None:
    others = {CLUSTER.name}
    for at in range(len(SECRET)):
        changed = SECRET[:at] + bytes([SECRET[at] ^ 1]) + SECRET[at + 1 :]
        others.add(replace(CLUSTER, secret=changed).name)
    assert len(others) == len(SECRET) + 1
    assert replace(CLUSTER, rank=1).name == CLUSTER.name


def test_its_name_tells_nothing_of_the_secret() -> None:
    """A cluster's name, which everybody may see, must not contain any three successive bytes of the
    cluster's secret."""
    name, told = CLUSTER.name, SECRET.hex()
    assert not any(told[at : at + 6] in name for at in range(len(told) - 5))
    assert not any(SECRET[at : at + 3] in bytes.fromhex(name) for at in range(len(SECRET) - 2))


def test_no_part_of_its_name_depends_on_a_part_of_the_secret() -> None:
    """A change of any bit of the secret must change at least half of the name's digits. Otherwise a
    part of the name would reveal something about a part of the secret."""
    for bit in range(8 * len(SECRET)):
        other = int.from_bytes(SECRET, "big") ^ 1 << bit
        name = replace(CLUSTER, secret=other.to_bytes(len(SECRET), "big")).name
        same = sum(a == b for a, b in zip(name, CLUSTER.name, strict=True))
        # Even if the names are unrelated, one digit in sixteen is the same by chance.
        assert same <= len(name) / 2


def test_what_is_told_comes_back() -> None:
    told = json.loads(json.dumps(msgspec.to_builtins(CLUSTER)))
    assert msgspec.convert(told, Cluster) == CLUSTER
