"""Few large answers at a time: whoever comes then waits for its turn, but not for long."""

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
from peers.offers import FRAME, REQUEST_BYTES

from monarch_py.native import lib
from monarch_py.peers import Peer, PeerStatus, Unreachable, new_gets
from monarch_py.peers.ranges import FileId

AT_ONCE, TURN_S, LIMIT_S = 3, 0.5, 20
LARGE, SMALL = FileId(0, 1, 1 << 20, 1), FileId(0, 2, (1 << 20) - 1, 1)


class Silent:
    """A transport whose other ends read requests, and say nothing until they are told to."""

    def __init__(self) -> None:
        # (file's hash, when it came, its connection and tag), in the order in which they come
        self.requests: queue.Queue[tuple[int, float, socket.socket, int]] = queue.Queue()
        self._is_over = False
        self._threads: list[threading.Thread] = []
        self._ends: list[socket.socket] = []

    def connect(self, address: tuple[str, int]) -> Any:
        if self._is_over:
            raise Unreachable(PeerStatus.CUT)
        ours, theirs = socket.socketpair()
        self._ends.append(theirs)
        self._start(self._read, theirs)
        return lib.monarch_peer_link_new(ours.detach(), LIMIT_S * 1000, LIMIT_S * 1000)

    def _read(self, end: socket.socket) -> None:
        while asked := end.recv(REQUEST_BYTES, socket.MSG_WAITALL):
            tag, path_hash = struct.unpack_from("<QQ", asked, 8)
            self.requests.put((path_hash, time.monotonic(), end, tag))

    def _start(self, what: Any, *args: Any) -> None:
        self._threads.append(threading.Thread(target=what, args=args))
        self._threads[-1].start()

    def ask(self, peer: Peer, file: FileId) -> float:
        """In a thread of its own; when that was."""

        def fetch() -> None:
            room = np.zeros(file.size, dtype=np.uint8)
            gets = new_gets([file])
            gets["memory"] = room.ctypes.data
            peer.fetch(gets)

        began = time.monotonic()
        self._start(fetch)
        return began

    def came(self) -> tuple[int, float, socket.socket, int]:
        return self.requests.get(timeout=LIMIT_S)

    def close(self) -> None:
        self._is_over = True
        for end in self._ends:
            end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT_S)
        for end in self._ends:
            end.close()


@pytest.fixture
def made() -> Iterator[tuple[Peer, Silent]]:
    silent = Silent()
    peer = Peer(silent, ("somewhere", 1))
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
    assert hashes == (SMALL.path_hash, LARGE.path_hash), "what is small has to wait"
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
        end.sendall(FRAME.pack(lib.MONARCH_PEER_FRAME, kind, tag, said))
        asked.append(silent.came())
        waits.append(asked[-1][1] - began)
    assert min(waits) < TURN_S
