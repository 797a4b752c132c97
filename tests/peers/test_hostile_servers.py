"""Whatever a server answers, a fetch must end in time with a status, and accept no wrong byte."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import offers
from peers.offers import BLOCK, FRAME_BYTES, SEAL_BYTES, Line, fetch, let_in, party, xxh3
from support.draws import examples

from benchmarks.peers.ranges import FileId
from monarch_py.native import lib
from monarch_py.peers.handshake import Greeter
from monarch_py.peers.peer import Peer
from monarch_py.peers.status import PeerStatus, Unreachable
from monarch_py.peers.tcp import connect_link

DATA, SUM, END = lib.MONARCH_PEER_DATA, lib.MONARCH_PEER_SUM, lib.MONARCH_PEER_END
CONTENT = os.urandom(2 * BLOCK)
FILE = FileId(0, 1, len(CONTENT), 1)
FIRST, SECOND = CONTENT[:BLOCK], CONTENT[BLOCK:]
LIMIT_S = 0.25
FORGED = PeerStatus.FORGED

# A part of an answer: bytes, or a function that makes the bytes. The function gets the connection,
# because valid seals depend on what was sent over the connection before.
Part = bytes | Callable[[Line], bytes]


class Script:
    """A server that authenticates one client after the other, and passes each connection to
    `play`."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.play: Callable[[Line], None] = lambda connection: None
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            connection, _ = self.listener.accept()
            # The client may close the connection early.
            with connection, suppress(OSError):
                connection.settimeout(5)
                self.play(let_in(connection, party(self.address)))

    def peer(self) -> Peer:
        me = party(self.address, 1)
        link = partial(connect_link, me, connect_s=2, first_byte_s=LIMIT_S, between_s=LIMIT_S)
        return Peer(link, 0)

    def close(self) -> None:
        self._is_over = True
        socket.create_connection(self.address).close()
        self._thread.join()
        self.listener.close()


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    made = Script()
    yield made
    made.close()


def says(*parts: Part, then: float = 0) -> Callable[[Line], None]:
    """Returns a function for `play`. The function receives a request and sends the parts.

    then : how long the function waits after that for the client to close the connection [s]
    """

    def play(connection: Line) -> None:
        connection.recv(4096)
        said = [part if isinstance(part, bytes) else part(connection) for part in parts]
        connection.sendall(b"".join(said))
        connection.settimeout(then or 5)
        if then:
            connection.recv(1)

    return play


def frame(kind: int, value: int, content: bytes = b"", tag: int = 0) -> Part:
    return lambda line: line.frame(kind, value, tag, content)


def right(part: bytes) -> Part:
    return lambda line: line.right(part)


def cut(part: Part, size: int) -> Part:
    return lambda line: (part if isinstance(part, bytes) else part(line))[:size]


RIGHT_FIRST, RIGHT_SECOND = right(FIRST), right(SECOND)


def test_a_right_answer_from_the_script(script: Script) -> None:
    script.play = says(right(FIRST), right(SECOND), frame(END, 0))
    assert fetch(script.peer(), FILE) == (PeerStatus.OK, CONTENT)


def flipped(part: bytes, at: int = 1000) -> bytes:
    """Returns `part` with a flipped bit in the byte at `at`; a negative `at` counts from the
    end."""
    at %= len(part)
    return part[:at] + bytes([part[at] ^ 1]) + part[at + 1 :]


def forged_content(line: Line) -> bytes:
    """Returns changed bytes with the right XXH3-64 in their SUM frame, but with the seal of the
    original SUM frame."""
    data, forged = line.frame(DATA, BLOCK), flipped(FIRST)
    seal = line.frame(SUM, xxh3(FIRST), 0, FIRST)[-SEAL_BYTES:]
    return data + forged + offers.frame(SUM, xxh3(forged)) + seal


def swapped(line: Line) -> bytes:
    first, second = line.right(FIRST), line.right(SECOND)
    return second + first


def cut_out(line: Line) -> bytes:
    """Returns the second block without the first, but sealed as if it came after the first."""
    line.right(FIRST)
    return line.right(SECOND)


def again(line: Line) -> bytes:
    first = line.right(FIRST)
    return first + first


def reflected(line: Line) -> bytes:
    """Returns a frame that is sealed with the client's key, not with the server's."""
    return line.hears.seal(offers.frame(END, PeerStatus.UNKNOWN_FILE))


