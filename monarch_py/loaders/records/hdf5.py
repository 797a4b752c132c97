"""Finds where the rows of an HDF5 dataset lie, and decodes its filtered chunks.

h5py reads one row after the other under one lock. So h5py only finds where the rows lie. The rows
are then read by offset, many at a time, without h5py. Chunks are decoded in memory, by zlib and
NumPy or by HDF5's own filters.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import Array, Ints
from monarch_py.errors import MonarchError
from monarch_py.plan.builders import hdf5_chunks

# Used as the offset of a chunk that was never written. The file contains no bytes of such a chunk.
NOWHERE = -1
# The numbers by which HDF5 identifies two filters.
DEFLATE, SHUFFLE = 1, 2


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a dataset in one file.

    count : the number of rows
    dtype : the type of a row's elements;  shape : the shape of a row
    offset : the offset of row 0 in the file [bytes]; the other rows follow row 0. None if the rows
        lie in `chunks`, or if the dataset is empty
    """

    count: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int | None
    chunks: "Chunks | None"

    @property
    def form(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        return self.dtype, self.shape

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Chunks:
    """The chunks of a dataset. The chunks that hold parts of the same rows form a band.

    shape : the shape of a chunk; its first number is the number of rows in a band
    offset, size : (bands, chunks of a band) int64, the offset and the length of each chunk in the
        file [bytes]; the offset of a chunk that was never written is NOWHERE
    skipped : (bands, chunks of a band) uint32, one bit for each filter: 1 if the filter was not
        applied to the chunk
    is_filtered : whether chunks must be decoded before their rows can be used
    fill : the value of elements that were never written
    """

    shape: tuple[int, ...]
    offset: Ints
    size: Ints
    skipped: Array
    is_filtered: bool
    fill: Any

    def corners(self, row: tuple[int, ...]) -> list[tuple[slice, ...]]:
        """Returns, for each chunk of a band, the slices of a row that lie in the chunk. The slices
        are the same for all rows.

        row : the shape of a row
        """
        grid = [-(-size // step) for size, step in zip(row, self.shape[1:], strict=True)]
        return [
            tuple(
                slice(at * step, min((at + 1) * step, size))
                for at, step, size in zip(place, self.shape[1:], row, strict=True)
            )
            for place in np.ndindex(*grid)
        ]

    def part(self, corner: tuple[slice, ...]) -> tuple[slice, ...]:
        """Returns the slices of a chunk that contain rows' values. At the edge of the dataset, the
        rest of the chunk is padding.

        corner : the part of a row that the chunk holds, as `corners` returns it
        """
        return tuple(slice(0, each.stop - each.start) for each in corner)


def import_h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise MonarchError("h5py is not installed; pip install h5py") from None
    return h5py


@contextmanager
def _opened(path: Path, dataset: str) -> Iterator[Any]:
    """Opens the dataset, and closes it at the end of the `with` block. Raises MonarchError if the
    file cannot be read or has no such dataset."""
    h5py = import_h5py()
    try:
        with h5py.File(path, "r") as file:
            found = file.get(dataset)
            if not isinstance(found, h5py.Dataset):
                raise MonarchError(f"{path}: no dataset {dataset!r}; correct dataset=")
            yield found
    except (OSError, RuntimeError) as error:
        raise MonarchError(f"{path}: {error}") from error


def rows_of(path: Path, dataset: str) -> Rows:
    """Returns where the rows of a dataset lie. Raises MonarchError if the rows cannot be read by
    offset; the message names the file."""
    with _opened(path, dataset) as found:
        if found.ndim == 0:
            raise MonarchError(f"{path}: {dataset!r} has no rows; name another dataset")
        dtype = found.dtype
        if dtype.hasobject or not _is_as_in_memory(found):
            raise MonarchError(
                f"{path}: the elements of {dataset!r} ({dtype}) have no fixed size, or h5py"
                " converts them; read them through h5py"
            )
        chunks = None if found.chunks is None else _chunks_of(found)
        offset = found.id.get_offset() if chunks is None else None
        if chunks is None and offset is None and found.size:
            raise MonarchError(
                f"{path}: {dataset!r} is compact, virtual, external or not written, so it cannot be"
                " read by offset; read it through h5py"
            )
        return Rows(found.shape[0], dtype, found.shape[1:], offset, chunks)


def _is_as_in_memory(found: Any) -> bool:
    """Whether an element has the same bytes in the file as in an array that h5py returns. The
    bytes differ, for example, if the file stores numbers with fewer bits or pads strings in
    another way."""
    kind = import_h5py().h5t.py_create(found.dtype, logical=True)
    return bool(found.id.get_type().equal(kind))


def _chunks_of(found: Any) -> Chunks:
    shape = found.chunks
    grid = [-(-size // step) for size, step in zip(found.shape, shape, strict=True)]
    places = int(np.prod(grid, dtype=np.int64))
    offset = np.full(places, NOWHERE, dtype=np.int64)
    size = np.zeros(places, dtype=np.int64)
    skipped = np.zeros(places, dtype=np.uint32)
    for chunk in hdf5_chunks(found):
        place = [at // step for at, step in zip(chunk.chunk_offset, shape, strict=True)]
        number = int(np.ravel_multi_index(place, grid))
        offset[number], size[number] = chunk.byte_offset, chunk.size
        skipped[number] = chunk.filter_mask
    table = (grid[0], -1) if places else (0, 1)
    return Chunks(
        shape,
        offset.reshape(table),
        size.reshape(table),
        skipped.reshape(table),
        found.id.get_create_plist().get_nfilters() > 0,
        found.fillvalue,
    )


class Decoder:
    """Decodes the chunks of a dataset in one file.

    If `gzip` and `shuffle` are the only filters, zlib and NumPy undo them. Otherwise HDF5 undoes
    all filters: a chunk's encoded bytes are written into a dataset in memory that has the same
    filters, and HDF5 decodes them when that dataset is read. The constructor raises MonarchError if
    the dataset in the file cannot be opened.

    last : the number and the rows of the band that was decoded last. A band consists of the chunks
        that hold parts of the same rows
    """

    def __init__(self, path: Path, dataset: str, chunk: tuple[int, ...]) -> None:
        self._path, self._dataset = path, dataset
        self.last: tuple[int, Array] | None = None
        with _opened(path, dataset) as found:
            settings = found.id.get_create_plist()
            filters = [settings.get_filter(at)[:3:2] for at in range(settings.get_nfilters())]
            # for each filter: (its number in HDF5, its parameters)
            self._filters: list[tuple[int, tuple[int, ...]]] = filters
            is_simple = all(number in (DEFLATE, SHUFFLE) for number, _ in filters)
            self._other = None if is_simple else _InMemory(found, settings, chunk)

    def decode(self, content: Array, skipped: int, at: int, out: Array) -> None:
        """Decodes one chunk into `out`, which has the shape of a chunk.

        content : the chunk's bytes in the file;  skipped : one bit for each filter, 1 if the filter
            was not applied to the chunk
        at : the chunk's offset in the file, for messages
        """
        try:
            if self._other is None:
                self._undo(content, skipped, out)
            else:
                self._other.decode(content.tobytes(), skipped, out)
        except (OSError, RuntimeError, ValueError, zlib.error) as error:
            raise MonarchError(
                f"{self._path}: the chunk of {self._dataset!r} at byte {at} cannot be decoded"
                f" ({error}); check the file"
            ) from error

    def _undo(self, content: Any, skipped: int, out: Array) -> None:
        for place in reversed(range(len(self._filters))):
            number, parameters = self._filters[place]
            if skipped >> place & 1:
                continue
            if number == DEFLATE:
                content = zlib.decompress(content, zlib.MAX_WBITS, out.nbytes)
            else:  # SHUFFLE stores the first bytes of all elements, then all second bytes, ...
                shuffled = np.frombuffer(content, dtype=np.uint8).reshape(parameters[0], -1)
                content = np.ascontiguousarray(shuffled.T).reshape(-1)
        out[...] = np.frombuffer(content, dtype=out.dtype).reshape(out.shape)

    def close(self) -> None:
        if self._other is not None:
            self._other.close()


class _InMemory:
    """A dataset in memory, with the same filters as a dataset in a file. To decode a chunk of the
    file, `decode` writes the chunk's encoded bytes into this dataset, and then reads the rows from
    it."""

    _numbers = count()

    def __init__(self, found: Any, settings: Any, chunk: tuple[int, ...]) -> None:
        h5py = import_h5py()
        # HDF5 cannot open two files of the same name at once, even if they are in memory.
        name = f"monarch-decoded-{next(self._numbers)}"
        self._file = h5py.File(name, "w", driver="core", backing_store=False)
        space = h5py.h5s.create_simple((2 * chunk[0], *chunk[1:]))  # 2 chunks: see _forget_chunk
        # Each chunk is read once, so a cache would not help.
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        access.set_chunk_cache(1, 0, 1.0)
        kind = found.id.get_type()
        made = h5py.h5d.create(self._file.id, b"x", kind, space, dcpl=settings, dapl=access)
        self._found = h5py.Dataset(made)
        self._rows = np.s_[: chunk[0]]
        self._behind = (chunk[0],) + (0,) * (len(chunk) - 1)
        self._skipped = 0

    def decode(self, content: bytes, skipped: int, out: Array) -> None:
        self._found.id.write_direct_chunk((0,) * out.ndim, content, skipped)
        self._forget_chunk(skipped)
        self._found.read_direct(out, self._rows)

    def _forget_chunk(self, skipped: int) -> None:
        """Makes HDF5 forget which filters were skipped for the first chunk. HDF5 remembers the
        skipped filters of the chunk that it used last, and does not notice that
        `write_direct_chunk` changes them. A read from the second chunk makes HDF5 forget those of
        the first."""
        if skipped or self._skipped:
            self._found[self._behind]
        self._skipped = skipped

    def close(self) -> None:
        self._file.close()
