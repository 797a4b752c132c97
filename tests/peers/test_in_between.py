"""Somebody between two nodes sees and changes what they send. Neither node may accept a message
that was changed, or that is repeated on another connection."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from peers.offers import BLOCK, FRAME_BYTES, NOWHERE, Offer, fetch, party, peer_at

from benchmarks.peers.fileserver import FileServer
from monarch_py.peers.handshake import ANSWER_BYTES, HELLO_BYTES, REPLY_BYTES, Party, Purpose
from monarch_py.peers.queries import ask
from monarch_py.peers.server import listen
from monarch_py.peers.status import PeerStatus, Unreachable

CONTENT = os.urandom(2 * BLOCK + 17)
WORDS = b"status"
# How much a fetch of the file sends in each direction [bytes]. The answer has three blocks, each
# with a DATA and a SUM frame, and one END frame.
ASKED = ANSWER_BYTES + 80
ANSWERED = HELLO_BYTES + REPLY_BYTES + 7 * FRAME_BYTES + len(CONTENT)
LIMIT_S = 0.25

Change = Callable[[bytes, int], bytes]


def as_it_is(data: bytes, _: int) -> bytes:
    return data


def flip(at: int) -> Change:
    """Returns a function that flips a bit of the byte at offset `at` in what one side sends. The
    offset is counted from the first byte on the connection."""

    def change(data: bytes, begins: int) -> bytes:
        place = at - begins
        if not 0 <= place < len(data):
            return data
        return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]

    return change


def cut(size: int) -> Change:
    """Returns a function that changes the bytes that one side sends: it keeps only the first `size`
    of them."""
    return lambda data, begins: data[: max(0, size - begins)]


class Between:
    """A relay that changes what both sides send. It handles one connection after the other."""

    def __init__(self) -> None:
        self.listener = listen("127.0.0.1")
        self.address: tuple[str, int] = self.listener.getsockname()[:2]
        self.to: tuple[str, int] = NOWHERE
        self.asks: Change = as_it_is
        self.answers: Change = as_it_is
        self.heard = [b"", b""]  # what client and server sent on the last connection
        self._thread = threading.Thread(target=self._run)
        self._is_over = False
        self._thread.start()

    def _run(self) -> None:
        while True:
            client, _ = self.listener.accept()
            with client:
                if self._is_over:
                    return
                # This thread handles each connection to its end, so `close` waits for all of them.
                with suppress(OSError), socket.create_connection(self.to) as server:
                    self._pass_on(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        self.heard = [b"", b""]
        answering = threading.Thread(target=self._pump, args=(server, client, 1, self.answers))
        answering.start()
        self._pump(client, server, 0, self.asks)
        answering.join()

    def _pump(self, of: socket.socket, to: socket.socket, way: int, change: Change) -> None:
        with suppress(OSError):
            while data := of.recv(1 << 16):
                begins = len(self.heard[way])
                self.heard[way] += data
                to.sendall(change(data, begins))
        for end in (of, to):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._is_over = True
        socket.create_connection(self.address).close()
        self._thread.join()
        self.listener.close()


@pytest.fixture(scope="module")
def between() -> Iterator[tuple[Between, Offer]]:
    """Yields a relay to a server, and a file of the server. In the list of nodes, the server has
    the relay's address."""
    made = Between()
    server = FileServer(party(made.address), listen("127.0.0.1"), status=lambda: WORDS)
    made.to = server.address
    with Offer(CONTENT) as file:
        yield made, file.share(server)
    made.close()
    server.close()


def get(between: Between, file: Offer, asks: Change, answers: Change) -> tuple[PeerStatus, bytes]:
    between.asks, between.answers = asks, answers
    peer = peer_at(between.address, connect_s=2, first_byte_s=LIMIT_S, between_s=LIMIT_S)
    try:
        return fetch(peer, file.id)
    finally:
        peer.close()
        between.asks = between.answers = as_it_is


