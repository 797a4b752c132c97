"""Lists a source with the threads of csrc/scan."""

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monarch_py.native import ENTRY, Array, ffi, lib

# Arguments of `Walk.allow` for no limit.
ALL_NAMES = (-1, -1)
# A thread that has not ended within this time hangs in a system call on a source [s].
END_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries that a scan has found. They are valid only until the next batch is taken.

    entries : (n,) of dtype ENTRY, without their hashes
    pool : C pointer to the text of their paths and links' targets, of which used_bytes are in use
    """

    entries: Array
    pool: Any
    used_bytes: int


class Walk:
    """Lists the tree below a directory, or parts of it. OSError if the root cannot be examined.

    fd : of the root; the caller closes it
    source : the source's number
    ops_per_s : limit of operations on the source; 0 for no limit
    doorbell : a C pointer, rung when there is something to take
    directories : relative to the root; only these are listed, with what lies below them if is_deep
    known : a catalog's struct monarch_writer *, the struct monarch_clients * of programs that read
        beside the scan, and when the catalog had no files [ns]. Files that the catalog has by now,
        with the same name and inode, are not looked at if their directory has not changed since
    allowed : see `allow`
    is_finished : all batches were taken;  seconds : how long the scan took, once it is finished
    """

    def __init__(
        self,
        fd: int,
        source: int,
        threads: int,
        ops_per_s: int,
        doorbell: Any,
        *,
        directories: Sequence[str] | None = None,
        is_deep: bool = True,
        known: tuple[Any, Any, int] = (ffi.NULL, ffi.NULL, 0),
        allowed: tuple[int, int] = ALL_NAMES,
    ) -> None:
        self._started, self.seconds = time.monotonic(), 0.0
        self._doorbell = doorbell  # keeps it alive: the threads ring it until they end
        self._scan: Any
        if directories is None:
            self._scan = lib.monarch_scan_start(fd, source, threads, ops_per_s, doorbell)
        else:
            paths = [ffi.new("char[]", os.fsencode(directory)) for directory in directories]
            self._scan = lib.monarch_scan_parts(
                fd, source, paths, len(paths), is_deep, threads, ops_per_s, doorbell
            )
        if self._scan == ffi.NULL:
            raise OSError(errno.EIO, "the source's root cannot be looked at")
        lib.monarch_scan_skip_known(self._scan, *known)
        self.allow(*allowed)
        self._batch: Any = ffi.NULL
        self.is_finished = False

    def take(self) -> Batch | None:
        """The next batch; None if there is none yet, or no more (`is_finished`)."""
        self._free()
        finished = ffi.new("int *")
        self._batch = batch = lib.monarch_scan_take(self._scan, finished)
        if batch == ffi.NULL:
            if finished[0]:
                self.is_finished = True
                self.seconds = time.monotonic() - self._started
            return None
        size = batch.count * ENTRY.itemsize
        entries = np.frombuffer(ffi.buffer(batch.entries, size), dtype=ENTRY)
        return Batch(entries, batch.pool, int(batch.pool_used))

    def want(self, directory: str, *, is_deep: bool) -> None:
        """Lists a directory, relative to the root, before all others that are not listed yet.
        is_deep : with the directories below it"""
        lib.monarch_scan_want(self._scan, os.fsencode(directory), is_deep)

    def allow(self, wanted: int, more_others: int) -> None:
        """Sets how many names may be looked at until the next call; below 0: all of them.

        wanted : in directories that `want` named; 0 keeps what is still allowed there
        more_others : in the other directories, in addition to what is still allowed there
        """
        lib.monarch_scan_allow(self._scan, wanted, more_others)

    def errors(self) -> tuple[int, int]:
        """The number of names that could not be read, and the first errno."""
        first = ffi.new("int *")
        return int(lib.monarch_scan_errors(self._scan, first)), int(first[0])

    def close(self, limit_s: float = END_LIMIT_S) -> int:
        """Ends the scan; a second call does nothing. Returns how many threads have not ended within
        limit_s, because the source does not answer."""
        left = 0
        self._free()
        if self._scan != ffi.NULL:
            left = int(lib.monarch_scan_stop(self._scan, max(0, int(limit_s * 1000))))
            self._scan = ffi.NULL
        return left

    def _free(self) -> None:
        lib.monarch_batch_free(self._batch)
        self._batch = ffi.NULL


def read_up(directory: int) -> int:
    """Lists a source's root once more. Returns the inode of its "..", 0 if unknown.

    directory : the root's descriptor
    """
    return int(lib.monarch_read_up(directory))
