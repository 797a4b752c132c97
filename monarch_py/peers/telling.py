"""What one daemon asks another besides files: a few words that Python answers."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

from monarch_py.peers.handshake import Purpose
from monarch_py.peers.ranges import PeerStatus
from monarch_py.peers.tcp import connected
from monarch_py.peers.transport import Unreachable

__all__ = ["Teller", "ask"]

log = logging.getLogger("monarch.peers")

# For an answer to be taken [s], and how many are given at a time; who comes then is sent away.
TELL_LIMIT_S = 5.0
MOST_AT_A_TIME = 16
# The longest answer that is listened to [bytes].
MOST_BYTES = 4 << 20
PIECE_BYTES = 1 << 16


def ask(address: tuple[str, int], secret: bytes, limit_s: float, purpose: Purpose) -> bytes:
    """The whole answer of the daemon that serves there. Unreachable if it does not come in time."""
    deadline = time.monotonic() + limit_s
    parts: list[bytes] = []
    n_bytes = 0
    try:
        with connected(address, secret, limit_s, purpose) as connection:
            while n_bytes < MOST_BYTES:
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                part = connection.recv(PIECE_BYTES)
                if not part:
                    return b"".join(parts)
                parts.append(part)
                n_bytes += len(part)
                if time.monotonic() > deadline:
                    raise TimeoutError
    except TimeoutError:
        raise Unreachable(PeerStatus.TIMEOUT) from None
    except OSError:
        raise Unreachable(PeerStatus.CUT) from None
    raise Unreachable(PeerStatus.REFUSED)


class Teller:
    """Gives answers, each in a thread of its own, since finding one may take a while."""

    def __init__(self, answers: dict[Purpose, Callable[[], bytes]]) -> None:
        self._answers = {purpose.value: answer for purpose, answer in answers.items()}
        self._free = threading.BoundedSemaphore(MOST_AT_A_TIME)

    def tell(self, connection: socket.socket, purpose: bytes) -> None:
        """Takes the connection over; one that nothing can be told is closed."""
        answer = self._answers.get(purpose)
        if answer is None or not self._free.acquire(blocking=False):
            connection.close()
            return
        words = (connection, answer)
        thread = threading.Thread(target=self._tell, args=words, name="peers-tell", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads are allowed: who asks may ask again
            connection.close()
            self._free.release()

    def _tell(self, connection: socket.socket, answer: Callable[[], bytes]) -> None:
        with connection:
            try:
                words = answer()
                connection.settimeout(TELL_LIMIT_S)
                connection.sendall(words)
            except OSError:
                pass  # whoever asked has gone
            except Exception:
                log.exception("a peer was not answered")
            finally:
                self._free.release()
