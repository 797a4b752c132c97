"""What daemons ask each other besides files: short answers, made in Python."""

from __future__ import annotations

import hmac
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable

from monarch_py.peers.handshake import Keys, Party, Purpose
from monarch_py.peers.ranges import PeerStatus
from monarch_py.peers.tcp import connected
from monarch_py.peers.transport import Unreachable

__all__ = ["StatusResponder", "ask"]

log = logging.getLogger("monarch.peers")

# Limit for sending an answer [s], and answers in progress at a time; further clients are
# disconnected.
TELL_LIMIT_S = 5.0
MOST_AT_A_TIME = 16
# The longest answer that is accepted [bytes].
MOST_BYTES = 4 << 20
PIECE_BYTES = 1 << 16

# An answer is its length, the words, and the HMAC-SHA256 of both with the key for what the server
# sends. So an answer is accepted only complete and unchanged.
_LENGTH = struct.Struct("<Q")
SEAL_BYTES = 32


def _seal(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, said, "sha256")


def ask(party: Party, rank: int, limit_s: float, purpose: Purpose) -> bytes:
    """Asks the daemon of this rank and returns its answer. Unreachable: as from `tcp.connected`;
    TIMEOUT if the answer is not complete in time, FORGED if it was changed, REFUSED if it is too
    long."""
    deadline = time.monotonic() + limit_s
    try:
        connection, keys = connected(party, rank, limit_s, purpose)
        with connection:
            length = _receive(connection, _LENGTH.size, deadline)
            (n_bytes,) = _LENGTH.unpack(length)
            if n_bytes > MOST_BYTES:
                raise Unreachable(PeerStatus.REFUSED)
            words = _receive(connection, n_bytes, deadline)
            seal = _receive(connection, SEAL_BYTES, deadline)
    except TimeoutError:
        raise Unreachable(PeerStatus.TIMEOUT) from None
    except OSError:
        raise Unreachable(PeerStatus.CUT) from None
    if not hmac.compare_digest(_seal(keys.theirs, length + words), seal):
        raise Unreachable(PeerStatus.FORGED)
    return words


def _receive(connection: socket.socket, n_bytes: int, deadline: float) -> bytes:
    """TimeoutError if the bytes do not come in time, or the connection ends before."""
    parts: list[bytes] = []
    while n_bytes:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(min(n_bytes, PIECE_BYTES))
        if not part or time.monotonic() > deadline:
            raise TimeoutError
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)


class StatusResponder:
    """Sends answers, each from its own thread, because making one may take a while."""

    def __init__(self, answers: dict[Purpose, Callable[[], bytes]]) -> None:
        self._answers = {purpose.value: answer for purpose, answer in answers.items()}
        self._free = threading.BoundedSemaphore(MOST_AT_A_TIME)

    def tell(self, connection: socket.socket, purpose: bytes, keys: Keys) -> None:
        """Takes the connection over and answers on it; closes it if there is no answer for the
        purpose, or too many are in progress."""
        answer = self._answers.get(purpose)
        if answer is None or not self._free.acquire(blocking=False):
            connection.close()
            return
        args = (connection, answer, keys)
        thread = threading.Thread(target=self._tell, args=args, name="peers-tell", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads are allowed; the client may ask again
            connection.close()
            self._free.release()

    def _tell(self, connection: socket.socket, answer: Callable[[], bytes], keys: Keys) -> None:
        with connection:
            try:
                words = answer()
                said = _LENGTH.pack(len(words)) + words
                connection.settimeout(TELL_LIMIT_S)
                connection.sendall(said + _seal(keys.mine, said))
            except OSError:
                pass  # the client has gone
            except Exception:
                log.exception("a peer was not answered")
            finally:
                self._free.release()
