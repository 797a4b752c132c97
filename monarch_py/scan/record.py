"""The record of a scan of all sources, as bytes for the other nodes of a session.

    u64 length of the head | head (JSON) | batches, one after the other (columns.py)

The bytes come over MPI from a process of the same version and the same user. They are checked
against mistakes, not against malice.
"""

import json
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from monarch_py.config import Config
from monarch_py.native import Kind, ffi
from monarch_py.scan.batch import END_LIMIT_S, Batch, Root
from monarch_py.scan.columns import pack, unpack
from monarch_py.scan.walk import Walk, read_root

LENGTH = struct.Struct("<Q")
BEGAN = struct.Struct("<d")
# Pause between two looks at a scan that has no batch yet [s].
PAUSE_S = 0.002
# Files of a source that other nodes look at, to check that they see the same file system.
SAMPLES = 3


@dataclass(slots=True)
class _Listed:
    """One source in the head.  batches : lengths of its batches;  root_ino : inode of its root;
    samples : (path, inode) of a few files"""

    errors: int
    error: int
    seconds: float
    root: dict[str, Any]
    root_ino: int
    batches: list[int]
    samples: list[tuple[str, int]]


def record_sources(config: Config) -> bytes:
    """Lists all sources one by one, as a daemon would. OSError if a source cannot be opened."""
    listed, data = [], []
    for number, source in enumerate(config.sources):
        fd = os.open(source.real_path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            rate, nobody = config.scan_ops_per_s or 0, ffi.new("uint32_t *")
            walk = Walk(fd, number, config.scan_threads, rate, nobody)
            try:
                batches, samples = _packed(walk)
                root, ino = asdict(read_root(fd)), os.fstat(fd).st_ino
                lengths = [len(batch) for batch in batches]
                chosen = samples[:: max(1, len(samples) // SAMPLES)][:SAMPLES]
                listed.append(_Listed(*walk.errors(), walk.seconds, root, ino, lengths, chosen))
                data += batches
            finally:
                walk.close()
        finally:
            os.close(fd)
    head = json.dumps([asdict(source) for source in listed]).encode()
    return b"".join([LENGTH.pack(len(head)), head, *data])


def _packed(walk: Walk) -> tuple[list[bytes], list[tuple[str, int]]]:
    """All batches packed, and (path, inode) of the first file of each."""
    batches, samples = [], []
    while not walk.is_finished:
        batch = walk.take()
        if batch is None:
            time.sleep(PAUSE_S)
            continue
        text = bytes(ffi.buffer(batch.pool, batch.used_bytes))
        batches.append(pack(batch.entries, text))
        files = np.flatnonzero(batch.entries["kind"] == Kind.FILE)
        if len(files):
            first = batch.entries[files[0]]
            at = int(first["path"])
            path = text[at : at + int(first["path_len"])]
            samples.append((os.fsdecode(path), int(first["ino"])))
    return batches, samples


class _Told:
    """The Scan of one source, read from a record."""

    def __init__(self, number: int, listed: _Listed, batches: Iterator[memoryview]) -> None:
        self._number, self._listed, self._batches = number, listed, batches
        self.is_finished = False

    @property
    def seconds(self) -> float:
        return self._listed.seconds

    def take(self) -> Batch | None:
        data = next(self._batches, None)
        if data is None:
            self.is_finished = True
            return None
        entries, text = unpack(data, self._number)
        # `_text` keeps the memory alive until the next batch is taken.
        self._text = ffi.from_buffer(text)
        return Batch(entries, ffi.cast("char *", self._text), len(text))

    def want(self, directory: str, *, is_deep: bool) -> None:
        """Does nothing: the whole record is available at once."""

    def allow(self, wanted: int, more_others: int) -> None:
        """Does nothing: a record does not read the source."""

    def errors(self) -> tuple[int, int]:
        return self._listed.errors, self._listed.error

    def close(self, limit_s: float = END_LIMIT_S) -> int:
        self._batches = iter(())
        return 0


class Record:
    """Reads what `record_sources` has written. ValueError for anything else."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        try:
            (length,) = LENGTH.unpack_from(self._data)
            head = json.loads(bytes(self._data[LENGTH.size : LENGTH.size + length]))
            self._sources = [_Listed(**source) for source in head]
        except (struct.error, TypeError, ValueError) as error:
            raise ValueError(f"no record of a scan: {error}") from error
        self._first = LENGTH.size + length
        if len(self._data) != self._first + sum(sum(s.batches) for s in self._sources):
            raise ValueError("no record of a scan: its batches are not all there")

    def scan(self, number: int) -> _Told:
        """The scan of one source."""
        before = sum(sum(source.batches) for source in self._sources[:number])
        listed = self._sources[number]
        return _Told(number, listed, self._slices(self._first + before, listed.batches))

    def root(self, number: int) -> Root:
        return Root(**self._sources[number].root)

    def root_ino(self, number: int) -> int:
        return self._sources[number].root_ino

    def samples(self, number: int) -> list[tuple[str, int]]:
        """A few files of a source, if it has any: relative path and inode."""
        return [(path, ino) for path, ino in self._sources[number].samples]

    def _slices(self, at: int, lengths: list[int]) -> Iterator[memoryview]:
        for length in lengths:
            yield self._data[at : at + length]
            at += length


def give(data: bytes, began: float) -> int:
    """Writes a record into anonymous memory. Returns the descriptor, from which this node's daemon
    can `take` it. OSError without memory.

    began : when the scan began, on this node's time.monotonic() [s]
    """
    fd = os.memfd_create("monarch-scan", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(BEGAN.pack(began))
        file.write(data)
    return fd


def take(fd: int) -> tuple[Record, float]:
    """Returns what `give` was given, and closes the descriptor. ValueError for anything else."""
    with open(fd, "rb") as file:
        file.seek(0)
        data = file.read()
    if len(data) < BEGAN.size:
        raise ValueError("no record of a scan: it is empty")
    return Record(memoryview(data)[BEGAN.size :]), float(BEGAN.unpack_from(data)[0])
