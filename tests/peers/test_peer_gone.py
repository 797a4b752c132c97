"""Tests fetches from a peer whose process is killed, suspended, or restarted without its files."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from peers.holder import content
from peers.offers import fetch, peer_at
from support.draws import sized

from benchmarks.peers.ranges import FileId
from monarch_py.peers.peer import Peer
from monarch_py.peers.status import PeerStatus
from monarch_py.peers.tcp import BETWEEN_LIMIT_S, CONNECT_LIMIT_S, FIRST_BYTE_LIMIT_S

SIZE, SEED = sized(16, 48) << 20, 3
FILE = FileId(source=1, path_hash=1 << 40 | 7, size=SIZE, mtime_ns=5)
SMALL = replace(FILE, size=64 << 10)
# A reader may wait at most this long for a peer [s]. The sum of a link's time limits must be less.
WAIT_LIMIT_S = 2.0

Start = Callable[..., subprocess.Popen[str]]


def port_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


@pytest.fixture
def start() -> Iterator[Start]:
    """Yields a function that runs holder.py: start(port=0, size=SIZE). The processes end with the
    test."""
    with ExitStack() as stack:

        def make(port: int = 0, size: int = SIZE) -> subprocess.Popen[str]:
            program = Path(__file__).with_name("holder.py")
            words = [sys.executable, str(program), str(port), str(size), str(SEED)]
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )

            def end() -> None:
                process.kill()
                process.communicate()

            stack.callback(end)
            return process

        yield make


def interrupted(
    peer: Peer, process: subprocess.Popen[str], number: int
) -> tuple[PeerStatus, bytes, float]:
    """Fetches the file from the peer again and again. During these fetches, sends the signal
    `number` to the peer's process. When a fetch fails, returns its status, the bytes that were
    accepted, and the time since the signal [s]."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        process.send_signal(number)

    assert fetch(peer, FILE)[0] == PeerStatus.OK
    timer = threading.Timer(0.15, send)
    timer.start()
    status = PeerStatus.OK
    while status == PeerStatus.OK:
        status, part = fetch(peer, FILE)
    timer.join()
    return status, part, time.monotonic() - sent[0]


def test_the_bounds_add_up_to_less_than_a_reader_may_wait() -> None:
    assert CONNECT_LIMIT_S + FIRST_BYTE_LIMIT_S < WAIT_LIMIT_S
    assert FIRST_BYTE_LIMIT_S + BETWEEN_LIMIT_S < WAIT_LIMIT_S


def test_a_peer_that_is_killed_and_comes_back_empty(start: Start) -> None:
    expected, first = content(SIZE, SEED), start()
    port = port_of(first)
    peer = peer_at(("127.0.0.1", port))
    status, part, seconds = interrupted(peer, first, signal.SIGKILL)
    # The status is REFUSED if the process was killed during the handshake of a new link.
    assert status in (PeerStatus.CUT, PeerStatus.REFUSED)
    assert expected.startswith(part)
    assert seconds < WAIT_LIMIT_S
    first.wait()
    peer._again_at = 0  # its pause is over
    assert fetch(peer, FILE) == (PeerStatus.CUT, b"")  # nobody listens
    assert port_of(start(port, 0)) == port
    peer._again_at = 0
    assert fetch(peer, FILE) == (PeerStatus.UNKNOWN_FILE, b"")
    assert peer.is_usable


def at_once(peer: Peer, threads: int) -> list[tuple[PeerStatus, float]]:
    """Fetches a small file in several threads at the same time. Returns the status of each fetch,
    and how long it took [s]. The file is small, because requests for a large file would wait for
    each other (csrc/peers/peer.c)."""
    together = threading.Barrier(threads)

    def ask() -> tuple[PeerStatus, float]:
        together.wait()
        started = time.monotonic()
        return fetch(peer, SMALL)[0], time.monotonic() - started

    with ThreadPoolExecutor(threads) as pool:
        return [each.result() for each in [pool.submit(ask) for _ in range(threads)]]


def test_one_thread_tries_a_peer_that_hangs_for_all_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # it sends no greeting
        peer = peer_at(hanging.getsockname()[:2])
        assert fetch(peer, FILE) == (PeerStatus.TIMEOUT, b"")
        peer._again_at = 0  # its pause is over
        found = at_once(peer, 8)
        assert {status for status, _ in found} == {PeerStatus.TIMEOUT}
        waited = sorted(seconds for _, seconds in found)
        assert waited[-1] >= 0.9 * CONNECT_LIMIT_S
        assert waited[-2] < 0.9 * CONNECT_LIMIT_S
        hanging.settimeout(0)
        with ExitStack() as stack:
            # The peer got only two connections: one for the first fetch, and one for the eight
            # threads together.
            for _ in range(2):
                stack.enter_context(hanging.accept()[0])
            with pytest.raises(BlockingIOError):
                hanging.accept()


def test_a_peer_that_is_back_is_there_for_all_who_ask(start: Start) -> None:
    process = start(0, SMALL.size)
    port = port_of(process)
    peer = peer_at(("127.0.0.1", port))
    process.kill()
    process.wait()
    assert fetch(peer, SMALL)[0] == PeerStatus.CUT
    assert port_of(start(port, SMALL.size)) == port
    peer._again_at = 0
    assert {status for status, _ in at_once(peer, 8)} == {PeerStatus.OK}


def test_a_peer_that_is_stopped_is_waited_for_within_the_bound(start: Start) -> None:
    expected, process = content(SIZE, SEED), start()
    peer = peer_at(("127.0.0.1", port_of(process)))
    status, part, seconds = interrupted(peer, process, signal.SIGSTOP)
    assert status == PeerStatus.TIMEOUT
    assert expected.startswith(part)
    assert seconds < WAIT_LIMIT_S
    # The kernel still accepts connections for the suspended process, but no greeting comes.
    peer._again_at = 0
    started = time.monotonic()
    assert fetch(peer, FILE) == (PeerStatus.TIMEOUT, b"")
    assert time.monotonic() - started < WAIT_LIMIT_S
    process.send_signal(signal.SIGCONT)
    peer._again_at = 0
    assert fetch(peer, FILE) == (PeerStatus.OK, expected)
