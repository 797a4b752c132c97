"""The record of a scan of all sources, as bytes for the other nodes of a session.

The bytes come over MPI from a process of the same version and user. So the code that reads them
detects errors, but does not protect against attacks.
"""

import os
import time
from contextlib import closing
from dataclasses import dataclass

import msgspec
import numpy as np

from monarch_py.config.schema import Config
from monarch_py.native import Kind, ffi
from monarch_py.scan.columns import pack, unpack
from monarch_py.scan.walk import END_LIMIT_S, Batch, Walk

# The pause between two polls of a scan that has no batch yet [s].
PAUSE_S = 0.002
# One node scans the sources for all nodes. Each other node examines this many files of each source,
# to check that it sees the same file system.
SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Listed:
    """The record of one source.

    errors, error : the number of names that could not be read, and the errno of the first one
    seconds : how long the scan took
    root_ino, up_ino : inode numbers of the root directory and of its ".."
    samples : (relative path, inode number) of at most SAMPLES files
    batches : the batches of the scan, packed (columns.py)
    """

    errors: int
    error: int
    seconds: float
    root_ino: int
    up_ino: int
    samples: list[tuple[bytes, int]]
    batches: list[memoryview]


# The records of all sources, in the order of the sources' numbers, and when the scan began [s].
# That time is on this node's time.monotonic(), even if another node has scanned the sources.
Scanned = tuple[list[Listed], float]


def record_sources(config: Config) -> bytes:
    """Scans all sources one after the other. Returns the record of the scan as bytes. Raises
    OSError if a source cannot be opened."""
    listed = []
    for number, source in enumerate(config.sources):
        fd = os.open(source.real_path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            listed.append(_listed(fd, number, config))
        finally:
            os.close(fd)
    return msgspec.msgpack.encode(listed)


def read_record(data: bytes) -> list[Listed]:
    """Decodes the result of `record_sources`: returns the records of all sources, in the order of
    the sources' numbers. Raises ValueError for any other data."""
    try:
        return msgspec.msgpack.decode(data, type=list[Listed])
    except msgspec.DecodeError as error:
        raise ValueError(f"not a record of a scan: {error}") from error


def _listed(fd: int, number: int, config: Config) -> Listed:
    rate, nobody = config.scan_ops_per_s or 0, ffi.new("uint32_t *")
    with closing(Walk(fd, number, config.scan_threads, rate, nobody)) as walk:
        batches, samples = _packed(walk)
        chosen = samples[:: max(1, len(samples) // SAMPLES)][:SAMPLES]
        root_ino = os.fstat(fd).st_ino
        return Listed(*walk.errors(), walk.seconds, root_ino, walk.up_ino, chosen, batches)


def _packed(walk: Walk) -> tuple[list[memoryview], list[tuple[bytes, int]]]:
    """Returns all batches of the scan, packed. Also returns one file of each batch that contains
    files: (path, inode number) of the first file."""
    batches, samples = [], []
    while not walk.is_finished:
        batch = walk.take()
        if batch is None:
            time.sleep(PAUSE_S)
            continue
        text = bytes(ffi.buffer(batch.pool, batch.used_bytes))
        batches.append(memoryview(pack(batch.entries, text)))
        files = np.flatnonzero(batch.entries["kind"] == Kind.FILE)
        if len(files):
            first = batch.entries[files[0]]
            at = int(first["path"])
            samples.append((text[at : at + int(first["path_len"])], int(first["ino"])))
    return batches, samples


class RecordedScan:
    """The scan of one source, replayed from a record. All batches are available from the start.
    Nothing is read from the source, so `want` and `allow` have no effect."""

    def __init__(self, number: int, listed: Listed) -> None:
        self._number, self._listed, self.seconds = number, listed, listed.seconds
        self.up_ino = listed.up_ino
        self._batches = iter(listed.batches)
        self.is_finished = False

    def take(self) -> Batch | None:
        data = next(self._batches, None)
        if data is None:
            self.is_finished = True
            return None
        entries, text = unpack(data, self._number)
        # `_text` keeps the memory of the batch's paths alive until the next batch is taken.
        self._text = ffi.from_buffer(text)
        return Batch(entries, ffi.cast("char *", self._text), len(text))

    def want(self, directory: str, *, is_deep: bool) -> None:
        """Does nothing."""

    def allow(self, wanted: int, more_others: int) -> None:
        """Does nothing."""

    def errors(self) -> tuple[int, int]:
        return self._listed.errors, self._listed.error

    def close(self, limit_s: float = END_LIMIT_S) -> int:
        self._batches = iter(())
        return 0


Scan = Walk | RecordedScan
