"""Asks other nodes for their status, and sends this node's status to nodes that ask for it."""

import hmac
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable

from monarch_py.peers.handshake import Keys, Party, Purpose, receive
from monarch_py.peers.status import PeerStatus, Unreachable
from monarch_py.peers.tcp import connected

log = logging.getLogger("monarch.peers")

# The time limit [s] for sending an answer.
TELL_LIMIT_S = 5.0
# At most this many queries are answered at a time. Further clients are disconnected without an
# answer.
MOST_AT_A_TIME = 16
# The longest answer [bytes] that is accepted.
MOST_BYTES = 4 << 20

# An answer consists of the text's length, the text, and an HMAC-SHA256 of both. The key is the
# connection's key for data that the server sends. So the client accepts only a complete and
# unchanged answer.
_LENGTH = struct.Struct("<Q")
SEAL_BYTES = 32


def _seal(key: bytes, said: bytes | bytearray) -> bytes:
    return hmac.digest(key, said, "sha256")


def ask(party: Party, rank: int, limit_s: float, purpose: Purpose) -> bytes:
    """Connects to the daemon of node `rank` for `purpose`, and returns the daemon's answer. Raises
    Unreachable as `tcp.connected` does, and in three more cases. TIMEOUT: the answer is not
    complete within `limit_s` [s]. FORGED: the answer was changed in transit. REFUSED: the answer is
    too long."""
    deadline = time.monotonic() + limit_s
    with connected(party, rank, limit_s, purpose) as (connection, keys):
        length = receive(connection, _LENGTH.size, deadline, PeerStatus.TIMEOUT)
        (n_bytes,) = _LENGTH.unpack(length)
        if n_bytes > MOST_BYTES:
            raise Unreachable(PeerStatus.REFUSED)
        words = receive(connection, n_bytes, deadline, PeerStatus.TIMEOUT)
        seal = receive(connection, SEAL_BYTES, deadline, PeerStatus.TIMEOUT)
    if not hmac.compare_digest(_seal(keys.theirs, length + words), seal):
        raise Unreachable(PeerStatus.FORGED)
    return bytes(words)


class StatusResponder:
    """Sends this node's status to peers. Each answer is computed in a separate thread, because the
    computation may take a while.

    status : a function that returns the status
    """

    def __init__(self, status: Callable[[], bytes]) -> None:
        self._status = status
        self._free = threading.BoundedSemaphore(MOST_AT_A_TIME)

    def tell(self, connection: socket.socket, keys: Keys) -> None:
        """Takes ownership of the connection, and sends the status through it. Closes the connection
        without an answer if too many answers are in progress."""
        if not self._free.acquire(blocking=False):
            connection.close()
            return
        args = (connection, keys)
        thread = threading.Thread(target=self._tell, args=args, name="peers-tell", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread could be started; the client may send its query again
            connection.close()
            self._free.release()

    def _tell(self, connection: socket.socket, keys: Keys) -> None:
        with connection:
            try:
                words = self._status()
                said = _LENGTH.pack(len(words)) + words
                connection.settimeout(TELL_LIMIT_S)
                connection.sendall(said + _seal(keys.mine, said))
            except OSError:
                pass  # the client has disconnected
            except Exception:
                log.exception("a peer that asked for this node's status got no answer")
            finally:
                self._free.release()
