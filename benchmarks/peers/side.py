"""One end of a transfer, in a node's namespace; `python -m benchmarks.peers` starts both ends.

Each end reads lines from its standard input, and answers each line with integers. The sender offers
the same file in two ways: by plain sendfile over a TCP connection, and with the protocol of
Monarch's daemons. Each line to the receiver names a way to fetch the file. The receiver fetches the
file in this way, and answers with the wall time and its own CPU time [ns].
"""

from __future__ import annotations

import mmap
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from benchmarks.peers.fileserver import FileServer
from benchmarks.peers.ranges import FileId, fetch_ranges, new_gets
from monarch_py.native import ffi, lib
from monarch_py.peers.handshake import Party
from monarch_py.peers.peer import Peer
from monarch_py.peers.server import listen
from monarch_py.peers.status import PeerStatus
from monarch_py.peers.tcp import connect_link

BLOCK_BYTES = 4 << 20
# The size of the reads of the plain receiver [bytes]. Monarch's client uses the same size
# (MONARCH_PEER_CHUNK).
READ_BYTES = 256 << 10


def cpu_ns() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def file_id(number: int, size: int) -> FileId:
    return FileId(source=0, path_hash=number + 1, size=size, mtime_ns=1)


def party_of(secret: bytes, rank: int, serving: tuple[str, int]) -> Party:
    """Returns the Party, which describes one end of the transfer as a node of a cluster. Rank 0 is
    the sender. It has the files, and serves them at the address `serving`. Rank 1 is the receiver,
    which serves nothing."""
    return Party(secret, rank, (serving, ("", 0)))


def answer(*numbers: int) -> None:
    print(*numbers, flush=True)


# --- the sender ---------------------------------------------------------------------------------


def send_plainly(listener: socket.socket, fd: int, size: int) -> None:
    """Sends the content of the file by sendfile to every client that connects. Sends no headers."""
    while True:
        connection, _ = listener.accept()
        with connection:
            at = 0
            while at < size:
                at += os.sendfile(connection.fileno(), fd, at, size - at)


def serve(secret: bytes, host: str, path: Path, small_files: int, small_bytes: int) -> None:
    content = path.read_bytes()
    fd = os.open(path, os.O_RDONLY)
    starts = range(0, len(content), BLOCK_BYTES)
    sums = [xxhash.xxh3_64_intdigest(content[at : at + BLOCK_BYTES]) for at in starts]
    plain = socket.create_server((host, 0))
    args = (plain, fd, len(content))
    threading.Thread(target=send_plainly, args=args, daemon=True).start()
    listener = listen(host)
    server = FileServer(party_of(secret, 0, listener.getsockname()[:2]), listener)
    # Compute the digests in advance. A daemon computes them when it makes a copy, and stores them.
    digests = b"".join(server.digest(content[at : at + BLOCK_BYTES]) for at in starts)
    known = np.array(sums, dtype=np.uint64)
    server.share(file_id(0, len(content)), fd, BLOCK_BYTES, known, digests)
    server.share(file_id(1, len(content)), fd, BLOCK_BYTES)
    # A small file is a single block, so there is one checksum. No digest of the block is stored.
    small = np.array([xxhash.xxh3_64_intdigest(content[:small_bytes])], dtype=np.uint64)
    for number in range(small_files):
        server.share(file_id(2 + number, small_bytes), fd, BLOCK_BYTES, small)
    ports = plain.getsockname()[1], server.address[1]
    for line in sys.stdin:
        answer(*(ports if line == "ports\n" else (cpu_ns(),)))
    server.close()


# --- the receiver -------------------------------------------------------------------------------


def pages(size: int) -> npt.NDArray[np.uint8]:
    """Returns an array of bytes, (size,), that begins at a page boundary. The kernel copies fastest
    into such an array (csrc/shared/buffer.h)."""
    place = np.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=np.uint8)[:size]
    place[:] = 1  # allocates every page
    return place


