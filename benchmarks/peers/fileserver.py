"""A server of files that are shared one by one, for whoever has no catalog: tests, measurements.
The daemon shares what its catalog holds (daemon/nodes/serving.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.ranges import FileId
from monarch_py.native import ffi, lib, pointer
from monarch_py.peers.server import PeerServer

__all__ = ["FileServer"]


class FileServer(PeerServer):
    """Shares the files that it is given, until it is closed."""

    def _begin(self, bounds: Any) -> Any:
        self._table: Any = lib.monarch_peer_table_new()
        if self._table == ffi.NULL:
            raise MemoryError("no memory for the files that peers are served")
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
        """Shares a whole file, from a duplicate of `fd`, in place of an earlier one.

        sums : (blocks,) XXH3-64 of each block;  digests : of each block, by `digest`, in one. What
        is not given is computed with every answer, as for a file of the source. ValueError for
        another number of either, OSError for no file.
        """
        blocks = -(-file.size // block_bytes)
        if sums is not None and sums.shape != (blocks,):
            raise ValueError(f"a file of {blocks} blocks has not {sums.shape} sums")
        if digests and len(digests) != blocks * lib.MONARCH_MAC_BYTES:
            raise ValueError(f"a file of {blocks} blocks has not {len(digests)} bytes of digests")
        given = ffi.NULL
        if sums is not None:
            held = np.ascontiguousarray(sums, dtype=np.uint64)
            given = pointer(held) if blocks else ffi.NULL
        self._share(file, fd, block_bytes, given, digests, is_whole=True)

    def digest(self, content: bytes) -> bytes:
        """What peers of this session are told of a block's content, in secret."""
        made = ffi.new("unsigned char[]", lib.MONARCH_MAC_BYTES)
        if lib.monarch_digest_of(self._party.content_key, content, len(content), made):
            raise MemoryError("no memory for a digest")
        return bytes(ffi.buffer(made))

    def share_filling(self, file: FileId, fd: int, block_bytes: int) -> None:
        """Shares a copy of which nothing is there yet; whoever asks waits, within the bound, for
        `add_block`. OSError for no file."""
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
        """One more block of a file that is being filled is there, in any order; KeyError when it
        is not shared, or has no such block."""
        with self._open_table() as table:
            error = lib.monarch_peer_table_block(table, file.source, file.path_hash, block, xxh3)
        if error:
            raise KeyError((file, block))

    def withdraw(self, file: FileId) -> None:
        """Shares it no more; nothing happens if it is not shared. What is there of it is still
        sent to who began to read it."""
        with self._open_table() as table:
            lib.monarch_peer_table_withdraw(table, file.source, file.path_hash)

    def __len__(self) -> int:
        """Files that are shared."""
        with self._open_table() as table:
            return int(lib.monarch_peer_table_length(table))
