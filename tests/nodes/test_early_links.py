"""When daemons start, they connect links to each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from nodes import lone_nodes
from nodes.lone_nodes import Catalog, alone
from support.epochs import Cluster
from support.session import wait_until

from monarch_py.daemon.nodes import early_links
from monarch_py.daemon.nodes.early_links import LIMIT_S, LINKS_A_PEER, MOST_LINKS, EarlyLinks


class Peer:
    """A peer to which the first `refusals` attempts to connect fail."""

    def __init__(self, refusals: int = 0) -> None:
        self.links, self.attempts, self._refusals = 0, 0, refusals

    def connect_early(self) -> bool:
        self.attempts += 1
        is_refused = self.attempts <= self._refusals
        self.links += not is_refused
        return not is_refused


def connect(peers: list[Peer], is_done: Callable[[], bool]) -> None:
    some: Any = peers
    early = EarlyLinks(some)
    wait_until(is_done, what="the links")
    early.close()


def links(peers: list[Peer]) -> list[int]:
    return [peer.links for peer in peers]


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_links, "RETRY_S", 0.0)


def test_a_few_peers_get_some_links_each() -> None:
    peers = [Peer() for _ in range(3)]
    connect(peers, lambda: links(peers) == [LINKS_A_PEER] * 3)
    assert [peer.attempts for peer in peers] == [LINKS_A_PEER] * 3


def test_of_many_peers_the_first_get_one_each() -> None:
    peers = [Peer() for _ in range(MOST_LINKS + 10)]
    connect(peers, lambda: links(peers) == [1] * MOST_LINKS + [0] * 10)


def test_a_peer_that_starts_later_is_tried_again() -> None:
    peers = [Peer(), Peer(refusals=7)]
    connect(peers, lambda: links(peers) == [LINKS_A_PEER] * 2)
    assert peers[1].attempts == LINKS_A_PEER + 7


def test_the_attempts_end_with_the_daemon_or_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = Peer(refusals=1 << 60)
    connect([never], lambda: never.attempts > 0)
    made = never.attempts
    monkeypatch.setattr(early_links, "LIMIT_S", 0.0)
    connect([never], lambda: not any(t.name == "peers-early" for t in threading.enumerate()))
    assert never.attempts == made


def test_the_limit_ends_attempts_that_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt takes more than half of LIMIT_S. So two attempts exceed the limit, and a third
    one must not be made."""
    never = Peer(refusals=1 << 60)
    clock = SimpleNamespace(monotonic=lambda: 0.6 * LIMIT_S * never.attempts)
    monkeypatch.setattr(early_links, "time", clock)
    connect([never], lambda: not any(t.name == "peers-early" for t in threading.enumerate()))
    assert never.attempts == 2


def test_without_a_thread_no_link_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    peer = Peer()
    connect([peer], lambda: True)
    assert peer.attempts == 0


def test_each_node_begins_with_the_next() -> None:
    with alone():
        made = lone_nodes.node(1, [(1,)] * 4, Catalog([], []))
    early: Any = made._early_links
    assert [peer.rank for peer in early.peers] == [2, 3, 0]


def test_nodes_that_have_started_are_connected(cluster_factory: Callable[..., Cluster]) -> None:
    """When the nodes have started, the links exist, although no program has read a file."""
    node, other = cluster_factory(2, 3, 100).nodes
    assert node.daemon is not None
    process = psutil.Process(node.daemon.pid)

    def connected() -> int:
        found = process.net_connections("tcp")
        return sum(c.status == "ESTABLISHED" and c.raddr == other.address for c in found)

    wait_until(lambda: connected() == LINKS_A_PEER, what="the links")
