"""Keeps many reads in flight at once, with threads in C (csrc/loaders/reads.c).

A parallel file system takes milliseconds to answer a request, but answers many requests at a time.
The threads do not hold Python's global interpreter lock, and receive no signals. A forked child
starts threads of its own.
"""

import errno
import os
from contextlib import suppress
from typing import Any

import numpy as np

from monarch_py.arrays import Int32s, Ints, pointer
from monarch_py.errors import ConfigError
from monarch_py.native import ffi, lib

# The default number of reads in flight at once. If each read of 128 KiB takes 4 ms, 16 reads at a
# time reach 500 MB/s.
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

    At most `in_flight` reads are under way at once. The reads begin in the order of the arguments.
    The caller's thread makes reads too, so Ctrl-C takes effect only after all reads have ended.

    descriptors : (reads,) int32
    offsets, lengths, starts : (reads,) int64 [bytes]
    out : a writable, contiguous buffer

    If reads fail, raises the OSError of the first read that failed, with the file's name. A read
    also fails (EIO) if its file ends too early. Raises ConfigError for arguments that cannot work,
    such as reads that do not fit into `out`.
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
        raise ConfigError(f"out: {len(memory)} bytes, too few for all reads; give a larger buffer")
    base = address(memory)
    read_to(descriptors, offsets, lengths, base + np.asarray(starts), in_flight=in_flight)


def address(memory: Any) -> int:
    """Returns the address of a writable, contiguous buffer. The caller must keep the buffer until
    the reads into it have ended."""
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
    """Reads like `read_all`, but to memory addresses. The addresses are not checked.

    addresses : (reads,) int64
    """
    count = len(descriptors)
    error = ffi.new("int *")
    # The variable `to` keeps the array alive until the reads have ended. A pointer alone would not.
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
