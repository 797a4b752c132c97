"""A batch of entries as few bytes: what differs little from file to file is written as differences,
byte by byte of all files together, and compressed. 20 to 40 bytes a file."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.native import ENTRY, Kind

__all__ = ["pack", "unpack"]

HEAD = struct.Struct("<II")  # entries, bytes of text
# Higher ones take twice as long for a thirtieth less.
LEVEL = 3
BLOCK = np.uint64(512)

# `hash` is computed anew, by whoever adds the entry; `source` is said once for all; a version
# counts changes since; where a text lies follows from the order.
LEFT_OUT = ("hash", "source", "version")
COLUMNS = tuple(name for name in ENTRY.names or () if name not in LEFT_OUT)
# In this order, so that what a time is compared with is there already when it is read.
FROM_OTHER = {"ctime_ns": "mtime_ns", "btime_ns": "ctime_ns", "atime_ns": "mtime_ns"}
FROM_BEFORE = ("ino", "mtime_ns", "place")


def pack(entries: npt.NDArray[Any], text: bytes) -> bytes:
    """entries : (n,) of dtype ENTRY whose texts lie in `text` one behind the other."""
    told = {name: entries[name].copy() for name in COLUMNS}
    for name, other in FROM_OTHER.items():
        told[name] -= entries[other]
    for name in FROM_BEFORE:
        told[name][1:] -= entries[name][:-1]
    told["blocks"] -= _blocks_of(entries["size"])
    told["path"], told["copy_ino"] = _off_the_order(entries)
    parts = [_bytewise(told[name]) for name in COLUMNS]
    return HEAD.pack(len(entries), len(text)) + zlib.compress(b"".join([*parts, text]), LEVEL)


def unpack(data: bytes | memoryview, source: int) -> tuple[npt.NDArray[Any], bytes]:
    """The entries (n,), and their texts; ValueError for what `pack` has not written."""
    n, n_text = HEAD.unpack_from(data)
    try:
        plain = zlib.decompress(data[HEAD.size :])
    except zlib.error as error:
        raise ValueError(f"no batch of entries: {error}") from error
    entries = np.zeros(n, dtype=ENTRY)
    if len(plain) != n_text + n * sum(ENTRY[name].itemsize for name in COLUMNS):
        raise ValueError("a batch of entries of another length than it says")
    at = 0
    for name in COLUMNS:
        kind = ENTRY[name]
        raw = np.frombuffer(plain, dtype=np.uint8, count=n * kind.itemsize, offset=at)
        entries[name] = raw.reshape(kind.itemsize, n).T.copy().view(kind)[:, 0]
        at += n * kind.itemsize
    for name in FROM_BEFORE:
        entries[name] = np.cumsum(entries[name], dtype=ENTRY[name])
    for name, other in FROM_OTHER.items():
        entries[name] += entries[other]
    entries["blocks"] += _blocks_of(entries["size"])
    _put_in_order(entries)
    entries["source"] = source
    return entries, plain[at:]


def _bytewise(column: npt.NDArray[Any]) -> bytes:
    """First bytes first, so that those which are all alike lie together."""
    raw = column.view(np.uint8).reshape(len(column), column.itemsize)
    return bytes(raw.T.tobytes())


def _blocks_of(sizes: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """What most files of these sizes take."""
    blocks: npt.NDArray[np.uint64] = (sizes + (BLOCK - np.uint64(1))) // BLOCK
    return blocks


def _off_the_order(entries: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """How far paths and targets lie from where `_put_in_order` takes them to be: for a link's
    target nowhere but behind its path, for the next path behind both."""
    paths = entries["path"].copy()
    paths[1:] -= _ends(entries)[:-1]
    targets = entries["copy_ino"] - np.where(
        entries["kind"] == Kind.LINK, _ends(entries), np.uint64(0)
    )
    return paths, targets.astype(np.uint64)


def _put_in_order(entries: npt.NDArray[Any]) -> None:
    steps = entries["path"].copy()
    steps[1:] += entries["path_len"][:-1].astype(np.uint64) + np.uint64(1)
    entries["path"] = np.cumsum(steps, dtype=np.uint64)
    entries["copy_ino"] += np.where(entries["kind"] == Kind.LINK, _ends(entries), np.uint64(0))


def _ends(entries: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Where the path's text ends."""
    ends: npt.NDArray[np.uint64] = entries["path"] + entries["path_len"] + np.uint64(1)
    return ends
