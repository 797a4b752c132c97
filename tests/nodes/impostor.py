"""Another user of a node, who has taken the address of a daemon that died. To be accepted by both
sides, he relays messages between the dead daemon's peers and a living daemon. He also sends other
messages by which he might get data.

python impostor.py UID HOST:PORT LIVE-HOST:LIVE-PORT SOURCE-DIRECTORY REQUEST-IN-HEX

The program becomes that user and prints a line when it listens. At the end of its standard input it
prints its counts as JSON. It uses nothing of Monarch: an attacker knows only what he has overheard.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - sockets need it, but the other user cannot read it
import json
import os
import socket
import struct
import sys
import threading
from contextlib import suppress

HELLO, ANSWER, REPLY, REQUEST = 40, 40 + 9 + 32, 4 + 32, 80
MEANT_AT = 40 + 1 + 4
LIMIT_S = 3.0


class Impostor:
    def __init__(self, listener: socket.socket, live: tuple[str, int], request: bytes) -> None:
        self._listener, self._live, self._request = listener, live, request
        self._heard: bytes | None = None  # the first answer that a client has sent in full
        self.seen = {"clients": 0, "proofs": 0, "trusted": 0, "stolen": 0, "replayed": 0}

    def run(self) -> None:
        while True:
            client, _ = self._listener.accept()
            client.settimeout(LIMIT_S)
            threading.Thread(target=self._attend, args=(client,), daemon=True).start()

    def _attend(self, client: socket.socket) -> None:
        self.seen["clients"] += 1
        number = self.seen["clients"]
        with client, suppress(OSError, EOFError):
            with socket.create_connection(self._live, timeout=LIMIT_S) as live:
                client.sendall(receive(live, HELLO))
                answer = receive(client, ANSWER)
                self._heard = self._heard or answer
                live.sendall(answer)
                reply = receive(live, REPLY)
                self.seen["proofs"] += 1
                self._answer(client, number, answer, reply)
                self._steal(live)
            self._replay()

    def _answer(self, client: socket.socket, number: int, answer: bytes, reply: bytes) -> None:
        """Sends one of four replies. A reply consists of a rank and a proof of 32 bytes. The first
        reply is that of the living daemon, unchanged. Each of the others contains the rank that the
        client expects, and one of three proofs: that of the living daemon, zeros, or the client's
        own."""
        meant = answer[MEANT_AT : MEANT_AT + 4]
        ways = (reply, meant + reply[4:], meant + bytes(32), meant + answer[-32:])
        client.sendall(ways[number % len(ways)])
        with suppress(OSError, EOFError):
            asked = receive(client, REQUEST)
            self.seen["trusted"] += 1
            (length,) = struct.unpack_from("<Q", asked, 48)
            client.sendall(forged(asked[8:16], length))

    def _steal(self, live: socket.socket) -> None:
        with suppress(OSError):
            live.sendall(self._request)
            while part := live.recv(65536):
                self.seen["stolen"] += len(part)

    def _replay(self) -> None:
        """Sends the recorded answer of a member once more, on a new connection to the living
        daemon."""
        with socket.create_connection(self._live, timeout=LIMIT_S) as live:
            receive(live, HELLO)
            live.sendall((self._heard or b"") + self._request)
            with suppress(OSError):
                self.seen["replayed"] += len(live.recv(65536))


def receive(connection: socket.socket, n_bytes: int) -> bytes:
    data = b""
    while len(data) < n_bytes:
        more = connection.recv(n_bytes - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def forged(tag: bytes, length: int) -> bytes:
    """An answer that is not sealed with the connection's keys."""
    frames = []
    for kind, value in ((1, length), (2, 0), (3, 0)):
        frames.append(struct.pack("<4sI8sQ16x", b"MPF3", kind, tag, value))
    return frames[0] + b"\xee" * length + frames[1] + frames[2]


def address(word: str) -> tuple[str, int]:
    host, port = word.rsplit(":", 1)
    return host, int(port)


def main() -> None:
    uid, me, live, source, request = sys.argv[1:]
    # From here on, the program may do only what this user is allowed to do.
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    try:
        os.listdir(source)
        is_kept_out = False
    except PermissionError:
        is_kept_out = True
    impostor = Impostor(socket.create_server(address(me)), address(live), bytes.fromhex(request))
    threading.Thread(target=impostor.run, daemon=True).start()
    print(os.getuid(), flush=True)
    sys.stdin.read()
    print(json.dumps({**impostor.seen, "kept_out": is_kept_out}), flush=True)


if __name__ == "__main__":
    main()
