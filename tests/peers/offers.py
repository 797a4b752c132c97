"""What the tests of this room share: files with known content, and how they are asked for."""

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

from monarch_py.native import ffi, lib
from monarch_py.peers import FileId, FileServer, Peer, PeerStatus, TcpTransport, new_gets
from monarch_py.peers.handshake import introduce

BLOCK = 64 << 10
SECRET = bytes(range(32))
REQUEST_BYTES = ffi.sizeof("struct monarch_peer_request")
FRAME = struct.Struct("<IIQQ")


def xxh3(data: bytes) -> int:
    return int(xxhash.xxh3_64_intdigest(data))


def sums_of(content: bytes, block: int = BLOCK) -> npt.NDArray[np.uint64]:
    starts = range(0, len(content), block)
    return np.array([xxh3(content[at : at + block]) for at in starts], dtype=np.uint64)


class Offer:
    """A file in memory: its descriptor, content and identity; closed by the context."""

    def __init__(self, content: bytes, number: int = 1) -> None:
        self.content = content
        self.id = FileId(
            source=number % 3, path_hash=number << 40 | 7, size=len(content), mtime_ns=5
        )
        self.fd = os.memfd_create("offer")
        os.pwrite(self.fd, content, 0)

    def share(self, server: FileServer, *, known: bool = True, block: int = BLOCK) -> Offer:
        server.share(self.id, self.fd, block, sums_of(self.content, block) if known else None)
        return self

    def __enter__(self) -> Offer:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def fetch(
    peer: Peer, file: FileId, first: int = 0, length: int | None = None
) -> tuple[PeerStatus, bytes]:
    """One range into memory: its status, and the bytes that count."""
    status, parts = fetch_all(peer, [file], [(first, file.size if length is None else length)])
    return status[0], parts[0]


def fetch_all(
    peer: Peer, files: Sequence[FileId], ranges: Sequence[tuple[int, int]]
) -> tuple[list[PeerStatus], list[bytes]]:
    gets = new_gets(files)
    gets["first"] = [first for first, _ in ranges]
    gets["length"] = [length for _, length in ranges]
    # Room for what ought to come, and a page that must stay as it is.
    rooms = [np.full(min(length, 1 << 27) + 4096, 0xA5, dtype=np.uint8) for _, length in ranges]
    gets["memory"] = [room.ctypes.data for room in rooms]
    peer.fetch(gets)
    for room in rooms:
        assert (room[-4096:] == 0xA5).all(), "bytes went beyond the range"
    parts = [room[: int(get["received"])].tobytes() for room, get in zip(rooms, gets, strict=True)]
    return [PeerStatus(status) for status in gets["status"].tolist()], parts


def peer_of(server: FileServer, secret: bytes = SECRET, **bounds: float) -> Peer:
    return Peer(TcpTransport(secret, **bounds), server.address)


def connect(server: FileServer, secret: bytes = SECRET) -> socket.socket:
    """A bare connection that has proved the secret."""
    connection = socket.create_connection(server.address, timeout=5)
    introduce(connection, secret, time.monotonic() + 5)
    connection.settimeout(5)
    return connection


def request(file: FileId, **fields: Any) -> bytes:
    """A request's bytes; fields : other values for some of its fields."""
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
    return bytes(ffi.buffer(made))


def read_frame(connection: socket.socket) -> tuple[int, int, int]:
    """(kind, tag, value); EOFError when the connection ends instead."""
    data = b""
    while len(data) < FRAME.size:
        more = connection.recv(FRAME.size - len(data))
        if not more:
            raise EOFError
        data += more
    magic, kind, tag, value = FRAME.unpack(data)
    assert magic == lib.MONARCH_PEER_FRAME
    return kind, tag, value


def frame(kind: int, value: int, tag: int = 0) -> bytes:
    return FRAME.pack(lib.MONARCH_PEER_FRAME, kind, tag, value)


def assert_serves(server: FileServer, file: Offer) -> None:
    assert fetch(peer_of(server), file.id) == (PeerStatus.OK, file.content)


def bare(server: FileServer) -> socket.socket:
    """A connection on which nothing has been said."""
    return socket.create_connection(server.address, timeout=5)


def ends(connection: socket.socket) -> bool:
    """Whether the other side ends it, within 5 s; what it still says does not count."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True
