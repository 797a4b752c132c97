"""Helpers of the tests in this folder: files with known content, and ways to request them."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from benchmarks.peers.fileserver import FileServer
from benchmarks.peers.ranges import FileId, fetch_ranges, new_gets
from monarch_py.native import ffi, lib
from monarch_py.peers.handshake import Greeter, Keys, Party, introduce
from monarch_py.peers.peer import Peer
from monarch_py.peers.status import PeerStatus
from monarch_py.peers.tcp import connect_link

BLOCK = 64 << 10
SECRET = bytes(range(32))
REQUEST_BYTES = ffi.sizeof("struct monarch_peer_request")
SEAL_BYTES = lib.MONARCH_MAC_BYTES
FRAME = struct.Struct("<IIQQ")
FRAME_BYTES = FRAME.size + SEAL_BYTES
# The address of rank 1, which has no server.
NOWHERE = ("127.0.0.1", 1)
NO_KEYS = Keys(bytes(16), bytes(16))


def xxh3(data: bytes) -> int:
    return int(xxhash.xxh3_64_intdigest(data))


def sums_of(content: bytes, block: int = BLOCK) -> npt.NDArray[np.uint64]:
    starts = range(0, len(content), block)
    return np.array([xxh3(content[at : at + block]) for at in starts], dtype=np.uint64)


def party(serving: tuple[str, int], rank: int = 0, secret: bytes = SECRET) -> Party:
    """Returns the node `rank` of a session of two nodes. Only rank 0 has a server, at `serving`."""
    return Party(secret, rank, (serving, NOWHERE))


def serve(listener: socket.socket, secret: bytes = SECRET, **settings: Any) -> FileServer:
    return FileServer(party(listener.getsockname()[:2], 0, secret), listener, **settings)


class Offer:
    """A file in memory, with its descriptor, content and identity. The context closes the file."""

    def __init__(self, content: bytes, number: int = 1) -> None:
        self.content = content
        self.id = FileId(
            source=number % 3, path_hash=number << 40 | 7, size=len(content), mtime_ns=5
        )
        self.fd = os.memfd_create("offer")
        os.pwrite(self.fd, content, 0)

    def share(self, server: FileServer, *, known: bool = True, block: int = BLOCK) -> Offer:
        if known:
            starts = range(0, len(self.content), block)
            digests = b"".join(server.digest(self.content[at : at + block]) for at in starts)
            server.share(self.id, self.fd, block, sums_of(self.content, block), digests)
        else:
            server.share(self.id, self.fd, block)
        return self

    def __enter__(self) -> Offer:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def fetch(
    peer: Peer, file: FileId, first: int = 0, length: int | None = None
) -> tuple[PeerStatus, bytes]:
    """Fetches one range into memory; returns its status, and the bytes that were accepted."""
    status, parts = fetch_all(peer, [file], [(first, file.size if length is None else length)])
    return status[0], parts[0]


def fetch_all(
    peer: Peer, files: Sequence[FileId], ranges: Sequence[tuple[int, int]]
) -> tuple[list[PeerStatus], list[bytes]]:
    gets = new_gets(files)
    gets["first"] = [first for first, _ in ranges]
    gets["length"] = [length for _, length in ranges]
    # Each buffer has room for its range and for 4096 more bytes, which a fetch must not change.
    rooms = [np.full(min(length, 1 << 27) + 4096, 0xA5, dtype=np.uint8) for _, length in ranges]
    gets["memory"] = [room.ctypes.data for room in rooms]
    fetch_ranges(peer, gets)
    for room in rooms:
        assert (room[-4096:] == 0xA5).all(), "bytes went beyond the range"
    parts = [room[: int(get["received"])].tobytes() for room, get in zip(rooms, gets, strict=True)]
    # A status greater than MOVED is MOVED plus a node's rank.
    statuses = np.minimum(gets["status"], PeerStatus.MOVED).tolist()
    return [PeerStatus(status) for status in statuses], parts


def peer_of(server: FileServer, secret: bytes = SECRET, **bounds: float) -> Peer:
    return peer_at(server.address, secret, **bounds)


def peer_at(address: tuple[str, int], secret: bytes = SECRET, **bounds: float) -> Peer:
    me = party(address, 1, secret)
    return Peer(lambda rank: connect_link(me, rank, **bounds), 0)


def content_digest(content: bytes, secret: bytes = SECRET) -> bytes:
    made = ffi.new("unsigned char[]", SEAL_BYTES)
    assert (
        lib.monarch_digest_of(party(NOWHERE, 0, secret).content_key, content, len(content), made)
        == 0
    )
    return bytes(ffi.buffer(made))


class Seals:
    """Makes the seals of one end's messages, in the order in which this end sends them."""

    def __init__(self, key: bytes) -> None:
        self._mac = ffi.gc(lib.monarch_mac_new(key), lib.monarch_mac_free)
        self.number = 0

    def seal(self, said: bytes, digest: bytes = b"") -> bytes:
        """Returns `said` followed by its seal."""
        made = ffi.new("unsigned char[]", SEAL_BYTES)
        with_digest = ffi.new("struct monarch_digest *", [digest]) if digest else ffi.NULL
        lib.monarch_seal(self._mac, self.number, said, len(said), with_digest, made)
        self.number += 1
        return said + bytes(ffi.buffer(made))