class Getter:
    """Fetches the file in several ways, which the benchmark compares.

    plain, ours : the ports of the plain sender, and of the sender that uses Monarch's protocol
    place : the path of the copy
    """

    def __init__(self, secret: bytes, host: str, plain: int, ours: int, place: Path) -> None:
        self.plain = (host, plain)
        self.peer = Peer(partial(connect_link, party_of(secret, 1, (host, ours))), 0)
        self.buffer = pages(READ_BYTES)
        self.file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self.memory = pages(0)

    def plainly(self, size: int) -> None:
        """Receives the file with recv, always into the same buffer. This is the cheapest possible
        transfer for the link and the kernel."""
        with socket.create_connection(self.plain) as connection:
            left = size
            while left:
                got = connection.recv_into(self.buffer.data, 0, socket.MSG_WAITALL)
                if got == 0:
                    raise RuntimeError(f"{left} bytes did not come")
                left -= got

    def into_memory(self, size: int, number: int = 0) -> None:
        if len(self.memory) < size:
            self.memory = pages(size)
        gets = self._gets(size, number)
        gets["memory"] = self.memory.ctypes.data + gets["first"]
        self._fetch(gets)

    def into_file(self, size: int, number: int = 0) -> None:
        gets = self._gets(size, number)
        gets["to"], gets["at"] = self.file, gets["first"]
        self._fetch(gets)

    def mac(self, size: int) -> None:
        """Splits `size` bytes in memory into blocks, and computes the GMAC of each block. Transfers
        nothing."""
        digest = ffi.new("unsigned char[]", lib.MONARCH_MAC_BYTES)
        if len(self.memory) < size:
            self.memory = pages(size)
        for at in range(0, size, BLOCK_BYTES):
            block = ffi.from_buffer("char[]", self.memory[at : at + BLOCK_BYTES])
            lib.monarch_digest_of(bytes(lib.MONARCH_KEY_BYTES), block, len(block), digest)

    def small(self, size: int, count: int) -> None:
        """Requests `count` small files in one call. The files arrive one after the other."""
        gets = new_gets([file_id(2 + number, size) for number in range(count)])
        if len(self.memory) < size:
            self.memory = pages(size)
        gets["memory"] = self.memory.ctypes.data
        self._fetch(gets)

    def _gets(self, size: int, number: int) -> Any:
        """Returns one request for each block of the file. A daemon sends such requests to make a
        copy."""
        starts = np.arange(0, size, BLOCK_BYTES)
        gets = new_gets([file_id(number, size)] * len(starts))
        gets["first"] = starts
        gets["length"] = np.minimum(BLOCK_BYTES, size - starts)
        return gets

    def _fetch(self, gets: Any) -> None:
        fetch_ranges(self.peer, gets)
        wrong = gets[gets["status"] != PeerStatus.OK]
        if len(wrong):
            raise RuntimeError(f"{len(wrong)} ranges failed, the first {wrong[0]}")


def get(secret: bytes, host: str, plain: int, ours: int, place: Path) -> None:
    getter = Getter(secret, host, plain, ours, place)
    ways: dict[str, Callable[..., None]] = {
        "plain": getter.plainly,
        "memory": getter.into_memory,
        "file": getter.into_file,
        "small": getter.small,
        "mac": getter.mac,
    }
    for line in sys.stdin:
        way, *numbers = line.split()
        before, started = cpu_ns(), time.monotonic_ns()
        ways[way](*map(int, numbers))
        answer(time.monotonic_ns() - started, cpu_ns() - before)
        # Truncate the file. A daemon that makes a copy writes to a file without allocated pages. So
        # the next transfer must do this too.
        os.ftruncate(getter.file, 0)


def main() -> None:
    role, host, *words = sys.argv[1:]
    # The secret is passed in the environment, because every user can read a process's command line.
    secret = bytes.fromhex(os.environ.pop("MONARCH_BENCHMARK_SECRET"))
    if role == "serve":
        serve(secret, host, Path(words[0]), int(words[1]), int(words[2]))
    else:
        get(secret, host, int(words[0]), int(words[1]), Path(words[2]))


if __name__ == "__main__":
    main()
