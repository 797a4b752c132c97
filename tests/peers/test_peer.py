"""Tests of when a node contacts a peer, and of its pauses after a failure of the peer."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from peers.offers import NO_KEYS, REQUEST_BYTES, Line, Offer, fetch, link_of, peer_of, serve, xxh3

from benchmarks.peers.fileserver import FileServer
from benchmarks.peers.ranges import FileId, fetch_ranges, new_gets
from monarch_py.native import lib
from monarch_py.peers.handshake import new_secret
from monarch_py.peers.peer import FIRST_PAUSE_S, LONGEST_PAUSE_S, Peer
from monarch_py.peers.server import listen
from monarch_py.peers.status import PeerStatus, Unreachable

FILE = FileId(0, 1, 10, 1)


# The limit of a wait for the scripted peer [ms]. The peer answers at once, but a busy machine may
# run its thread late.
LIMIT_MS = 400


class Scripted:
    """A transport with scripted outcomes. Its links are real links (csrc/peers/client.c) over
    socket pairs. At the other end of each link, a thread answers the requests, which arrive in
    pairs.

    answers : the next outcomes, in order. Each outcome is the status of a pair of requests, or an
        Unreachable that the next `connect` raises
    meanwhile : called once, after the next pair of requests has arrived and before it is answered
    """

    def __init__(self) -> None:
        self.answers: list[PeerStatus | Unreachable] = []
        self.connects = 0
        self.now = 1000.0
        self.meanwhile: Callable[[], object] | None = None
        self._threads: list[threading.Thread] = []

    def connect(self, rank: int) -> Any:
        self.connects += 1
        if self.answers and isinstance(self.answers[0], Unreachable):
            raise self.answers.pop(0)  # type: ignore[misc]
        ours, theirs = socket.socketpair()
        self._threads.append(threading.Thread(target=self._answer, args=(theirs,)))
        self._threads[-1].start()
        return link_of(ours, LIMIT_MS)

    def _answer(self, connection: socket.socket) -> None:
        line = Line(connection, NO_KEYS)
        with connection, contextlib.suppress(ConnectionError):
            while requests := connection.recv(REQUEST_BYTES, socket.MSG_WAITALL):
                if struct.unpack_from("<Q", requests, 48)[0] == 1:
                    # After a wrong block, the client requests one byte of the block, so that the
                    # peer checks its copy. This request gets no answer.
                    return
                requests += connection.recv(REQUEST_BYTES, socket.MSG_WAITALL)
                if meanwhile := self.meanwhile:
                    self.meanwhile = None
                    meanwhile()
                status = self.answers.pop(0)
                assert isinstance(status, PeerStatus)
                if status == PeerStatus.CUT:
                    return
                tags = [
                    struct.unpack_from("<Q", requests, at * REQUEST_BYTES + 8)[0] for at in (0, 1)
                ]
                if status != PeerStatus.TIMEOUT:  # for a TIMEOUT, no answer is sent
                    connection.sendall(b"".join(self._frames(line, status, tag) for tag in tags))

    @staticmethod
    def _frames(line: Line, status: PeerStatus, tag: int) -> bytes:
        content, kind = bytes(FILE.size), lib.MONARCH_PEER_SUM
        if status not in (PeerStatus.OK, PeerStatus.WRONG_BYTES, PeerStatus.FORGED):
            return line.frame(lib.MONARCH_PEER_END, status, tag)
        data = line.frame(lib.MONARCH_PEER_DATA, FILE.size, tag) + content
        if status == PeerStatus.WRONG_BYTES:
            return data + line.frame(kind, 0, tag, content)
        if status == PeerStatus.FORGED:
            return data[:-1] + b"?" + line.frame(kind, xxh3(content[:-1] + b"?"), tag, content)
        data += line.frame(kind, xxh3(content), tag, content)
        return data + line.frame(lib.MONARCH_PEER_END, status, tag)

    def all_closed(self) -> bool:
        """Waits at most 5 s for each link to close. Returns whether all links are closed."""
        for thread in self._threads:
            thread.join(5)
        return not any(thread.is_alive() for thread in self._threads)


def ask(peer: Peer) -> PeerStatus:
    """Sends two requests and returns the status of the first. The status of the second must be the
    same or CUT."""
    room = np.zeros(2 * FILE.size, dtype=np.uint8)
    gets = new_gets([FILE, FILE])
    gets["memory"] = [room.ctypes.data, room.ctypes.data + FILE.size]
    gets["received"] = 5
    fetch_ranges(peer, gets)
    first, second = map(PeerStatus, gets["status"].tolist())
    assert second in (first, PeerStatus.CUT)
    assert (first == PeerStatus.OK) == (gets["received"][0] == FILE.size)
    return first


@pytest.fixture
def made() -> Iterator[tuple[Peer, Scripted]]:
    scripted = Scripted()
    peer = Peer(scripted.connect, 1, clock=lambda: scripted.now)
    yield peer, scripted
    peer.close()
    assert scripted.all_closed()


def test_a_link_is_kept_for_the_next_fetch(made: tuple[Peer, Scripted]) -> None:
    peer, script = made
    script.answers = [PeerStatus.OK, PeerStatus.UNKNOWN_FILE, PeerStatus.OK]
    assert [ask(peer) for _ in range(3)] == [
        PeerStatus.OK,
        PeerStatus.UNKNOWN_FILE,
        PeerStatus.OK,
    ]
    assert script.connects == 1
    peer.close()
    assert script.all_closed()


def test_a_link_that_was_connected_early_is_used(made: tuple[Peer, Scripted]) -> None:
    peer, script = made
    assert peer.connect_early()
    script.answers = [PeerStatus.OK]
    assert ask(peer) == PeerStatus.OK
    assert script.connects == 1


def test_a_peer_that_is_not_there_early_has_not_failed(made: tuple[Peer, Scripted]) -> None:
    peer, script = made
    script.answers = [Unreachable(PeerStatus.CUT), PeerStatus.OK]
    assert not peer.connect_early()
    assert peer.is_usable and peer.last_failure == PeerStatus.OK
    assert ask(peer) == PeerStatus.OK


@pytest.mark.parametrize(
    "failure",
    [
        PeerStatus.TIMEOUT,
        PeerStatus.WRONG_BYTES,
        PeerStatus.FORGED,
        Unreachable(PeerStatus.REFUSED),
        Unreachable(PeerStatus.OTHER_NODE, 2),
    ],
)
def test_the_pauses_double_up_to_the_longest_and_end_with_success(
    failure: Any, made: tuple[Peer, Scripted]
) -> None:
    peer, script = made
    expected = FIRST_PAUSE_S
    pauses: list[float] = []
    while not pauses or pauses[-1] < LONGEST_PAUSE_S:
        script.answers = [failure]
        assert ask(peer) != PeerStatus.OK
        before = script.connects
        script.now += min(expected, LONGEST_PAUSE_S) - 0.001
        assert not peer.is_usable
        # During the pause, a request fails at once, and no link is connected.
        assert ask(peer) == peer.last_failure != PeerStatus.OK
        assert script.connects == before
        script.now += 0.001
        assert peer.is_usable
        pauses.append(min(expected, LONGEST_PAUSE_S))
        expected *= 2
    assert len(pauses) == 7
    script.answers = [PeerStatus.OK, PeerStatus.TIMEOUT]
    assert ask(peer) == PeerStatus.OK
    assert peer.last_failure == PeerStatus.OK
    ask(peer)
    script.now += FIRST_PAUSE_S
    assert peer.is_usable


@pytest.mark.parametrize("failure", [PeerStatus.TIMEOUT, PeerStatus.WRONG_BYTES, PeerStatus.FORGED])
def test_the_first_success_after_a_failure_is_reported(
    failure: PeerStatus, made: tuple[Peer, Scripted]
) -> None:
    """Failures with no success in between make each pause twice as long as the one before. After a
    success, the next pause must have the first length again, even if nobody asked the peer during
    the previous pause."""
    peer, script = made
    for _ in range(2):
        script.answers = [failure]
        assert ask(peer) != PeerStatus.OK
        script.now += FIRST_PAUSE_S - 0.001
        assert not peer.is_usable
        script.now += 0.002
        assert peer.is_usable
        script.answers = [PeerStatus.OK]
        assert ask(peer) == peer.last_failure == PeerStatus.OK


def test_what_failed_together_makes_one_pause(made: tuple[Peer, Scripted]) -> None:
    """If two fetches are under way when the peer fails, they must cause only one pause. This holds
    even if the second fetch fails only after the pause caused by the first one is over."""
    peer, script = made

    def fails_and_waits() -> None:
        script.answers.insert(0, PeerStatus.WRONG_BYTES)
        assert ask(peer) == PeerStatus.WRONG_BYTES
        assert not peer.is_usable
        script.now += FIRST_PAUSE_S + 1

    script.answers, script.meanwhile = [PeerStatus.TIMEOUT], fails_and_waits
    assert ask(peer) == PeerStatus.TIMEOUT
    assert peer.is_usable
    # A fetch that begins after this failure and fails too counts as a second failure, so the pause
    # after it is longer.
    script.answers = [PeerStatus.TIMEOUT]
    assert ask(peer) == PeerStatus.TIMEOUT
    script.now += 2 * FIRST_PAUSE_S - 0.001
    assert not peer.is_usable
    script.now += 0.001
    assert peer.is_usable


def test_an_idle_link_that_was_closed_is_no_failure(made: tuple[Peer, Scripted]) -> None:
    peer, script = made
    script.answers = [PeerStatus.OK, PeerStatus.CUT, PeerStatus.OK]
    assert ask(peer) == PeerStatus.OK
    assert ask(peer) == PeerStatus.OK
    assert (script.connects, peer.last_failure) == (2, PeerStatus.OK)


def test_a_new_link_that_is_cut_is_one(made: tuple[Peer, Scripted]) -> None:
    peer, script = made
    script.answers = [PeerStatus.CUT]
    assert ask(peer) == PeerStatus.CUT
    assert (script.connects, peer.is_usable) == (1, False)


def test_a_peer_that_restarts_is_used_again(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    first = server_factory()
    file = offer(b"content" * 1000).share(first)
    peer = peer_of(first)
    assert fetch(peer, file.id)[0] == PeerStatus.OK
    port = first.address[1]
    first.close()
    assert fetch(peer, file.id)[0] == PeerStatus.CUT
    second = serve(listen("127.0.0.1", port))
    try:
        file.share(second)
        peer._again_at = 0  # its pause is over
        assert fetch(peer, file.id) == (PeerStatus.OK, file.content)
    finally:
        second.close()
        peer.close()


def test_a_restart_between_two_fetches_is_not_noticed(
    server_factory: Callable[..., FileServer], offer: Callable[..., Offer]
) -> None:
    first = server_factory()
    file, port = offer(b"content").share(first), first.address[1]
    peer = peer_of(first)
    assert fetch(peer, file.id)[0] == PeerStatus.OK
    first.close()
    second = serve(listen("127.0.0.1", port))
    try:
        file.share(second)
        assert fetch(peer, file.id) == (PeerStatus.OK, file.content)
        assert peer.last_failure == PeerStatus.OK
    finally:
        second.close()
        peer.close()


def test_a_secret_is_long_and_new() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(new_secret()) == 32


def test_a_success_that_was_under_way_makes_no_success_of_a_pause(
    made: tuple[Peer, Scripted],
) -> None:
    """While one thread's fetch is under way, another thread's fetch fails, and a pause begins. Then
    the first fetch succeeds. A fetch that is refused because of the pause must still return the
    status of the failure. It gets no bytes, so it must not return OK."""
    peer, script = made
    failed: list[PeerStatus] = []

    def fails() -> None:
        script.answers.insert(0, PeerStatus.WRONG_BYTES)
        failed.append(ask(peer))

    script.answers, script.meanwhile = [PeerStatus.OK], fails
    assert ask(peer) == PeerStatus.OK
    assert failed == [PeerStatus.WRONG_BYTES]
    assert not peer.is_usable
    # The link of the successful fetch still works and is idle, so the next fetch uses it.
    script.answers = [PeerStatus.TIMEOUT]
    assert ask(peer) == PeerStatus.TIMEOUT
    assert ask(peer) == PeerStatus.TIMEOUT
    script.now += FIRST_PAUSE_S
    script.answers = [PeerStatus.OK]
    assert ask(peer) == PeerStatus.OK


def test_a_link_that_was_silent_is_not_tried_again(made: tuple[Peer, Scripted]) -> None:
    peer, script = made
    script.answers = [PeerStatus.OK, PeerStatus.TIMEOUT]
    assert [ask(peer), ask(peer)] == [PeerStatus.OK, PeerStatus.TIMEOUT]
    assert script.connects == 1


def test_a_server_is_closed_under_those_who_ask_it(
    server_factory: Callable[..., FileServer],
) -> None:
    for _ in range(20):
        server = server_factory()
        ended: list[str] = []

        def look(server: FileServer = server, ended: list[str] = ended) -> None:
            try:
                while True:
                    server.counts()
                    len(server)
            except ValueError as error:
                ended.append(str(error))

        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        server.close()
        for thread in threads:
            thread.join(10)
        assert ended == ["the server is closed"] * 3
