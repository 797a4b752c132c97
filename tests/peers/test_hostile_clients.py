"""Hostile clients must get no data, and must not keep the server from serving others."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peers.offers import (
    BLOCK,
    FRAME,
    FRAME_BYTES,
    Line,
    Offer,
    adopted,
    assert_serves,
    bare,
    connect,
    content_digest,
    ends,
    fetch,
    party,
    peer_of,
    read_frame,
    request,
    serve,
    xxh3,
)
from support.draws import examples, sized
from support.session import wait_until

from benchmarks.peers.fileserver import FileServer
from benchmarks.peers.ranges import FileId
from monarch_py.native import lib
from monarch_py.peers.handshake import (
    ANSWER_BYTES,
    GREETING,
    HELLO_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    REPLY_BYTES,
    Purpose,
    introduce,
    new_secret,
)
from monarch_py.peers.server import MOST_STRANGERS, listen
from monarch_py.peers.status import PeerStatus, Unreachable

CONTENT = os.urandom(3 * BLOCK + 17)
STALL_S = 0.4
SMALL = 32 << 10  # MONARCH_PEER_SMALL


@pytest.fixture
def serving(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> tuple[FileServer, Offer]:
    """Returns a server with short time limits, and a file that it shares."""
    server = server_factory(threads=2, stall_s=STALL_S, idle_s=5)
    return server, offer(CONTENT).share(server)


# --- clients that do not authenticate themselves -------------------------------------------------


def test_another_secret_is_refused(serving: tuple[FileServer, Offer]) -> None:
    server, file = serving
    stranger = peer_of(server, new_secret())
    assert fetch(stranger, file.id) == (PeerStatus.REFUSED, b"")
    assert not stranger.is_usable
    assert server.counts()["accepted"] == 0
    assert_serves(server, file)


def test_without_a_proof_nothing_is_answered_but_the_greeting(
    serving: tuple[FileServer, Offer],
) -> None:
    server, file = serving
    for said in (
        request(file.id) * 3,
        bytes(ANSWER_BYTES),
        GREETING + bytes(ANSWER_BYTES - len(GREETING)),
        b"GET / HTTP/1.1",
    ):
        with bare(server) as connection:
            connection.sendall(said)
            heard = b""
            try:
                while more := connection.recv(4096):
                    heard += more
            except ConnectionResetError:
                pass
            assert len(heard) <= HELLO_BYTES
    assert server.counts()["accepted"] == 0
    assert_serves(server, file)


def test_a_proof_is_worth_nothing_on_another_connection(
    serving: tuple[FileServer, Offer],
) -> None:
    """The server must reject a client's proof that was recorded on another connection."""
    server, _ = serving
    heard: list[bytes] = []

    def relay(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client, bare(server) as real:
            client.sendall(real.recv(HELLO_BYTES, socket.MSG_WAITALL))
            heard.append(client.recv(ANSWER_BYTES, socket.MSG_WAITALL))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=relay, args=(listener,))
        thread.start()
        with (
            pytest.raises(Unreachable, match="REFUSED"),
            socket.create_connection(listener.getsockname()) as mine,
        ):
            introduce(mine, party(server.address, 1), 0, time.monotonic() + 5)
        thread.join()
    assert len(heard[0]) == ANSWER_BYTES
    with bare(server) as again:
        again.recv(HELLO_BYTES, socket.MSG_WAITALL)
        again.sendall(heard[0])
        assert ends(again)
    assert server.counts()["accepted"] == 0


