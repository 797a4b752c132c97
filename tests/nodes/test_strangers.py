"""Clients that connect to a running daemon but do not belong to its session learn nothing, and the
nodes go on."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from nodes.conftest import mounted
from peers.offers import Line
from support.epoch import READER_LIMIT_S, make_files
from support.epochs import Cluster
from support.nodes import Nodes
from support.session import wait_until

from benchmarks.peers.ranges import FileId, fetch_ranges, new_gets
from monarch_py.native import ffi, lib
from monarch_py.peers.handshake import Purpose
from monarch_py.peers.peer import Peer
from monarch_py.peers.status import PeerStatus, Unreachable
from monarch_py.peers.tcp import connect_link, connected

FILES, SIZE = 20, 300_000


@pytest.fixture(scope="module")
def lasting(
    tmp_path_factory: pytest.TempPathFactory, slowsource_binary: Path, epoch_reader: Path
) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("strangers")
    with ExitStack() as stack:
        sources = mounted(stack, place, slowsource_binary, 2)
        files = make_files(sources[0].backing, FILES, SIZE)
        quotas = [2 * FILES * SIZE] * 2
        paths = [source.mountpoint for source in sources]
        nodes = stack.enter_context(Nodes(place / "nodes", paths, quotas)).start()
        yield Cluster(epoch_reader, nodes.all, sources, files)


@pytest.fixture
def cluster(lasting: Cluster) -> Cluster:
    """Nodes that have no copies. All tests share these nodes, so the fixture first drops the copies
    of earlier tests."""
    for node in lasting.nodes:
        node.wait_idle()
        node.forget()
    for node in lasting.nodes:
        wait_until(lambda node=node: not node.copies(), what="the end of all copies")  # type: ignore[misc]
    return lasting


def test_everybody_at_once_while_an_epoch_goes_on(cluster: Cluster) -> None:
    """While a reader reads an epoch, strangers open many connections to the victim. Some
    connections are silent, some send only a byte, and some send random bytes. Neither the reader's
    epoch nor the next one may fail."""
    victim = cluster.nodes[0]
    rng = random.Random(7)
    with ExitStack() as stack:
        reader = stack.enter_context(cluster.reader(1))
        slow = [stack.enter_context(socket.create_connection(victim.address)) for _ in range(200)]
        for connection in slow[:100]:
            connection.send(b"M")
        for _ in range(100):
            with socket.create_connection(victim.address, timeout=5) as connection:
                connection.send(rng.randbytes(rng.randrange(1, 4000)))
        reader.end()
    (again,) = cluster.epoch(1)
    assert again["longest_s"] < READER_LIMIT_S
    assert victim.seen_by(cluster.nodes[1])["last_failure"] == "ok"


def test_a_wrong_secret_is_told_nothing(cluster: Cluster) -> None:
    for purpose in Purpose:
        with pytest.raises(Unreachable) as refused:
            me = replace(cluster.nodes[0].asked_by(1), secret=os.urandom(32))
            with connected(me, 0, 2.0, purpose):
                pass
        assert refused.value.status == PeerStatus.REFUSED


@contextmanager
def member(cluster: Cluster) -> Iterator[Line]:
    """Yields the connection of a client that knows the secret, and misuses it."""
    me = cluster.nodes[0].asked_by(1)
    with connected(me, 0, 2.0, Purpose.FILES) as connection:
        yield Line(*connection)


def request(line: Line, **fields: int) -> bytes:
    return line.request(FileId(0, 0, 0, 0), **fields)


def test_a_member_that_asks_for_the_impossible(cluster: Cluster) -> None:
    """Requests are refused if their ranges lie beyond the end of any file, or if their source or
    file does not exist."""
    most = (1 << 64) - 1
    with member(cluster) as connection:
        asked = [
            request(connection, size=most, first=0, length=most),
            request(connection, size=SIZE, first=most, length=most),
            request(connection, size=SIZE, first=SIZE, length=1),
            request(connection, source=(1 << 32) - 1, path_hash=most, size=SIZE, length=SIZE),
            *(
                request(connection, source=n, path_hash=n, size=SIZE, length=SIZE)
                for n in range(20)
            ),
        ]
        connection.sendall(b"".join(asked))
        end_bytes = ffi.sizeof("struct monarch_peer_frame")
        connection.settimeout(10)
        said = b""
        while len(said) < len(asked) * end_bytes:
            said += connection.recv(65536)
    frames = [
        ffi.from_buffer("struct monarch_peer_frame *", said[at : at + end_bytes])
        for at in range(0, len(said), end_bytes)
    ]
    statuses = {PeerStatus(frame.value) for frame in frames}
    assert {frame.kind for frame in frames} == {lib.MONARCH_PEER_END}
    assert statuses <= {PeerStatus.REFUSED, PeerStatus.UNKNOWN_FILE, PeerStatus.CHANGED}
    cluster.epoch(1)


def test_a_member_that_asks_and_takes_nothing(cluster: Cluster) -> None:
    """If a client requests data but does not receive the answers, the node ends the connection. The
    connections of other nodes go on."""
    node = cluster.nodes[0]
    cluster.epoch(0)
    node.wait_idle()
    with ExitStack() as stack:
        for _ in range(30):
            connection = stack.enter_context(member(cluster))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            connection.send(request(connection, size=SIZE, length=SIZE)[:-1])
        started = time.monotonic()
        cluster.epoch(1)
        assert time.monotonic() - started < 20
    # A request contains the file's times. A node sends the file only if its catalog has the same
    # times.
    peer = Peer(partial(connect_link, node.asked_by(1)), 0)
    gets = new_gets([FileId(source=0, path_hash=1, size=SIZE, mtime_ns=1)])
    fetch_ranges(peer, gets)
    assert gets["status"][0] == PeerStatus.UNKNOWN_FILE
    peer.close()
    wait_until(node.connection.serves, what="a daemon that answers")
