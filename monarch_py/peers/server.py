"""Listens for peers, lets in who knows the secret, and gives the connection to C
(csrc/peers/server.c), which answers it from the files that are shared."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from monarch_py.errors import SessionError
from monarch_py.native import ffi, lib
from monarch_py.peers.handshake import Greeter, Keys, Party, Purpose
from monarch_py.peers.queries import StatusResponder

__all__ = ["PeerServer", "listen"]

# Threads wait for this node's own disks alone.
THREADS = 4
# A node of the largest clusters has this many askers at a time; each is 3 KB and a socket.
CONNECTIONS = 1024
# Links are kept between two bursts of an epoch [s].
IDLE_LIMIT_S = 300.0
# For a peer that stops in the middle of a request, or takes nothing any more [s].
STALL_LIMIT_S = 5.0
# For bytes that are not there yet: less than clients wait for the first ones and for more (tcp), by
# some ticks in which deadlines are noticed (server.c) [s].
WAIT_LIMIT_S = 0.6
# Strangers at the door: from a connection to its proof [s], and how many at a time. The oldest goes
# when there are more, so that a crowd of silent ones keeps nobody out who answers.
GREETING_LIMIT_S = 1.0
MOST_STRANGERS = 256
# Connections that the kernel holds for us. One more loses its first packet, and with it a second:
# a large job's daemons all come at once.
BACKLOG = 1024
# Before the next accept when there is no descriptor for it [s].
PAUSE_S = 0.05


@dataclass(slots=True)
class _Stranger:
    connection: socket.socket
    greeter: Greeter
    deadline: float


class PeerServer(ABC):
    """Shares files with the other nodes of the session, until it is closed.

    party : this node;  listener : where the others come (`listen`); the server's own from here on,
    but if it cannot be made;  answers : to what is asked besides files, called in threads of their
    own. MemoryError without threads.
    """

    def __init__(
        self,
        party: Party,
        listener: socket.socket,
        *,
        answers: Mapping[Purpose, Callable[[], bytes]] | None = None,
        threads: int = THREADS,
        connections: int = CONNECTIONS,
        idle_s: float = IDLE_LIMIT_S,
        stall_s: float = STALL_LIMIT_S,
        wait_s: float = WAIT_LIMIT_S,
    ) -> None:
        self._party = party
        listener.setblocking(False)
        self._listener = listener
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        times = [round(limit * 1000) for limit in (idle_s, stall_s, wait_s)]
        bounds = ffi.new("struct monarch_peer_bounds *", [threads, connections, *times])
        self._server: Any = self._begin(bounds)
        if self._server == ffi.NULL:
            self._end(ffi.NULL)
            raise MemoryError("no thread could be started to serve peers")
        self._responder = StatusResponder(dict(answers or {}))
        self._calls, self._is_closing = threading.Lock(), False
        self._strangers: dict[int, _Stranger] = {}
        self._selector = selectors.DefaultSelector()
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stop_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._greet, name="peers-greet", daemon=True)
        self._thread.start()

    # --- what is shared: of a subclass ----------------------------------------------------------

    @abstractmethod
    def _begin(self, bounds: Any) -> Any:
        """struct monarch_peer_server *, which answers from what is shared; NULL without threads."""

    @abstractmethod
    def _end(self, server: Any) -> None:
        """Stops it, and lets go of what was shared; server : NULL if it did not begin."""

    @contextmanager
    def _open(self) -> Iterator[None]:
        """What is shared is not let go of meanwhile: C runs without the interpreter's lock."""
        with self._calls:
            if self._is_closing:
                raise ValueError("the server is closed")
            yield

    # --- from outside ----------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """connections, accepted, dropped, requests, bytes, waiting: csrc/peers/peers.h."""
        counts = ffi.new("struct monarch_peer_counts *")
        with self._open():
            lib.monarch_peer_server_counts(self._server, counts)
        return {name: int(getattr(counts, name)) for name, _ in ffi.typeof(counts[0]).fields}

    def close(self) -> None:
        """Ends every connection and the threads; a second call does nothing."""
        with self._calls:
            if self._is_closing:
                return
            self._is_closing = True
        os.close(self._stop_write)
        self._thread.join()
        self._selector.close()
        self._listener.close()
        for stranger in self._strangers.values():
            stranger.connection.close()
        os.close(self._stop_read)
        with self._calls:
            self._end(self._server)
            self._server = ffi.NULL

    # --- who comes ------------------------------------------------------------------------------

    def _greet(self) -> None:
        while True:
            for key, _ in self._selector.select(self._patience()):
                if key.fd == self._stop_read:
                    return
                if key.fd == self._listener.fileno():
                    self._accept()
                elif key.fd in self._strangers:  # unless it was the oldest of too many
                    self._hear(self._strangers[key.fd])
            now = time.monotonic()
            for stranger in [s for s in self._strangers.values() if s.deadline <= now]:
                self._send_away(stranger)

    def _patience(self) -> float | None:
        if not self._strangers:
            return None
        # In the order in which they came.
        first = next(iter(self._strangers.values()))
        return max(0.0, first.deadline - time.monotonic())

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                time.sleep(PAUSE_S)
            return
        connection.setblocking(False)
        if len(self._strangers) >= MOST_STRANGERS:
            self._send_away(next(iter(self._strangers.values())))
        stranger = _Stranger(connection, Greeter(self._party), time.monotonic() + GREETING_LIMIT_S)
        try:
            connection.send(stranger.greeter.hello)
            self._selector.register(connection, selectors.EVENT_READ)
        except OSError:  # gone, or the kernel has no room to watch one more
            connection.close()
            return
        self._strangers[connection.fileno()] = stranger

    def _hear(self, stranger: _Stranger) -> None:
        try:
            data = stranger.connection.recv(stranger.greeter.missing)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or not stranger.greeter.feed(data):
            self._send_away(stranger)
        elif stranger.greeter.missing == 0:
            self._let_in(stranger)

    def _send_away(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.connection.close()

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.connection.fileno()]
        self._selector.unregister(stranger.connection)

    def _let_in(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        reply, keys = stranger.greeter.reply(), stranger.greeter.keys
        with stranger.connection as connection:
            if reply is None:
                return
            wants_files = stranger.greeter.purpose == Purpose.FILES.value
            # Nobody else lets anyone in: where there is room now there is room below.
            if wants_files and not lib.monarch_peer_server_has_room(self._server):
                return
            try:
                connection.send(reply)
            except OSError:
                return
            if keys is None:
                return
            if wants_files:
                self._adopt(connection, keys)
            else:
                told = socket.socket(fileno=connection.detach())
                self._responder.tell(told, stranger.greeter.purpose, keys)

    def _adopt(self, connection: socket.socket, keys: Keys) -> None:
        made = ffi.new("struct monarch_peer_keys *", [keys.mine, keys.theirs])
        if lib.monarch_peer_server_adopt(self._server, connection.fileno(), made) == 0:
            connection.detach()


def listen(host: str, port: int = 0) -> socket.socket:
    """Where a PeerServer will be reached; port 0 is any that is free. SessionError when it cannot
    be there."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise SessionError(
            f"peers cannot be served at {host}, port {port} ({why}): name an address of this node "
            "and a port that is free, with peers.address and peers.port"
        ) from error