def test_what_is_passed_on_unchanged_is_taken(between: tuple[Between, Offer]) -> None:
    way, file = between
    assert get(way, file, as_it_is, as_it_is) == (PeerStatus.OK, CONTENT)
    assert list(map(len, way.heard)) == [ASKED, ANSWERED]
    assert CONTENT[:1000] in way.heard[1], "nothing is encrypted, and docs/peers.md says so"


@pytest.mark.parametrize("at", range(0, ASKED, 9))
def test_no_bit_of_a_question_can_be_another(between: tuple[Between, Offer], at: int) -> None:
    status, part = get(*between, flip(at), as_it_is)
    assert (status == PeerStatus.OK, part) == (False, b"")


FIRST_FRAMES = HELLO_BYTES + REPLY_BYTES
LAST_FRAMES = ANSWERED - 3 * FRAME_BYTES - 17


@pytest.mark.parametrize(
    "at",
    [
        *range(0, FIRST_FRAMES + FRAME_BYTES, 9),
        FIRST_FRAMES + FRAME_BYTES + 5000,
        *range(LAST_FRAMES, ANSWERED, 11),
    ],
)
def test_no_bit_of_an_answer_can_be_another(between: tuple[Between, Offer], at: int) -> None:
    status, part = get(*between, as_it_is, flip(at))
    assert status != PeerStatus.OK
    assert CONTENT.startswith(part)


def test_what_was_said_once_is_worth_nothing(between: tuple[Between, Offer]) -> None:
    way, file = between
    assert get(way, file, as_it_is, as_it_is)[0] == PeerStatus.OK
    asked, answered = way.heard
    with socket.create_connection(way.to, timeout=5) as again:
        hello = again.recv(HELLO_BYTES, socket.MSG_WAITALL)
        again.sendall(asked)
        with suppress(ConnectionResetError):
            assert again.recv(1) == b""
    assert hello != answered[:HELLO_BYTES]
    status, part = get(way, file, as_it_is, lambda data, at: answered[at : at + len(data)])
    assert (status, part) == (PeerStatus.REFUSED, b"")


def test_who_has_another_address_is_not_the_one_that_is_meant(
    between: tuple[Between, Offer],
) -> None:
    """A server must refuse a client whose list of nodes has another address for the server's rank,
    even if both have the same secret. This happens if the nodes were started with different lists
    of nodes."""
    way, file = between
    peer = peer_at(way.to)
    assert fetch(peer, file.id) == (PeerStatus.REFUSED, b"")
    peer.close()


def test_nobody_speaks_for_another_rank(between: tuple[Between, Offer]) -> None:
    way, _ = between
    # The address of rank 2 leads to rank 0.
    addresses = (way.address, NOWHERE, way.address)
    with pytest.raises(Unreachable) as caught:
        ask(Party(party(NOWHERE).secret, 1, addresses), 2, 2.0, Purpose.STATUS)
    # This server knows no rank 2, so it sends no reply. In tests/nodes/test_impostor.py, the server
    # knows the rank.
    assert caught.value.status == PeerStatus.REFUSED


def test_words_cannot_be_changed_or_cut(between: tuple[Between, Offer]) -> None:
    way, _ = between
    me, length = party(way.address, 1), 8 + len(WORDS) + 32
    first = HELLO_BYTES + REPLY_BYTES
    assert ask(me, 0, 2.0, Purpose.STATUS) == WORDS
    for at in range(first, first + length, 5):
        way.answers = flip(at)
        with pytest.raises(Unreachable):
            ask(me, 0, 0.5, Purpose.STATUS)
    for kept in range(first + 8, first + length, 7):
        way.answers = cut(kept)
        with pytest.raises(Unreachable):
            ask(me, 0, 0.2, Purpose.STATUS)
    way.answers = as_it_is
    assert ask(me, 0, 2.0, Purpose.STATUS) == WORDS