WRONG: dict[str, tuple[list[Part], PeerStatus, bytes]] = {
    "nothing": ([], PeerStatus.CUT, b""),
    "half a frame": ([cut(frame(DATA, 5), 10)], PeerStatus.CUT, b""),
    "a cut in the bytes": (
        [right(FIRST), frame(DATA, BLOCK), SECOND[:9]],
        PeerStatus.CUT,
        FIRST,
    ),
    "no end": ([right(FIRST), right(SECOND)], PeerStatus.CUT, CONTENT),
    "an end too early": ([right(FIRST), frame(END, 0)], PeerStatus.CUT, FIRST),
    "an end before the sum": ([frame(DATA, BLOCK), FIRST, frame(END, 0)], PeerStatus.CUT, b""),
    "bytes nobody asked for": ([right(CONTENT), right(b"x")], PeerStatus.CUT, CONTENT),
    "more than the range": ([frame(DATA, 2**64 - 1), CONTENT * 2], PeerStatus.CUT, b""),
    "a frame of no bytes": ([frame(DATA, 0)], PeerStatus.CUT, b""),
    "a wrong sum": (
        [frame(DATA, BLOCK), FIRST, frame(SUM, 1, FIRST)],
        PeerStatus.WRONG_BYTES,
        b"",
    ),
    "a sum of nothing": ([frame(SUM, xxh3(b""))], PeerStatus.WRONG_BYTES, b""),
    "another answer": ([frame(END, 3, tag=5)], PeerStatus.CUT, b""),
    "an unknown frame": ([frame(9, 0)], PeerStatus.CUT, b""),
    "an unknown status": ([frame(END, 99)], PeerStatus.CUT, b""),
    "our own fault": ([frame(END, PeerStatus.NO_ROOM)], PeerStatus.CUT, b""),
    "another language": (
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n"],
        PeerStatus.CUT,
        b"",
    ),
    "a frame without a seal": (
        [offers.frame(END, 2) + bytes(SEAL_BYTES)],
        PeerStatus.FORGED,
        b"",
    ),
    "bytes with a flipped bit": (
        [lambda line: flipped(line.right(FIRST), FRAME_BYTES + 5)],
        PeerStatus.WRONG_BYTES,
        b"",
    ),
    "a seal with a flipped bit": ([lambda line: flipped(line.right(FIRST), -1)], FORGED, b""),
    "a length with a flipped bit": ([lambda line: flipped(line.right(FIRST), 16)], FORGED, b""),
    "forged bytes with their sum": ([forged_content], FORGED, b""),
    "frames in another order": ([swapped], FORGED, b""),
    "a block cut out": ([cut_out], FORGED, b""),
    "an answer again": ([again, right(SECOND), frame(END, 0)], FORGED, FIRST),
    "a frame sent back": ([reflected], FORGED, b""),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_answer(script: Script, what: str) -> None:
    said, status, counts = WRONG[what]
    script.play = says(*said)
    peer = script.peer()
    assert fetch(peer, FILE) == (status, counts)
    assert not peer.is_usable
    assert peer.last_failure == status


@pytest.mark.parametrize(
    "said",
    [
        [],
        [cut(frame(DATA, BLOCK), 3)],
        [frame(DATA, BLOCK)],
        [RIGHT_FIRST, frame(DATA, BLOCK), b"x"],
    ],
    ids=["silent", "in a frame", "before the bytes", "in the bytes"],
)
def test_a_peer_that_stops_is_waited_for_within_the_bound(script: Script, said: list[Part]) -> None:
    script.play = says(*said, then=20)
    started = time.monotonic()
    status, part = fetch(script.peer(), FILE)
    assert status == PeerStatus.TIMEOUT
    assert part == (FIRST if RIGHT_FIRST in said else b"")
    assert LIMIT_S * 0.9 <= time.monotonic() - started < 10


@pytest.mark.parametrize("frames", [False, True], ids=["bytes", "frames"])
def test_a_peer_that_drips_gains_no_time(script: Script, frames: bool) -> None:
    def play(connection: Line) -> None:
        connection.recv(4096)
        if not frames:
            connection.sendall(connection.frame(DATA, BLOCK))
        for at in range(BLOCK):
            part = CONTENT[at : at + 1]
            connection.sendall(connection.right(part) if frames else part)
            time.sleep(0.02)

    script.play = play
    started = time.monotonic()
    assert fetch(script.peer(), FILE)[0] == PeerStatus.TIMEOUT
    # If each frame comes in time, only the limit for the whole answer ends the fetch. This limit is
    # long enough for a peer that sends 128 KiB/s (client.c).
    limit = LIMIT_S * 2 + len(CONTENT) / (128 << 10) if frames else LIMIT_S
    # To send all bytes, the server would need more than 1,000 s.
    assert time.monotonic() - started < limit + 10


def test_a_server_that_cannot_prove_itself_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def play() -> None:
            connection, _ = listener.accept()
            with connection:
                greeter = Greeter(party(listener.getsockname(), 0, bytes(32)))
                connection.sendall(greeter.hello)
                connection.recv(4096)
                connection.sendall(bytes(32))

        thread = threading.Thread(target=play)
        thread.start()
        with pytest.raises(Unreachable, match="REFUSED"):
            connect_link(party(listener.getsockname(), 1), 0)
        thread.join()


@pytest.mark.parametrize("said", [b"", b"MON", b"SSH-2.0-OpenSSH_9.6\r\n" + bytes(60)])
def test_what_is_no_server_of_ours(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        started = time.monotonic()

        def play() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(said)
                connection.settimeout(20)
                connection.recv(4096)

        thread = threading.Thread(target=play)
        thread.start()
        with pytest.raises(Unreachable, match="REFUSED" if len(said) > 40 else "TIMEOUT"):
            connect_link(party(listener.getsockname(), 1), 0, connect_s=0.3)
        thread.join()
        assert time.monotonic() - started < 10


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(Unreachable, match="CUT"):
        connect_link(party(address, 1), 0)


PIECES = st.one_of(
    st.binary(max_size=40),
    st.builds(
        frame,
        st.integers(0, 4),
        st.integers(0, 2**64 - 1) | st.integers(0, 2 * BLOCK),
        tag=st.integers(0, 1),
    ),
    st.sampled_from([RIGHT_FIRST, RIGHT_SECOND, frame(END, 0), FIRST[:100]]),
)


@settings(max_examples=examples(40), deadline=None)
@given(parts=st.lists(PIECES, max_size=6))
def test_random_answers(script: Script, parts: list[Part]) -> None:
    script.play = says(*parts)
    status, part = fetch(script.peer(), FILE)
    # Only the two correct blocks have correct checksums, so no other bytes may be accepted.
    blocks = {RIGHT_FIRST: FIRST, RIGHT_SECOND: SECOND}
    sent = b"".join(blocks.get(p, b"") for p in parts if not isinstance(p, bytes))
    assert sent.startswith(part)
    assert (status == PeerStatus.OK) <= (len(part) == len(CONTENT))
