"""A node requests only a few large answers from a peer at a time, at most two on each link. Further
requests wait until they are admitted, but not for long."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from peers.offers import NO_KEYS, REQUEST_BYTES, Line, link_of
from support.session import wait_until

from benchmarks.peers.ranges import FileId, fetch_ranges, new_gets
from monarch_py.native import lib
from monarch_py.peers.peer import Peer
from monarch_py.peers.status import PeerStatus, Unreachable

AT_ONCE, TURN_S, LIMIT_S = 4, 0.5, 20
LARGE, SMALL = FileId(0, 1, 1 << 20, 1), FileId(0, 2, (1 << 20) - 1, 1)


class Silent:
    """A transport whose links end at threads that read requests but send no answers. The tests send
    the answers."""

    def __init__(self) -> None:
        # For each request, in order of arrival: path hash, time of arrival [s], connection, tag.
        self.requests: queue.Queue[tuple[int, float, Line, int]] = queue.Queue()
        self._is_over = False
        self._threads: list[threading.Thread] = []
        self.ends: list[Line] = []

    def connect(self, rank: int) -> Any:
        if self._is_over:
            raise Unreachable(PeerStatus.CUT)
        ours, theirs = socket.socketpair()
        self.ends.append(Line(theirs, NO_KEYS))
        self._start(self._read, self.ends[-1])
        return link_of(ours, LIMIT_S * 1000)

    def _read(self, end: Line) -> None:
        while asked := end.recv(REQUEST_BYTES, socket.MSG_WAITALL):
            tag, path_hash = struct.unpack_from("<QQ", asked, 8)
            self.requests.put((path_hash, time.monotonic(), end, tag))

    def _start(self, what: Any, *args: Any) -> None:
        self._threads.append(threading.Thread(target=what, args=args))
        self._threads[-1].start()

    def ask(self, peer: Peer, file: FileId) -> float:
        """Fetches the file in a new thread; returns the time just before the fetch [s]."""
        began = time.monotonic()
        self.ask_for(peer, file)
        return began

    def ask_for(self, peer: Peer, file: FileId) -> queue.Queue[PeerStatus]:
        """Fetches the file in a new thread; returns a queue that gets the status."""
        result: queue.Queue[PeerStatus] = queue.Queue()

        def fetch() -> None:
            room = np.zeros(file.size, dtype=np.uint8)
            gets = new_gets([file])
            gets["memory"] = room.ctypes.data
            fetch_ranges(peer, gets)
            result.put(PeerStatus(int(gets["status"][0])))

        self._start(fetch)
        return result

    def came(self) -> tuple[int, float, Line, int]:
        return self.requests.get(timeout=LIMIT_S)

    def close(self) -> None:
        self._is_over = True
        for end in self.ends:
            end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT_S)
        for end in self.ends:
            end.close()


@pytest.fixture
def made() -> Iterator[tuple[Peer, Silent]]:
    silent = Silent()
    peer = Peer(silent.connect, 1)
    yield peer, silent
    silent.close()
    peer.close()


def test_what_is_one_too_many_waits_for_half_a_second(made: tuple[Peer, Silent]) -> None:
    peer, silent = made
    for _ in range(AT_ONCE):
        silent.ask(peer, LARGE)
        silent.came()
    began = silent.ask(peer, LARGE)
    silent.ask(peer, SMALL)
    hashes, times = zip(*(silent.came()[:2] for _ in range(2)), strict=True)
    assert hashes == (SMALL.path_hash, LARGE.path_hash), "the small request was not sent first"
    assert times[1] - began >= TURN_S


def test_the_turn_of_one_that_ends_is_the_next_ones(made: tuple[Peer, Silent]) -> None:
    peer, silent = made
    asked = []
    for _ in range(AT_ONCE):
        silent.ask(peer, LARGE)
        asked.append(silent.came())
    waits = []
    for _ in range(5):
        began = silent.ask(peer, LARGE)
        _, _, end, tag = asked.pop(0)
        kind, said = lib.MONARCH_PEER_END, PeerStatus.UNKNOWN_FILE
        end.sendall(end.frame(kind, said, tag))
        asked.append(silent.came())
        waits.append(asked[-1][1] - began)
    assert min(waits) < TURN_S


def answer(request: tuple[int, float, Line, int], status: PeerStatus) -> None:
    _, _, end, tag = request
    end.sendall(end.frame(lib.MONARCH_PEER_END, status, tag))


def ends_of(silent: Silent, n: int) -> list[Line]:
    return [silent.came()[2] for _ in range(n)]


def test_two_at_a_time_share_a_link(made: tuple[Peer, Silent]) -> None:
    peer, silent = made
    ends = []
    for file in (LARGE, SMALL, LARGE, LARGE, LARGE):
        silent.ask(peer, file)
        ends += ends_of(silent, 1)
    first, small, second, third, fourth = ends
    assert first is second
    assert third is fourth
    assert len({first, small, third}) == 3


def test_the_link_goes_from_one_to_the_next(made: tuple[Peer, Silent]) -> None:
    peer, silent = made
    results, asked = [], []
    for _ in range(8):
        results.append(silent.ask_for(peer, LARGE))
        asked.append(silent.came())
        if len(asked) == 2:
            answer(asked.pop(0), PeerStatus.UNKNOWN_FILE)
            assert results.pop(0).get(timeout=LIMIT_S) == PeerStatus.UNKNOWN_FILE
    assert len(silent.ends) == 1


def test_who_waits_behind_one_whose_link_breaks_is_told(made: tuple[Peer, Silent]) -> None:
    peer, silent = made
    results, ends = [], []
    for _ in range(2):
        results.append(silent.ask_for(peer, LARGE))
        ends += ends_of(silent, 1)
    assert ends[0] is ends[1]
    ends[0].shutdown(socket.SHUT_RDWR)
    assert results[0].get(timeout=LIMIT_S) == PeerStatus.CUT
    # The second fetch asks over another link, or ends if the peer's pause has begun already.
    wait_until(lambda: not results[1].empty() or not silent.requests.empty())
    status = PeerStatus.CUT
    if not silent.requests.empty():
        again = silent.came()
        assert again[2] is not ends[0]
        status = PeerStatus.UNKNOWN_FILE
        answer(again, status)
    assert results[1].get(timeout=LIMIT_S) == status


def test_hanging_up_ends_who_waits_behind_another(made: tuple[Peer, Silent]) -> None:
    peer, silent = made
    results = [silent.ask_for(peer, LARGE) for _ in range(2)]
    ends_of(silent, 2)
    lib.monarch_peer_hang_up(peer.c)
    assert [result.get(timeout=LIMIT_S) for result in results] == 2 * [PeerStatus.CUT]
