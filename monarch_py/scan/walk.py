"""Lists a source with the threads of csrc/scan."""

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monarch_py.arrays import ENTRY, Array
from monarch_py.native import ffi, lib

# Arguments of `Walk.allow` that set no limit.
ALL_NAMES = (-1, -1)
# How long `close` waits for the threads [s]. A thread that takes longer hangs in a system call at
# the source.
END_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries that a scan has found. They are valid only until the next batch is taken.

    entries : (n,) of dtype ENTRY, without their hashes
    pool : C pointer to `used_bytes` bytes of text: the paths, and the targets of symbolic links
    renames : how many directories programs had renamed when the scan began to examine the first of
        these entries
    """

    entries: Array
    pool: Any
    used_bytes: int
    renames: int = 0


class Walk:
    """Lists the tree below a source's root, or parts of the tree. The constructor raises OSError if
    the root cannot be examined.

    fd : descriptor of the root; the caller closes it
    source : the source's number
    ops_per_s : the largest number of operations per second on the source; 0 for no limit
    doorbell : C pointer to the doorbell (a futex) that is rung when `take` can return a batch
    directories : the directories to list, relative to the root; None to list the whole tree. With
        is_deep, all their subdirectories are listed too
    known : what the scan needs to skip known files: a catalog's struct monarch_writer *, the
        session's struct monarch_clients *, and a time at which the catalog had no files yet [ns].
        The scan skips a file that the catalog contains with the same name and inode number. It does
        not skip the file if the file's directory has changed since that time. For a file that a
        program is reading, the scan uses the attributes that the kernel has cached
    allowed : the arguments with which the constructor calls `allow`
    is_finished : whether all batches were taken
    seconds : how long the scan took, once it is finished
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
        # This reference keeps the doorbell's memory alive, because the threads ring the doorbell
        # until they end.
        self._doorbell = doorbell
        self._scan: Any
        if directories is None:
            self._scan = lib.monarch_scan_start(fd, source, threads, ops_per_s, doorbell)
        else:
            paths = [ffi.new("char[]", os.fsencode(directory)) for directory in directories]
            self._scan = lib.monarch_scan_parts(
                fd, source, paths, len(paths), is_deep, threads, ops_per_s, doorbell
            )
        if self._scan == ffi.NULL:
            raise OSError(errno.EIO, "the source's root cannot be examined")
        lib.monarch_scan_skip_known(self._scan, *known)
        self.allow(*allowed)
        self._batch: Any = ffi.NULL
        self.is_finished = False

    def take(self) -> Batch | None:
        """Returns the next batch. Returns None if no batch is ready, or if all batches were taken;
        `is_finished` tells the two cases apart."""
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
        return Batch(entries, batch.pool, int(batch.pool_used), int(batch.renames))

    def want(self, directory: str, *, is_deep: bool) -> None:
        """Makes the scan list a directory before all others that it has not listed yet.

        directory : its path, relative to the root
        is_deep : whether to list its subdirectories too
        """
        lib.monarch_scan_want(self._scan, os.fsencode(directory), is_deep)

    def allow(self, wanted: int, more_others: int) -> None:
        """Sets how many more names the scan may examine. A negative number means no limit.

        wanted : the new limit for names in the directories that were passed to `want`. 0 keeps the
            present limit; if there was none, the new limit is 0
        more_others : by how much the limit for all other directories is raised
        """
        lib.monarch_scan_allow(self._scan, wanted, more_others)

    def errors(self) -> tuple[int, int]:
        """Returns the number of names that could not be read, and the errno of the first one."""
        first = ffi.new("int *")
        return int(lib.monarch_scan_errors(self._scan, first)), int(first[0])

    @property
    def up_ino(self) -> int:
        """The inode number of ".." in the root's listing; 0 if the root has not been listed."""
        return int(lib.monarch_scan_up(self._scan))

    def close(self, limit_s: float = END_LIMIT_S) -> int:
        """Ends the scan. Returns the number of threads that did not end within `limit_s` because
        the source does not answer. A second call has no effect."""
        left = 0
        self._free()
        if self._scan != ffi.NULL:
            left = int(lib.monarch_scan_stop(self._scan, max(0, int(limit_s * 1000))))
            self._scan = ffi.NULL
        return left

    def _free(self) -> None:
        lib.monarch_batch_free(self._batch)
        self._batch = ffi.NULL
