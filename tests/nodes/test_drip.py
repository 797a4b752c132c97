"""A node that is stopped ends quickly, even if a peer still sends it a byte now and then."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from peers.offers import let_in
from support.epoch import make_files
from support.nodes import Nodes
from support.session import MIB

from monarch_py.demo.slowsource import SlowSource
from monarch_py.peers.handshake import Party

# An answer of this size may take 64 s (LEAST_BYTES_PER_S in client.c).
SIZE, FILES, STOP_S = 8 * MIB, 6, 8.0


class Drips:
    """A peer that sends an endless answer to each client. All bytes of the answer are valid."""

    def __init__(self, listener: socket.socket, party: Party) -> None:
        self.asked = threading.Event()
        self._over = threading.Event()
        self._listener, self._party = listener, party

    def run(self) -> None:
        while not self._over.is_set():
            with suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            line = let_in(connection, self._party)
            connection.recv(4096)
            self.asked.set()
            while not self._over.wait(0.1):
                connection.sendall(line.right(b"\0"))

    def end(self, address: tuple[str, int]) -> None:
        self._over.set()
        with suppress(OSError):
            socket.create_connection(address, timeout=1).close()


@contextmanager
def dripping(listener: socket.socket, party: Party) -> Iterator[Drips]:
    drips, address = Drips(listener, party), listener.getsockname()
    thread = threading.Thread(target=drips.run)
    thread.start()
    try:
        yield drips
    finally:
        drips.end(address)
        thread.join()


def test_who_is_stopped_waits_for_no_peer_that_drips(
    nodes_factory: Callable[..., Nodes], mounts: Callable[[int], list[SlowSource]]
) -> None:
    (source,) = mounts(1)
    make_files(source.backing, FILES, SIZE)
    quota = FILES * (SIZE + MIB)
    nodes = nodes_factory([source] * 2, [quota] * 2, prefetch="eager")
    first, second = nodes.all
    with dripping(second.listener, Party.of(second.cluster)) as drips, first.start():
        first.wait_scanned()
        assert drips.asked.wait(30), "nothing was asked of the peer"
        began = time.monotonic()
        first.stop()
        assert time.monotonic() - began < STOP_S
