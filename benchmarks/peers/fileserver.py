"""A server that sends single files to peers, for tests and measurements without a catalog.

Daemons do not use this server. A daemon's own server shares the files of the daemon's catalog
(daemon/nodes/serving.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.ranges import FileId
from monarch_py.arrays import pointer
from monarch_py.native import ffi, lib
from monarch_py.peers.server import PeerServer

__all__ = ["FileServer"]


class FileServer(PeerServer):
    """A server that shares the files that were passed to `share` or `share_filling`."""

    def _begin(self, bounds: Any) -> Any:
        self._table: Any = lib.monarch_peer_table_new()
        if self._table == ffi.NULL:
            raise MemoryError("no memory for the table of shared files")
        return lib.monarch_peer_server_start(self._table, bounds, self._party.content_key)

    def _end(self, server: Any) -> None:
        if server != ffi.NULL:
            lib.monarch_peer_server_stop(self._table, server)
        lib.monarch_peer_table_free(self._table)
        self._table = ffi.NULL

    @contextmanager
    def _open_table(self) -> Iterator[Any]:
        with self._open():
            yield self._table

    def share(
        self,
        file: FileId,
        fd: int,
        block_bytes: int,
        sums: npt.NDArray[np.uint64] | None = None,
        digests: bytes = b"",
    ) -> None:
        """Shares a complete file through a duplicate of `fd`. Replaces an earlier file with the
        same FileId. Raises ValueError for a wrong number of checksums or digests, and OSError if
        `fd` is not a file.

        sums : (blocks,) the XXH3-64 hash of each block; None if the hashes are not known
        digests : the results of `digest` for all blocks, one after the other. Without them, the
            server computes a digest for every answer
        """
        blocks = -(-file.size // block_bytes)
        if sums is not None and sums.shape != (blocks,):
            raise ValueError(f"a file of {blocks} blocks cannot have {sums.shape} sums")
        if digests and len(digests) != blocks * lib.MONARCH_MAC_BYTES:
            raise ValueError(f"{len(digests)} bytes of digests do not fit {blocks} blocks")
        given = ffi.NULL
        if sums is not None:
            held = np.ascontiguousarray(sums, dtype=np.uint64)
            given = pointer(held) if blocks else ffi.NULL
        self._share(file, fd, block_bytes, given, digests, is_whole=True)

    def digest(self, content: bytes) -> bytes:
        """Returns the digest of a block, computed with the key of this session.

        content : the bytes of the block
        """
        made = ffi.new("unsigned char[]", lib.MONARCH_MAC_BYTES)
        if lib.monarch_digest_of(self._party.content_key, content, len(content), made):
            raise MemoryError("no memory for a digest")
        return bytes(ffi.buffer(made))

    def share_filling(self, file: FileId, fd: int, block_bytes: int) -> None:
        """Shares an unfinished copy, which has no blocks yet. A peer that requests a block waits
        until `add_block` has added the block, or until a time limit. Raises OSError if `fd` is not
        a file."""
        self._share(file, fd, block_bytes, ffi.NULL, b"", is_whole=False)

    def _share(
        self, file: FileId, fd: int, block_bytes: int, sums: Any, digests: bytes, *, is_whole: bool
    ) -> None:
        with self._open_table() as table:
            error = lib.monarch_peer_table_share(
                table,
                file.source,
                file.path_hash,
                file.size,
                file.mtime_ns,
                fd,
                block_bytes,
                sums,
                digests or ffi.NULL,
                is_whole,
            )
        if error:
            raise OSError(-error, os.strerror(-error))

    def add_block(self, file: FileId, block: int, xxh3: int) -> None:
        """Adds a block of a file that is being filled. The blocks may come in any order. Raises
        KeyError if the file is not shared, or has no such block."""
        with self._open_table() as table:
            error = lib.monarch_peer_table_block(table, file.source, file.path_hash, block, xxh3)
        if error:
            raise KeyError((file, block))

    def withdraw(self, file: FileId) -> None:
        """Stops sharing a file. Does nothing if the file is not shared. A transfer that has already
        begun still gets the blocks that exist."""
        with self._open_table() as table:
            lib.monarch_peer_table_withdraw(table, file.source, file.path_hash)

    def __len__(self) -> int:
        """Returns the number of shared files."""
        with self._open_table() as table:
            return int(lib.monarch_peer_table_length(table))
