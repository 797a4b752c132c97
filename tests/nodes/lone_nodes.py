"""Nodes that decide as daemons do, without servers, links or engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from monarch_py.arrays import ENTRY
from monarch_py.daemon.nodes import nodes as module
from monarch_py.daemon.nodes.nodes import Membership, Nodes
from monarch_py.daemon.plans.placement import PlacementTask
from monarch_py.daemon.plans.tracker import Found
from monarch_py.native import Kind
from monarch_py.peers.membership import Cluster, Member


class ReplicaServer:
    """A stand-in for the server that sends files to peers. It records which files it may send."""

    def __init__(self, *_: Any) -> None:
        self.kept: set[int] = set()
        # For each file, the number of the node to which this node has passed the file on, or
        # NOBODY. If a peer requests the file, this node refers the peer to that node.
        self.moved: dict[int, int] = {}
        self.patience = -1

    def follow_catalog(self) -> None: ...

    def keep(
        self, ids: npt.NDArray[Any], is_kept: npt.NDArray[Any], moved_to: npt.NDArray[Any]
    ) -> None:
        self.kept |= set(ids[is_kept].tolist())
        self.kept -= set(ids[~is_kept].tolist())
        self.moved |= dict(zip(ids.tolist(), moved_to.tolist(), strict=True))

    def be_patient(self, patience: int) -> None:
        self.patience = patience


class Catalog:
    """The files of one node, in the node's own order."""

    def __init__(self, files: list[tuple[int, int]], order: list[int]) -> None:
        self.entries = np.zeros(len(order), dtype=ENTRY)
        self.entries["kind"] = Kind.FILE
        self.entries["hash"] = [files[i][0] for i in order]
        self.entries["size"] = [files[i][1] for i in order]
        self.count = len(order)

    def __len__(self) -> int:
        return self.count

    def ids(self) -> npt.NDArray[np.uint64]:
        return np.arange(self.count, dtype=np.uint64)


class Placing(PlacementTask):
    """A placement that does not search the catalog for the plan's files. Its `find` returns the
    tracker's attribute `found`, in which the test has stored the result of such a search."""

    def find(self, tracker: Any) -> Found:
        found: Found = tracker.found
        return found


class Native:
    MONARCH_MAX_PEERS = 8
    MONARCH_EVERYBODY_WAITS, MONARCH_WHO_HAS_TIME_WAITS, MONARCH_NOBODY_WAITS = range(3)

    @staticmethod
    def monarch_engine_peer(*_: Any) -> None: ...


@contextmanager
def alone() -> Iterator[None]:
    """Inside this context, `Nodes` have neither servers nor links."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ReplicaServer", ReplicaServer)
        patch.setattr(module, "Peer", lambda _, rank: SimpleNamespace(c=None, rank=rank))
        patch.setattr(module, "EarlyLinks", lambda peers: SimpleNamespace(peers=peers))
        patch.setattr(module, "lib", Native)
        yield


def node(rank: int, quotas: Sequence[Sequence[int]], catalog: Catalog, **more: Any) -> Nodes:
    """Makes the node `rank` of several nodes. It cannot reach the other nodes.

    quotas : for each node, the quotas of its tiers [bytes]"""
    members = tuple(Member(f"n{i}", "127.0.0.1", 1 + i, tuple(q)) for i, q in enumerate(quotas))
    membership: Any = Membership(Cluster(rank, members, bytes(32)), None, bytes)  # type: ignore[arg-type]
    shared: Any = SimpleNamespace(catalog=catalog)
    # For each node, the number of files that wait for that node.
    waiting = np.zeros(len(quotas), dtype=np.uint32)
    engine: Any = SimpleNamespace(
        c=None, waiting=waiting, queues=lambda _: waiting, set_homes=lambda *_: None
    )
    return Nodes(membership, shared, engine, [], **more)
