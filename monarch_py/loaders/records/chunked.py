"""Reads HDF5 rows that lie in chunks. A row is not always one contiguous range of the file.

A filtered (encoded) chunk is read completely and decoded once, for all wanted rows in it. An
unfiltered chunk may contain only a part of each row. Only the parts of wanted rows are read from
it.
"""

from typing import Any, Protocol

import numpy as np

from monarch_py.arrays import Array, Ints
from monarch_py.loaders.records.hdf5 import NOWHERE, Chunks, Decoder, Rows
from monarch_py.loaders.records.joining import Extents


class Part(Protocol):
    """The reads that a batch needs from one file. Afterwards, `finish` makes rows from the bytes
    that were read.

    extents : the reads; `start` is the offset in the scratch buffer at which each read is stored
    scratch : the size of the scratch buffer [bytes]
    """

    extents: Extents
    scratch: int

    def finish(self, content: Array, out: Array) -> None:
        """Writes the rows of this file into `out`.

        content : (scratch,) uint8, the scratch buffer after the reads
        out : the rows of all files of the batch
        """


def _extents(file: int, offset: Ints, length: Ints) -> tuple[Extents, int]:
    """Returns the reads of n ranges of a file, and the size [bytes] of the scratch buffer, in which
    the ranges will lie back to back.

    offset, length : (n,) where each range begins in the file, and its length [bytes]
    """
    start = np.cumsum(length) - length
    of = np.full(len(offset), file, dtype=np.int32)
    return Extents(of, offset, length, start), int(length.sum())


def _at(first: Any, rest: tuple[slice, ...]) -> tuple[Any, ...]:
    return (first, *rest)


class RowParts:
    """Rows in chunks without filters. A row may lie in several chunks, with one contiguous part in
    each of them.

    file : the number of the file;  rows : where the file's rows lie
    numbers : (wanted,) int64, the index of each wanted row among the file's rows
    places : (wanted,) int64, the index of each wanted row in the `out` of `finish`
    """

    def __init__(self, file: int, rows: Rows, numbers: Ints, places: Ints) -> None:
        chunks = rows.chunks
        assert chunks is not None
        self._rows, self._chunks, self._places = rows, chunks, places
        band, within = np.divmod(numbers, chunks.shape[0])
        part = rows.dtype.itemsize * int(np.prod(chunks.shape[1:], dtype=np.int64))
        chunk = chunks.offset[band]  # shape: (wanted rows, chunks of a band)
        self._there = chunk != NOWHERE
        offset = (chunk + within[:, None] * part)[self._there]
        self.extents, self.scratch = _extents(file, offset, np.full(len(offset), part))

    def finish(self, content: Array, out: Array) -> None:
        rows, chunks = self._rows, self._chunks
        parts = content.view(rows.dtype).reshape(-1, *chunks.shape[1:])
        number = np.cumsum(self._there).reshape(self._there.shape) - 1
        for column, corner in enumerate(chunks.corners(rows.shape)):
            there = self._there[:, column]
            found = parts[_at(number[there, column], chunks.part(corner))]
            out[_at(self._places[there], corner)] = found
            out[_at(self._places[~there], corner)] = chunks.fill


class Bands:
    """Rows in filtered chunks. The chunks are decoded band by band. A band consists of all chunks
    that hold parts of the same rows.

    file : the number of the file;  rows : where the file's rows lie
    numbers : (wanted,) int64, the index of each wanted row among the file's rows
    places : (wanted,) int64, the index of each wanted row in the `out` of `finish`
    decoder : the file's decoder; it keeps the band that it decoded last, to save reading the band
        again
    """

    def __init__(
        self, file: int, rows: Rows, numbers: Ints, places: Ints, decoder: Decoder
    ) -> None:
        chunks = rows.chunks
        assert chunks is not None
        self._rows, self._chunks, self._decoder = rows, chunks, decoder
        self._places = places
        band, self._within = np.divmod(numbers, chunks.shape[0])
        self._bands, self._band_of = np.unique(band, return_inverse=True)
        self._kept = decoder.last if decoder.last and decoder.last[0] in self._bands else None
        read = self._bands if self._kept is None else self._bands[self._bands != self._kept[0]]
        there = chunks.offset[read] != NOWHERE
        self.extents, self.scratch = _extents(
            file, chunks.offset[read][there], chunks.size[read][there]
        )

    def finish(self, content: Array, out: Array) -> None:
        at = 0
        for number, band in enumerate(self._bands.tolist()):
            if self._kept is not None and self._kept[0] == band:
                decoded = self._kept[1]
            else:
                decoded = np.empty((self._chunks.shape[0], *self._rows.shape), self._rows.dtype)
                at = self._decode(band, content, at, decoded)
                self._decoder.last = band, decoded
            wanted = self._band_of == number
            out[self._places[wanted]] = decoded[self._within[wanted]]

    def _decode(self, band: int, content: Array, at: int, out: Array) -> int:
        """Decodes the chunks of one band into `out`. The chunks' bytes begin at `content[at]`.
        Returns the index in `content` at which the next band begins."""
        chunks = self._chunks
        chunk = np.empty(chunks.shape, self._rows.dtype)
        for column, corner in enumerate(chunks.corners(self._rows.shape)):
            offset, size = int(chunks.offset[band, column]), int(chunks.size[band, column])
            if offset == NOWHERE:
                out[_at(slice(None), corner)] = chunks.fill
                continue
            skipped = int(chunks.skipped[band, column])
            self._decoder.decode(content[at : at + size], skipped, offset, chunk)
            out[_at(slice(None), corner)] = chunk[_at(slice(None), chunks.part(corner))]
            at += size
        return at


def plain_offsets(rows: Rows) -> Ints | None:
    """Returns each row's offset in the file, (rows,) int64. Returns None if some rows may be
    divided into several ranges of the file."""
    if rows.offset is not None:
        return rows.offset + rows.row_bytes * np.arange(rows.count, dtype=np.int64)
    chunks = rows.chunks
    if chunks is None:  # no rows
        return np.zeros(rows.count, dtype=np.int64)
    if chunks.is_filtered or chunks.offset.shape[1] != 1 or _is_padded(chunks, rows):
        return None
    if np.any(chunks.offset == NOWHERE):
        return None
    band, within = np.divmod(np.arange(rows.count, dtype=np.int64), chunks.shape[0])
    offset: Ints = chunks.offset[band, 0] + within * rows.row_bytes
    return offset


def _is_padded(chunks: Chunks, rows: Rows) -> bool:
    """Whether chunks are wider than a row in some dimension, so that padding may lie between the
    parts of a row. Call this function only if each chunk contains complete rows."""
    return chunks.shape[1:] != rows.shape
