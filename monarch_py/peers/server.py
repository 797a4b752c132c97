"""Listens for peers, authenticates them, and hands their connections over to C.

C (csrc/peers/server.c) then answers the peers' requests for files.
"""

import errno
import os
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from monarch_py.errors import SessionError
from monarch_py.native import ffi, lib
from monarch_py.peers.handshake import Greeter, Party, Purpose
from monarch_py.peers.queries import StatusResponder

# The number of threads that answer requests. A few suffice, since they wait only for this node's
# own disks.
THREADS = 4
# The largest number of clients at a time: as many as the largest clusters have nodes. Each client
# takes 3 KB and a socket.
CONNECTIONS = 1024
# How long [s] the connection of an idle peer is kept open. Requests come in bursts during an epoch,
# so this is longer than the pauses between the bursts.
IDLE_LIMIT_S = 300.0
# If a peer stops in the middle of sending a request, or of receiving its answer, it is disconnected
# after this time [s].
STALL_LIMIT_S = 5.0
# How long [s] a request may wait for bytes that this node does not have yet. The server checks this
# limit only every 100 ms (TICK_MS in server.c), so its answer may be late. Therefore the time
# limits of the clients (tcp.py) are a few hundred milliseconds longer.
WAIT_LIMIT_S = 0.6
# A client must have sent its proof within this time [s] after it has connected.
GREETING_LIMIT_S = 1.0
# The largest number of clients that have not authenticated themselves yet. Beyond it, each new
# client replaces the oldest one, whose connection is closed. So silent clients cannot keep others
# out.
MOST_STRANGERS = 256
# The length of the kernel's accept queue. All daemons of a large job connect at once. If the queue
# is full, the kernel drops a connection's first packet, and the client resends it only a second
# later.
BACKLOG = 1024
# If accept(2) fails for lack of descriptors or memory, it is called again after this pause [s].
PAUSE_S = 0.05


@dataclass(slots=True)
class _Stranger:
    connection: socket.socket
    greeter: Greeter
    deadline: float


class PeerServer(ABC):
    """Sends files to the other nodes of the session until it is closed. The constructor raises
    MemoryError if no thread can be started.

    party : this node's data for handshakes
    listener : the result of `listen`, a socket to which the other nodes connect. Unless the
        constructor fails, the server closes it
    status : a function that returns this node's status, for peers that request it; called in
        separate threads
    """

    def __init__(
        self,
        party: Party,
        listener: socket.socket,
        *,
        status: Callable[[], bytes] = bytes,
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
        self._responder = StatusResponder(status)
        self._calls, self._is_closing = threading.Lock(), False
        self._strangers: dict[int, _Stranger] = {}
        self._selector = selectors.DefaultSelector()
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stop_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._greet, name="peers-greet", daemon=True)
        self._thread.start()

    # --- implemented by subclasses --------------------------------------------------------------

    @abstractmethod
    def _begin(self, bounds: Any) -> Any:
        """Creates a struct monarch_peer_server and starts its threads, which answer requests for
        this node's shared files. Returns NULL if no thread can be started."""

    @abstractmethod
    def _end(self, server: Any) -> None:
        """Stops the server and releases the shared files.

        server : the result of `_begin`, NULL if the server did not start
        """

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Keeps the server open during a call into C. Another thread might close it meanwhile.
        Raises ValueError if the server is closed."""
        with self._calls:
            if self._is_closing:
                raise ValueError("the server is closed")
            yield

    # --- public ----------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Returns the counters of struct monarch_peer_counts (csrc/peers/peers.h), by name."""
        counts = ffi.new("struct monarch_peer_counts *")
        with self._open():
            lib.monarch_peer_server_counts(self._server, counts)
        return {name: int(getattr(counts, name)) for name, _ in ffi.typeof(counts[0]).fields}

    def close(self) -> None:
        """Closes all connections and ends all threads. A second call has no effect."""
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

    # --- handshakes -----------------------------------------------------------------------------

    def _greet(self) -> None:
        while True:
            for key, _ in self._selector.select(self._patience()):
                if key.fd == self._stop_read:
                    return
                if key.fd == self._listener.fileno():
                    self._accept()
                elif key.fd in self._strangers:  # `_accept` may just have disconnected this client
                    self._hear(self._strangers[key.fd])
            now = time.monotonic()
            for stranger in [s for s in self._strangers.values() if s.deadline <= now]:
                self._send_away(stranger)

    def _patience(self) -> float | None:
        if not self._strangers:
            return None
        # The dict keeps unauthenticated clients in the order of their arrival.
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
        # The client has disconnected, or the kernel cannot watch another descriptor.
        except OSError:
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
            # Only this thread adds connections to the C server. So if the server has room here, it
            # still has room when `adopt` is called below.
            if wants_files and not lib.monarch_peer_server_has_room(self._server):
                return
            try:
                connection.send(reply)
            except OSError:
                return
            if keys is None:
                return
            if wants_files:
                made = ffi.new("struct monarch_peer_keys *", [keys.mine, keys.theirs])
                if lib.monarch_peer_server_adopt(self._server, connection.fileno(), made) == 0:
                    connection.detach()
            elif stranger.greeter.purpose == Purpose.STATUS.value:
                self._responder.tell(socket.socket(fileno=connection.detach()), keys)


def listen(host: str, port: int = 0) -> socket.socket:
    """Returns a listening socket for a PeerServer. Port 0 means any free port. Raises SessionError
    if a socket cannot listen at this address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise SessionError(
            f"the daemon cannot listen at {host}, port {port} ({why}): set peers.address to an"
            " address of this node, and peers.port to a free port"
        ) from error
