"""When a peer is asked, and when it is left alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import pytest
from peers.offers import SECRET, Offer, fetch, peer_of

from monarch_py.peers import Peer, PeerServer, PeerStatus, Unreachable, listen, new_gets
from monarch_py.peers.handshake import new_secret
from monarch_py.peers.peer import FIRST_PAUSE_S, LONGEST_PAUSE_S
from monarch_py.peers.ranges import FileId

FILE = FileId(0, 1, 10, 1)


class Scripted:
    """A transport whose links give what `answers` says next: a status, or an Unreachable."""

    def __init__(self) -> None:
        self.answers: list[PeerStatus | Unreachable] = []
        self.connects = self.closed = 0
        self.now = 1000.0

    def connect(self, address: tuple[str, int]) -> Scripted:
        self.connects += 1
        if self.answers and isinstance(self.answers[0], Unreachable):
            raise self.answers.pop(0)  # type: ignore[misc]
        return self

    def fetch(self, gets: npt.NDArray[Any]) -> bool:
        status = self.answers.pop(0)
        gets["status"] = status
        self.answered = status != PeerStatus.CUT
        return status not in (PeerStatus.CUT, PeerStatus.TIMEOUT, PeerStatus.WRONG_BYTES)

    answered = False

    def close(self) -> None:
        self.closed += 1


def ask(peer: Peer) -> PeerStatus:
    gets = new_gets([FILE, FILE])
    gets["received"] = 5
    peer.fetch(gets)
    assert gets["status"][0] == gets["status"][1]
    return PeerStatus(gets["status"][0])


def make() -> tuple[Peer, Scripted]:
    scripted = Scripted()
    return Peer(scripted, ("somewhere", 1), clock=lambda: scripted.now), scripted


def test_a_link_is_kept_for_the_next_fetch() -> None:
    peer, script = make()
    script.answers = [PeerStatus.OK, PeerStatus.UNKNOWN_FILE, PeerStatus.OK]
    assert [ask(peer) for _ in range(3)] == [
        PeerStatus.OK,
        PeerStatus.UNKNOWN_FILE,
        PeerStatus.OK,
    ]
    assert script.connects == 1
    peer.close()
    assert script.closed == 1


@pytest.mark.parametrize(
    "failure", [PeerStatus.TIMEOUT, PeerStatus.WRONG_BYTES, Unreachable(PeerStatus.REFUSED)]
)
def test_the_pauses_double_up_to_the_longest_and_end_with_success(failure: Any) -> None:
    peer, script = make()
    expected = FIRST_PAUSE_S
    pauses: list[float] = []
    while not pauses or pauses[-1] < LONGEST_PAUSE_S:
        script.answers = [failure]
        assert ask(peer) != PeerStatus.OK
        before = script.connects
        script.now += min(expected, LONGEST_PAUSE_S) - 0.001
        assert not peer.is_usable
        assert ask(peer) == peer.last_failure != PeerStatus.OK  # at once, and nobody is asked
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


def test_an_idle_link_that_was_closed_is_no_failure() -> None:
    peer, script = make()
    script.answers = [PeerStatus.OK, PeerStatus.CUT, PeerStatus.OK]
    assert ask(peer) == PeerStatus.OK
    assert ask(peer) == PeerStatus.OK
    assert (script.connects, peer.last_failure) == (2, PeerStatus.OK)


def test_a_new_link_that_is_cut_is_one() -> None:
    peer, script = make()
    script.answers = [PeerStatus.CUT]
    assert ask(peer) == PeerStatus.CUT
    assert (script.connects, peer.is_usable) == (1, False)


def test_a_peer_that_restarts_is_used_again(
    server_factory: Callable[..., PeerServer], offer: Callable[..., Offer]
) -> None:
    first = server_factory()
    file = offer(b"content" * 1000).share(first)
    peer = peer_of(first)
    assert fetch(peer, file.id)[0] == PeerStatus.OK
    port = first.address[1]
    first.close()
    assert fetch(peer, file.id)[0] == PeerStatus.CUT
    second = PeerServer(SECRET, listen("127.0.0.1", port))
    try:
        file.share(second)
        peer._again_at = 0  # its pause is over
        assert fetch(peer, file.id) == (PeerStatus.OK, file.content)
    finally:
        second.close()
        peer.close()


def test_a_restart_between_two_fetches_is_not_noticed(
    server_factory: Callable[..., PeerServer], offer: Callable[..., Offer]
) -> None:
    first = server_factory()
    file, port = offer(b"content").share(first), first.address[1]
    peer = peer_of(first)
    assert fetch(peer, file.id)[0] == PeerStatus.OK
    first.close()
    second = PeerServer(SECRET, listen("127.0.0.1", port))
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


def test_a_success_that_was_under_way_makes_no_success_of_a_pause() -> None:
    """One thread fails while another one's fetch goes on and succeeds: whoever asks in the pause
    gets the failure, never OK without a byte."""
    peer, script = make()

    class Slow(Scripted):
        """Its fetch succeeds, and meanwhile another thread's fails."""

        def fetch(self, gets: npt.NDArray[Any]) -> bool:
            script.answers = [PeerStatus.WRONG_BYTES]
            script.connects += 1
            assert ask(peer) == PeerStatus.WRONG_BYTES
            gets["status"] = PeerStatus.OK
            return True

    peer._idle.append(Slow())
    # The thread that fails takes a link of its own: the idle one is in use.
    assert ask(peer) == PeerStatus.OK
    assert not peer.is_usable
    assert ask(peer) == PeerStatus.WRONG_BYTES
    script.now += FIRST_PAUSE_S
    script.answers = [PeerStatus.OK]
    assert ask(peer) == PeerStatus.OK


def test_a_link_that_was_silent_is_not_tried_again() -> None:
    peer, script = make()
    script.answers = [PeerStatus.OK, PeerStatus.TIMEOUT]
    assert [ask(peer), ask(peer)] == [PeerStatus.OK, PeerStatus.TIMEOUT]
    assert script.connects == 1


def test_links_in_use_at_the_end_are_closed() -> None:
    peer, _ = make()

    class Last(Scripted):
        def fetch(self, gets: npt.NDArray[Any]) -> bool:
            peer.close()
            gets["status"] = PeerStatus.OK
            return True

    link = Last()
    peer._idle.append(link)
    assert ask(peer) == PeerStatus.OK
    assert link.closed == 1

    class Refusing(Scripted):
        def fetch(self, gets: npt.NDArray[Any]) -> bool:
            raise TypeError("no array of ranges")

    bad = Refusing()
    peer._idle.append(bad)
    with pytest.raises(TypeError):
        ask(peer)
    assert bad.closed == 1


def test_a_server_is_closed_under_those_who_ask_it(
    server_factory: Callable[..., PeerServer],
) -> None:
    for _ in range(20):
        server = server_factory()
        ended: list[str] = []

        def look(server: PeerServer = server, ended: list[str] = ended) -> None:
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
