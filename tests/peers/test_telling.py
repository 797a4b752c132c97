"""Queries that one daemon sends to another, apart from requests for files."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from peers.offers import SECRET, Offer, assert_serves, bare, ends, party
from support.session import wait_until

from benchmarks.peers.fileserver import FileServer
from monarch_py.peers.handshake import ANSWER_BYTES, HELLO_BYTES, Purpose, introduce, new_secret
from monarch_py.peers.queries import MOST_AT_A_TIME, MOST_BYTES, ask
from monarch_py.peers.status import PeerStatus, Unreachable
from monarch_py.peers.tcp import connected

LIMIT_S = 2.0


def status_of(server: FileServer, limit_s: float = LIMIT_S, secret: bytes = SECRET) -> bytes:
    return ask(party(server.address, 1, secret), 0, limit_s, Purpose.STATUS)


def refusal(server: FileServer, **how: object) -> PeerStatus:
    with pytest.raises(Unreachable) as caught:
        status_of(server, **how)  # type: ignore[arg-type]
    return caught.value.status


@pytest.mark.parametrize("size", [1, 1 << 20, MOST_BYTES - 1])
def test_the_answer_comes_whole(server_factory: Callable[..., FileServer], size: int) -> None:
    words = bytes(range(256)) * (size // 256 + 1)
    server = server_factory(status=lambda: words[:size])
    assert status_of(server) == words[:size]
    # `accepted` counts only connections that request files. The server passes these connections to
    # its C code, but answers queries in Python.
    assert server.counts()["accepted"] == 0


def test_more_than_an_answer_has_is_not_listened_to(
    server_factory: Callable[..., FileServer],
) -> None:
    server = server_factory(status=lambda: bytes(MOST_BYTES + 1))
    assert refusal(server) == PeerStatus.REFUSED


def test_without_the_secret_nothing_is_told(server_factory: Callable[..., FileServer]) -> None:
    asked = threading.Event()

    def answer() -> bytes:
        asked.set()
        return b"status"

    server = server_factory(status=answer)
    assert refusal(server, secret=new_secret()) == PeerStatus.REFUSED
    assert not asked.is_set()
    assert status_of(server) == b"status"
    assert asked.is_set()


def test_a_purpose_that_is_not_known_closes(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    server = server_factory()
    file = offer(b"content").share(server)
    later: Any = SimpleNamespace(value=b"?")  # a purpose that a later version might add
    with bare(server) as connection:
        introduce(connection, party(server.address, 1), 0, time.monotonic() + 5, later)
        assert ends(connection)
    assert_serves(server, file)


def test_nobody_in_between_changes_what_is_asked_for(
    server_factory: Callable[..., FileServer],
) -> None:
    server = server_factory(status=lambda: b"status")

    def relay(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client, bare(server) as real:
            client.sendall(real.recv(HELLO_BYTES, socket.MSG_WAITALL))
            said = client.recv(ANSWER_BYTES, socket.MSG_WAITALL)
            at = HELLO_BYTES
            assert said[at : at + 1] == Purpose.FILES.value
            real.sendall(said[:at] + Purpose.STATUS.value + said[at + 1 :])
            assert ends(real)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=relay, args=(listener,))
        thread.start()
        with pytest.raises(Unreachable), socket.create_connection(listener.getsockname()) as mine:
            introduce(mine, party(server.address, 1), 0, time.monotonic() + 5)
        thread.join()


def test_an_answer_that_takes_long_keeps_nobody_waiting(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    go, begun = threading.Event(), threading.Semaphore(0)

    def answer() -> bytes:
        begun.release()
        go.wait(30)
        return b"at last"

    server = server_factory(status=answer)
    file = offer(b"content").share(server)
    me = party(server.address, 1)
    with ExitStack() as stack:
        stack.callback(go.set)
        each = (connected(me, 0, 5, Purpose.STATUS) for _ in range(MOST_AT_A_TIME))
        waiting = [stack.enter_context(one)[0] for one in each]
        for _ in waiting:
            assert begun.acquire(timeout=10)
        assert_serves(server, file)
        # MOST_AT_A_TIME clients wait for their answers. The server disconnects any further client,
        # and sends the waiting clients their answers when the answers are ready.
        assert refusal(server) == PeerStatus.TIMEOUT
        go.set()
        for connection in waiting:
            connection.settimeout(10)
            assert b"at last" in connection.recv(100)
            assert connection.recv(100) == b""
        wait_until(lambda: status_of(server) == b"at last")


def test_who_waits_for_an_answer_waits_for_a_time(
    server_factory: Callable[..., FileServer],
) -> None:
    go = threading.Event()
    server = server_factory(status=lambda: b"x" if go.wait(30) else b"")
    try:
        started = time.monotonic()
        assert refusal(server, limit_s=0.5) == PeerStatus.TIMEOUT
        assert 0.4 < time.monotonic() - started < 15
    finally:
        go.set()


def test_an_answer_that_fails_is_none(
    server_factory: Callable[..., FileServer], caplog: pytest.LogCaptureFixture
) -> None:
    def answer() -> bytes:
        raise RuntimeError("no status today")

    server = server_factory(status=answer)
    assert refusal(server) == PeerStatus.TIMEOUT
    wait_until(lambda: "no status today" in caplog.text)