@pytest.mark.parametrize("meant", [0, 1])
def test_the_servers_own_proof_is_no_clients(
    serving: tuple[FileServer, Offer], monkeypatch: pytest.MonkeyPatch, meant: int
) -> None:
    """The server must reject its own proof if a client sends the proof back, even if the client's
    proof would cover exactly the same values. `meant` is the rank that the client says it wants to
    reach: the server's rank or another rank."""
    server, _ = serving
    # All random numbers are zeros, so both proofs cover the same random numbers. The server must
    # reject its own proof for a reason other than these numbers.
    monkeypatch.setattr(secrets, "token_bytes", bytes)
    me = party(server.address, 1)
    about = bytes(NONCE_BYTES) + struct.pack("<cII", Purpose.FILES.value, me.rank, meant)
    proof = me.prove(b"client", me.transcript(bytes(NONCE_BYTES), about, me.rank, meant))

    def reply_to(proof: bytes) -> bytes:
        with bare(server) as connection:
            connection.recv(HELLO_BYTES, socket.MSG_WAITALL)
            connection.sendall(GREETING + about + proof)
            return connection.recv(REPLY_BYTES, socket.MSG_WAITALL)

    rank, reflected = (reply := reply_to(proof))[:-PROOF_BYTES], reply[-PROOF_BYTES:]
    assert rank == struct.pack("<I", 0)
    assert len(reflected) == PROOF_BYTES
    assert reply_to(reflected) == b""


def test_a_crowd_of_silent_strangers_keeps_nobody_out(serving: tuple[FileServer, Offer]) -> None:
    server, file = serving

    def serves_soon() -> bool:
        crowd = [bare(server) for _ in range(MOST_STRANGERS * 3)]
        try:
            started = time.monotonic()
            assert_serves(server, file)
            took_s = time.monotonic() - started
            # The server has not closed the latest connections yet. It must close each of them when
            # the connection's time limit is over.
            assert all(ends(connection) for connection in crowd)
            assert time.monotonic() - started < 10
        finally:
            for connection in crowd:
                connection.close()
        return took_s < 0.8

    wait_until(serves_soon, what="an answer before the strangers' time limit")


def test_a_proof_that_drips_in_comes_too_late(serving: tuple[FileServer, Offer]) -> None:
    server, file = serving
    with bare(server) as connection:
        started = time.monotonic()
        connection.sendall(GREETING)
        with pytest.raises(OSError):
            while time.monotonic() - started < 4:
                connection.sendall(b"x")
                time.sleep(0.05)
    assert_serves(server, file)


# --- clients that have authenticated themselves --------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"length": 2**64 - 1}, PeerStatus.REFUSED),
        ({"length": len(CONTENT) + 1}, PeerStatus.REFUSED),
        ({"first": 2**64 - 1, "length": 2}, PeerStatus.REFUSED),
        ({"first": 2**63, "length": 2**63}, PeerStatus.REFUSED),
        ({"size": 2**64 - 1, "length": 2**64 - 1}, PeerStatus.CHANGED),
        ({"source": 2**32 - 1}, PeerStatus.UNKNOWN_FILE),
        ({"path_hash": 0}, PeerStatus.UNKNOWN_FILE),
        ({"mtime_ns": -1}, PeerStatus.CHANGED),
    ],
)
def test_a_request_for_what_is_not_there_is_refused_and_no_more(
    serving: tuple[FileServer, Offer], fields: dict[str, int], status: PeerStatus
) -> None:
    server, file = serving
    with connect(server) as connection:
        connection.sendall(connection.request(file.id, tag=77, **fields))
        assert read_frame(connection) == (lib.MONARCH_PEER_END, 77, status)
        connection.sendall(connection.request(file.id, length=0))
        assert read_frame(connection) == (lib.MONARCH_PEER_END, 9, PeerStatus.OK)


def test_what_is_no_request_ends_the_connection(serving: tuple[FileServer, Offer]) -> None:
    server, file = serving
    for said in (b"....", b"../../../../etc/shadow\0" * 4, request(file.id, magic=0)):
        with connect(server) as connection:
            connection.sendall(said)
            assert ends(connection)
    assert server.counts()["dropped"] == 3
    assert_serves(server, file)


