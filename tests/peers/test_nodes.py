"""Fetches over a link between two nodes. The nodes are network namespaces."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from peers.offers import Offer, fetch, peer_at, peer_of, serve
from support.session import wait_until

from benchmarks.peers.nodes import Nodes, why_no_nodes
from monarch_py.peers.server import listen
from monarch_py.peers.status import PeerStatus

MIB = 1 << 20
CONTENT = os.urandom(24 * MIB)
CLONE_NEWNET = 0x40000000


def enter(namespace: str) -> None:
    """Moves the calling thread to a node, so that its new sockets belong to this node."""
    fd = os.open(namespace, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(fd)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    if missing := why_no_nodes():
        pytest.skip(missing)
    with Nodes(2, "200mbit") as made:
        yield made


@pytest.fixture
def on(nodes: Nodes) -> Iterator[list[ThreadPoolExecutor]]:
    """Yields an executor for each node. Each executor has one thread, which runs on its node."""
    pools = [ThreadPoolExecutor(1, initializer=enter, initargs=(nodes.path(i),)) for i in range(2)]
    yield pools
    for pool in pools:
        pool.shutdown()


def test_a_link_that_is_cut_and_mended(
    nodes: Nodes, on: list[ThreadPoolExecutor], offer: Callable[..., Offer]
) -> None:
    listener = on[0].submit(listen, nodes.address(0)).result()
    server = serve(listener, stall_s=1.0)
    try:
        file = offer(CONTENT).share(server, block=MIB)
        peer = peer_of(server)
        assert on[1].submit(fetch, peer, file.id, 0, 2 * MIB).result() == (
            PeerStatus.OK,
            CONTENT[: 2 * MIB],
        )
        # Over this link, the whole file takes a second.
        asked = on[1].submit(fetch, peer, file.id)
        sent = server.counts()["bytes"]
        # The count includes up to 8 MiB that are still in the server's socket.
        wait_until(lambda: server.counts()["bytes"] > sent + 16 * MIB)
        nodes.set_link(1, up=False)
        cut = time.monotonic()
        status, part = asked.result()
        assert time.monotonic() - cut < 10  # TCP itself would retry for minutes
        assert status == PeerStatus.TIMEOUT
        assert CONTENT.startswith(part)
        assert MIB <= len(part) < len(CONTENT)
        assert not peer.is_usable
        # The server must close the connection, although no packet tells it that the client has
        # closed its end.
        wait_until(lambda: server.counts()["connections"] == 0)
        nodes.set_link(1, up=True)
        wait_until(lambda: peer.is_usable)
        assert on[1].submit(fetch, peer, file.id, MIB, 9 * MIB).result() == (
            PeerStatus.OK,
            CONTENT[MIB : 10 * MIB],
        )
        peer.close()
    finally:
        server.close()


def test_a_node_that_is_not_there(nodes: Nodes, on: list[ThreadPoolExecutor]) -> None:
    with Offer(b"x") as file:
        peer = peer_at((nodes.address(99), 1))
        started = time.monotonic()
        status, _ = on[1].submit(fetch, peer, file.id).result()
        assert status in (PeerStatus.TIMEOUT, PeerStatus.CUT)
        assert time.monotonic() - started < 10
