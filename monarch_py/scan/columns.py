"""Compresses a batch of entries to 20 to 40 bytes per file.

Columns whose values differ little from file to file are delta-encoded. All columns are transposed
(first bytes of all values, then second bytes, and so on) and compressed.
"""

import struct
import zlib

import numpy as np

from monarch_py.arrays import ENTRY, Array, Uints
from monarch_py.native import Kind

HEAD = struct.Struct("<II")  # the number of entries, and the length of the text [bytes]
# The compression level. Higher levels take twice as long, and the result is only 3 % smaller.
LEVEL = 3
BLOCK = np.uint64(512)

# Columns that are not packed. `hash` is computed again by the node that adds an entry to its
# catalog. `source` is the same in all entries of the batch. `version` counts changes after the
# scan.
LEFT_OUT = ("hash", "source", "version")
COLUMNS = tuple(name for name in ENTRY.names or () if name not in LEFT_OUT)
# An item a: b means that column a is stored as its difference from column b of the same entry.
# `unpack` decodes the items in this sequence. So if b is itself a key, its item must come before
# that of a.
FROM_OTHER = {"ctime_ns": "mtime_ns", "btime_ns": "ctime_ns", "atime_ns": "mtime_ns"}
# For these columns, only the difference from the previous entry's value is stored.
FROM_BEFORE = ("ino", "mtime_ns", "place")


def pack(entries: Array, text: bytes) -> bytes:
    """Packs entries (n,) of dtype ENTRY into the bytes that `unpack` reads.

    text : the paths of the entries and the targets of links, one after the other
    """
    told = {name: entries[name].copy() for name in COLUMNS}
    for name, other in FROM_OTHER.items():
        told[name] -= entries[other]
    for name in FROM_BEFORE:
        told[name][1:] -= entries[name][:-1]
    told["blocks"] -= _blocks_of(entries["size"])
    told["path"], told["copy_ino"] = _off_the_order(entries)
    parts = [_bytewise(told[name]) for name in COLUMNS]
    return HEAD.pack(len(entries), len(text)) + zlib.compress(b"".join([*parts, text]), LEVEL)


def unpack(data: bytes | memoryview, source: int) -> tuple[Array, bytes]:
    """Returns the entries (n,) and the texts that `pack` has packed. Raises ValueError for data
    that `pack` did not write.

    source : number of the source, set in all entries
    """
    n, n_text = HEAD.unpack_from(data)
    try:
        plain = zlib.decompress(data[HEAD.size :])
    except zlib.error as error:
        raise ValueError(f"not a batch of entries: {error}") from error
    entries = np.zeros(n, dtype=ENTRY)
    if len(plain) != n_text + n * sum(ENTRY[name].itemsize for name in COLUMNS):
        raise ValueError("not a batch of entries: its length differs from the length in its header")
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


def _bytewise(column: Array) -> bytes:
    """Returns the bytes of a column, transposed: the first bytes of all values, then the second
    bytes, and so on. Equal bytes then lie together and compress well."""
    raw = column.view(np.uint8).reshape(len(column), column.itemsize)
    return bytes(raw.T.tobytes())


def _blocks_of(sizes: Array) -> Uints:
    """Returns the least number of 512-byte blocks that a file of each size needs. Most files occupy
    exactly this number."""
    return np.asarray((sizes + (BLOCK - np.uint64(1))) // BLOCK)


def _off_the_order(entries: Array) -> tuple[Array, Array]:
    """Returns two columns: one for the positions of the paths in the text, one for those of the
    targets of symbolic links. Each value is the difference from the expected position. A path is
    expected directly behind the previous path. A link's target is expected directly behind the
    link's path; its position is in the link's `copy_ino`. `_put_in_order` computes the positions
    again."""
    paths = entries["path"].copy()
    paths[1:] -= _ends(entries)[:-1]
    targets = entries["copy_ino"] - np.where(
        entries["kind"] == Kind.LINK, _ends(entries), np.uint64(0)
    )
    return paths, targets.astype(np.uint64)


def _put_in_order(entries: Array) -> None:
    steps = entries["path"].copy()
    steps[1:] += entries["path_len"][:-1].astype(np.uint64) + np.uint64(1)
    entries["path"] = np.cumsum(steps, dtype=np.uint64)
    entries["copy_ino"] += np.where(entries["kind"] == Kind.LINK, _ends(entries), np.uint64(0))


def _ends(entries: Array) -> Uints:
    """Returns the position behind each path and its NUL."""
    return np.asarray(entries["path"] + entries["path_len"] + np.uint64(1))