def test_half_a_request_is_not_waited_for(serving: tuple[FileServer, Offer]) -> None:
    server, file = serving
    with connect(server) as silent, connect(server) as drips:
        started = time.monotonic()
        silent.sendall(silent.request(file.id)[:20])
        data = iter(drips.request(file.id))
        try:
            while time.monotonic() - started < 4:
                drips.sendall(bytes([next(data)]))
                time.sleep(0.05)
        except OSError:
            pass
        assert time.monotonic() - started < 4, "the server keeps the slow connection too long"
        assert ends(silent)
    assert_serves(server, file)


def test_who_takes_nothing_is_left_alone_and_others_are_served(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    """Clients that do not receive their answers must not delay other clients. In this test, there
    are more such clients than server threads. Each answer is larger than the socket buffers."""
    stall_s = sized(1.2, 2.0)
    server = server_factory(threads=2, stall_s=stall_s)
    large, small = offer(bytes(64 << 20), 1), offer(CONTENT, 2).share(server)
    large.share(server, block=4 << 20)
    stuck = [connect(server) for _ in range(6)]
    try:
        for connection in stuck:
            connection.sendall(b"".join(connection.request(large.id) for _ in range(8)))
        started = time.monotonic()
        for _ in range(20):
            assert_serves(server, small)
        assert time.monotonic() - started < stall_s
        wait_until(lambda: server.counts()["dropped"] >= len(stuck))
    finally:
        for connection in stuck:
            connection.close()


def test_no_more_connections_than_there_may_be(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    """A server that has as many busy connections as allowed must refuse another connection."""
    server = server_factory(connections=3)
    large, file = offer(bytes(64 << 20), 1), offer(CONTENT, 2).share(server)
    large.share(server, block=4 << 20)
    held = [connect(server) for _ in range(3)]
    try:
        # A connection stays busy, because its answer is larger than the socket buffers.
        for connection in held:
            connection.sendall(connection.request(large.id))
            assert connection.recv(1)
        assert fetch(peer_of(server), file.id)[0] == PeerStatus.REFUSED
    finally:
        for connection in held:
            connection.close()
    wait_until(lambda: not server.counts()["connections"])
    assert_serves(server, file)


def test_the_longest_idle_connection_makes_room(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    server = server_factory(connections=3)
    file = offer(CONTENT).share(server)
    held = [connect(server) for _ in range(3)]
    try:
        wait_until(lambda: server.counts()["connections"] == 3)
        assert fetch(peer_of(server), file.id) == (PeerStatus.OK, CONTENT)
        assert ends(held[0])
        held[2].sendall(held[2].request(file.id))
        assert held[2].recv(24, socket.MSG_WAITALL)
    finally:
        for connection in held:
            connection.close()


def test_who_says_nothing_is_not_kept_for_ever(
    server_factory: Callable[..., FileServer],
) -> None:
    server = server_factory(idle_s=0.2)
    with connect(server) as connection:
        connection.settimeout(8)
        assert ends(connection)
    assert server.counts()["dropped"] == 0


def take(line: Line, n: int) -> bytes:
    data = b""
    while len(data) < n and (more := line.connection.recv(n - len(data))):
        data += more
    return data


@pytest.mark.parametrize("known", [True, False])
def test_small_answers_that_no_buffer_holds_go_on_where_they_stopped(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer], known: bool
) -> None:
    """The server sends a small answer in one call. If the kernel accepts only a part of the answer,
    the server must send the rest later, whether the part ends in a frame or in the content."""
    server = server_factory(stall_s=20.0)
    # Most files are so small that frames make up much of an answer. So the part that the kernel
    # accepts often ends in the middle of a frame.
    sizes = [*range(1, 400), 20_001, SMALL, SMALL + 1]
    files = [offer(os.urandom(size), i + 1) for i, size in enumerate(sizes)]
    for file in files:
        file.share(server, known=known)
    asked = [file for file in files for _ in range(sized(50, 100))]
    with connect(server) as line:
        line.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        take_late(server, line, asked)


def take_late(server: FileServer, line: Line, asked: list[Offer]) -> None:
    """Requests the files, and waits until the socket buffers are full, so that the server has to
    stop sending. Only then receives the answers."""
    line.sendall(b"".join(line.request(file.id, tag=i) for i, file in enumerate(asked)))
    # The server stops sending when the socket buffers are full. Wait for this.
    sent = -1
    while sent != (sent := server.counts()["bytes"]):
        time.sleep(0.1)
    assert sent < sum(file.id.size for file in asked)
    for tag, file in enumerate(asked):
        assert read_frame(line) == (lib.MONARCH_PEER_DATA, tag, file.id.size)
        assert take(line, file.id.size) == file.content
        total = take(line, FRAME_BYTES)
        said = FRAME.pack(lib.MONARCH_PEER_FRAME, lib.MONARCH_PEER_SUM, tag, xxh3(file.content))
        assert total == line.hears.seal(said, content_digest(file.content))
        assert read_frame(line) == (lib.MONARCH_PEER_END, tag, PeerStatus.OK)
    assert server.counts()["bytes"] == sum(file.id.size for file in asked)


def test_answers_of_which_no_byte_is_accepted_are_sent_later(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    """Over a Unix socket, the kernel accepts either all bytes of an answer or none. If it accepts
    none, the server must send the whole answer later."""
    server = server_factory(stall_s=20.0)
    sizes = [200, 20_001, SMALL]
    files = [offer(os.urandom(size), i + 1).share(server) for i, size in enumerate(sizes)]
    with adopted(server) as line:
        take_late(server, line, files * 200)


def test_a_flood_of_requests_takes_no_memory(serving: tuple[FileServer, Offer]) -> None:
    """If a client sends requests faster than the server handles them, the requests must wait in the
    kernel, so that the kernel blocks the client."""
    server, file = serving
    before = psutil.Process().memory_info().rss
    with connect(server) as connection:
        connection.settimeout(0.3)
        flood = b"".join(connection.request(file.id) for _ in range(20000))
        sent = 0
        try:
            while sent < 64 << 20:
                sent += connection.send(flood)
        except OSError:
            pass
        assert psutil.Process().memory_info().rss - before < 32 << 20
    assert_serves(server, file)


@pytest.fixture(scope="module")
def lasting() -> Iterator[tuple[FileServer, Offer]]:
    server = serve(listen("127.0.0.1"), stall_s=0.2)
    with Offer(CONTENT) as file:
        yield server, file.share(server)
    server.close()


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "magic": st.sampled_from([lib.MONARCH_PEER_REQUEST, 0, lib.MONARCH_PEER_FRAME]),
        "source": st.integers(0, 2**32 - 1),
        "tag": st.integers(0, 2**64 - 1),
        "path_hash": st.integers(0, 2**64 - 1),
        "size": st.integers(0, 2**64 - 1),
        "mtime_ns": st.integers(-(2**63), 2**63 - 1),
        "first": st.integers(0, 2**64 - 1) | st.integers(0, 4 * BLOCK),
        "length": st.integers(0, 2**64 - 1) | st.integers(0, 4 * BLOCK),
        "is_awaited": st.integers(0, 2**16 - 1),
        "is_doubted": st.integers(0, 2**16 - 1),
        "is_owner": st.integers(0, 2**16 - 1),
        "unused": st.integers(0, 2**16 - 1),
    },
)


@settings(max_examples=examples(40), deadline=None)
@given(
    said=st.lists(
        st.binary(max_size=200) | FIELDS,
        max_size=6,
    ),
    cut=st.integers(0, 60),
)
def test_random_requests(
    lasting: tuple[FileServer, Offer], said: list[bytes | dict[str, int]], cut: int
) -> None:
    server, file = lasting
    with connect(server) as connection:
        named = FileId(1, 1 << 40 | 7, len(CONTENT), 5)
        whole = b"".join(
            part if isinstance(part, bytes) else connection.request(named, **part) for part in said
        )
        # The server may have closed the connection by now.
        with suppress(OSError):
            connection.sendall(whole[: len(whole) - cut] if cut else whole)
            connection.shutdown(socket.SHUT_WR)
        assert ends(connection)
    assert_serves(server, file)
