"""Many reads in flight at once, by threads in C (csrc/loaders/reads.c).

A source on a parallel file system takes milliseconds to answer a request, and answers many at a
time. The threads hold no Python lock and take no signal; a forked child starts its own.
"""

import errno
import os
from contextlib import suppress
from typing import Any

import numpy as np

from monarch_py.errors import ConfigError
from monarch_py.native import Int32s, Ints, ffi, lib, pointer

# How many reads are in flight at once unless the caller says otherwise. 16 reads of 128 KiB every
# 4 ms are 500 MB/s.
IN_FLIGHT = 16


def read_all(
    descriptors: Int32s,
    offsets: Ints,
    lengths: Ints,
    out: Any,
    starts: Ints,
    *,
    in_flight: int = IN_FLIGHT,
) -> None:
    """Reads lengths[i] bytes at offsets[i] of descriptors[i] to out[starts[i]:], for each read i.

    At most `in_flight` reads are under way at once; they begin in order. The caller's thread makes
    reads too, so Ctrl-C counts when all reads have ended.

    descriptors : (reads,) int32
    offsets, lengths, starts : (reads,) int64 [bytes]
    out : a writable, contiguous buffer

    Raises OSError, with the name of the file, of the first read that failed; a file that ends too
    early is an error as well (EIO). Raises ConfigError for reads that do not fit into `out`.
    """
    memory = memoryview(out).cast("B")
    count = len(descriptors)
    if not len(offsets) == len(lengths) == len(starts) == count:
        raise ConfigError("descriptors, offsets, lengths, starts: give one of each for every read")
    if in_flight < 1:
        raise ConfigError(f"in_flight: {in_flight} reads at once; give 1 or more")
    if not count:
        return
    if min(np.min(offsets), np.min(lengths), np.min(starts)) < 0:
        raise ConfigError("offsets, lengths, starts: one is negative; give 0 or more")
    if np.max(np.asarray(starts) + lengths) > len(memory):
        raise ConfigError(f"out: {len(memory)} bytes do not hold all reads; give a larger buffer")
    base = address(memory)
    read_to(descriptors, offsets, lengths, base + np.asarray(starts), in_flight=in_flight)


def address(memory: Any) -> int:
    """Where a writable, contiguous buffer lies. It must outlive the reads to it."""
    buffer = ffi.from_buffer("char[]", memory, require_writable=True)
    return int(ffi.cast("uintptr_t", buffer))


def read_to(
    descriptors: Int32s,
    offsets: Ints,
    lengths: Ints,
    addresses: Ints,
    *,
    in_flight: int = IN_FLIGHT,
) -> None:
    """As `read_all`, to any places in memory, which nobody checks.

    addresses : (reads,) int64
    """
    count = len(descriptors)
    error = ffi.new("int *")
    # Held until the reads have ended: what `pointer` makes is gone with its array.
    to = np.ascontiguousarray(addresses, dtype=np.int64)
    failed = lib.monarch_read_all(
        pointer(descriptors, np.int32),
        pointer(offsets, np.int64),
        pointer(lengths, np.int64),
        ffi.cast("char *const *", pointer(to)),
        count,
        in_flight,
        error,
    )
    if failed < count:
        raise _failure(int(descriptors[failed]), int(offsets[failed]), int(lengths[failed]), error)


def _failure(descriptor: int, offset: int, length: int, error: Any) -> OSError:
    name = f"descriptor {descriptor}"
    with suppress(OSError):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
    if error[0]:
        return OSError(error[0], os.strerror(error[0]), name)
    return OSError(errno.EIO, f"the file ends before byte {offset + length}", name)