class Line:
    """A connection with the seals of both directions. All other attributes are the socket's."""

    def __init__(self, connection: socket.socket, keys: Keys) -> None:
        self.connection = connection
        self.says, self.hears = Seals(keys.mine), Seals(keys.theirs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def request(self, file: FileId, **fields: Any) -> bytes:
        """Returns the next request that this end sends, with its seal."""
        return self.says.seal(request(file, **fields))

    def frame(self, kind: int, value: int, tag: int = 0, content: bytes = b"") -> bytes:
        """Returns the next frame of this end, with its seal.

        content : the bytes that a SUM authenticates
        """
        digest = content_digest(content) if content else b""
        return self.says.seal(frame(kind, value, tag), digest)

    def right(self, part: bytes, tag: int = 0) -> bytes:
        """Returns a DATA frame, its bytes, and the right SUM frame."""
        data = self.frame(lib.MONARCH_PEER_DATA, len(part), tag) + part
        return data + self.frame(lib.MONARCH_PEER_SUM, xxh3(part), tag, part)


def link_of(connection: socket.socket, limit_ms: int) -> Any:
    """Returns a link over the connection. The other end must be a Line with NO_KEYS."""
    keys = ffi.new("struct monarch_peer_keys *", [NO_KEYS.mine, NO_KEYS.theirs])
    key = party(NOWHERE).content_key
    return lib.monarch_peer_link_new(connection.detach(), keys, key, limit_ms, limit_ms)


def let_in(connection: socket.socket, who: Party) -> Line:
    """Does the server's side of the handshake, and returns the connection. Raises ConnectionError
    if the client does not authenticate itself."""
    greeter = Greeter(who)
    connection.sendall(greeter.hello)
    greeter.feed(connection.recv(greeter.missing, socket.MSG_WAITALL))
    reply = None if greeter.missing else greeter.reply()
    if reply is None or greeter.keys is None:
        raise ConnectionError
    connection.sendall(reply)
    return Line(connection, greeter.keys)


def connect(server: FileServer, secret: bytes = SECRET) -> Line:
    """Connects to the server as rank 1, and does the handshake."""
    connection = socket.create_connection(server.address, timeout=5)
    me = party(server.address, 1, secret)
    keys = introduce(connection, me, 0, time.monotonic() + 5)
    connection.settimeout(5)
    return Line(connection, keys)


def adopted(server: FileServer) -> Line:
    """Makes a pair of Unix sockets, and passes one of them to the server. Returns the other one."""
    mine, theirs = socket.socketpair()
    keys = ffi.new("struct monarch_peer_keys *", [NO_KEYS.mine, NO_KEYS.theirs])
    assert lib.monarch_peer_server_adopt(server._server, theirs.detach(), keys) == 0
    mine.settimeout(5)
    return Line(mine, NO_KEYS)


def request(file: FileId, **fields: Any) -> bytes:
    """Returns the bytes of a request that come before its seal.

    fields : values of fields that differ from those of a usual request
    """
    values: dict[str, Any] = {
        "magic": lib.MONARCH_PEER_REQUEST,
        "source": file.source,
        "tag": 9,
        "path_hash": file.path_hash,
        "size": file.size,
        "mtime_ns": file.mtime_ns,
        "first": 0,
        "length": file.size,
    }
    made = ffi.new("struct monarch_peer_request *", {**values, **fields})
    return bytes(ffi.buffer(made))[:-SEAL_BYTES]


def read_frame(line: Line) -> tuple[int, int, int]:
    """Receives a frame and returns its kind, tag and value. Checks the seal, except in a SUM frame,
    where the seal also depends on the content. Raises EOFError if the connection ends."""
    data = b""
    while len(data) < FRAME_BYTES:
        more = line.connection.recv(FRAME_BYTES - len(data))
        if not more:
            raise EOFError
        data += more
    magic, kind, tag, value = FRAME.unpack(data[: FRAME.size])
    assert magic == lib.MONARCH_PEER_FRAME
    assert line.hears.seal(data[: FRAME.size]) == data or kind == lib.MONARCH_PEER_SUM
    return kind, tag, value


def frame(kind: int, value: int, tag: int = 0) -> bytes:
    """Returns the bytes of a frame that come before its seal."""
    return FRAME.pack(lib.MONARCH_PEER_FRAME, kind, tag, value)


def assert_serves(server: FileServer, file: Offer) -> None:
    assert fetch(peer_of(server), file.id) == (PeerStatus.OK, file.content)


def bare(server: FileServer) -> socket.socket:
    """Connects to the server without a handshake."""
    return socket.create_connection(server.address, timeout=5)


def ends(connection: socket.socket | Line) -> bool:
    """Discards what the other side sends. Returns whether the other side ends the connection before
    a receive times out."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True
