"""Datasets of many samples in few files, with many reads of a batch in flight at once."""

import mmap
import os
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from monarch_py.arrays import Array, Int32s, Ints
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.loaders.records.chunked import Bands, Part, RowParts, plain_offsets
from monarch_py.loaders.records.descriptors import MOST_OPEN, Descriptors
from monarch_py.loaders.records.files import KINDS, indexed
from monarch_py.loaders.records.form import Form
from monarch_py.loaders.records.hdf5 import Decoder, Rows, rows_of
from monarch_py.loaders.records.joining import PIECE, Extents, join, pieces
from monarch_py.loaders.records.reads import IN_FLIGHT, address, read_to
from monarch_py.plan.index import Index

# A gap is the range of unwanted bytes between two samples. One read that includes the gap returns
# both samples. Each process measures up to which gap one read is faster than two. The result is
# limited to the range from LEAST_GAP to MOST_GAP [bytes]. A gap below a page costs nothing, because
# sources read whole pages. MOST_GAP limits the load on the source, for the sake of other programs.
LEAST_GAP, MOST_GAP = mmap.PAGESIZE, PIECE // 2
# How many bytes of a TFRecord file precede the data of a record, and how many follow the data.
FRAME_BEFORE, FRAME_AFTER = 12, 4

# The datasets of this process. A forked child replaces their locks. Otherwise a lock that another
# thread of the parent held during the fork would stay locked in the child forever.
_OPEN: "weakref.WeakSet[RecordDataset]" = weakref.WeakSet()


def _renew_locks() -> None:
    for dataset in _OPEN:
        dataset._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)


class RecordDataset:
    """The samples of HDF5, TFRecord or tar (webdataset) files, or of files of fixed-size records::

        dataset = RecordDataset("train.h5", dataset="x")
        loader = DataLoader(dataset, batch_size=64, num_workers=4)

    A sample of an HDF5 file is a row, as an ndarray. A sample of another kind of file is bytes: a
    fixed-size record, the data of a record in a TFRecord file, or the part of a tar that holds one
    sample. Such a part includes tar headers; `tar_members` extracts the members. Samples are
    numbered in the order of the files' paths, and within a file in the file's order.

    A DataLoader requests a batch from `__getitems__`, which keeps up to `in_flight` reads under way
    at once. HDF5 files are read in this way too, by offset and without h5py. A filtered
    (compressed) chunk is decoded once per batch.

    Reads of neighbouring samples are joined, which helps if the training reads groups or runs of
    samples. Under a full shuffle, joining saves hardly anything: with batches of 64 from 87,632
    samples of 19 KB, 0.3 % of the requests (python -m benchmarks.loaders.records).

    path : a file or a directory. In a directory, all files whose names match `patterns` are read
    dataset : the name of the HDF5 dataset
    kind : one of KINDS; None to derive it from `dataset`, `record_bytes` and the name of `path`
    record_bytes, header_bytes : the sizes of a record and of a file's header, for fixed-size
        records [bytes]
    patterns : patterns of file names; by default, the usual names of files of this kind
    index : the index of the files below `path`, or the path of an index that `monarch plan index`
        made; None to index all files in the constructor
    length : the number of samples in the training's access plan. If the dataset has another number,
        ConfigError is raised
    join : one read covers two samples if at most this many unwanted bytes lie between them. With
        'auto', each process measures up to which gap one read is faster than two
    in_flight : the most reads that are under way at once

    Raises MonarchError, which names the file, if a file is missing, cannot be read or decoded, or
    does not have the size that the index gives. A dataset can be pickled; each process opens the
    files itself.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        dataset: str | None = None,
        kind: str | None = None,
        record_bytes: int | None = None,
        header_bytes: int = 0,
        patterns: Sequence[str] = (),
        index: Index | str | Path | None = None,
        length: int | None = None,
        join: int | Literal["auto"] = "auto",
        in_flight: int = IN_FLIGHT,
    ) -> None:
        if in_flight < 1:
            raise ConfigError(f"in_flight: {in_flight} reads at once; give 1 or more")
        if join != "auto" and join < 0:
            raise ConfigError(f"join: {join} bytes; give 0 or more, or 'auto'")
        path = Path(path)
        if index is None:
            index = indexed(path, kind, dataset, (record_bytes, header_bytes), tuple(patterns))
        elif not isinstance(index, Index):
            index = Index.load(Path(index))
        if index.kind not in KINDS or index.sample_file is None:
            raise ConfigError(
                f"index: its kind is {index.kind!r}; give one of the kinds {', '.join(KINDS)}"
            )
        self.index = index
        self._root = path if path.is_dir() else path.parent
        self._dataset = dataset
        self.join, self.in_flight = join, in_flight
        self._place_samples()
        if length is not None and length != len(self):
            raise ConfigError(
                f"length: {path} has {len(self)} samples and not {length}; index it again, and make"
                " the plan again"
            )
        self._begin()

    # --- where samples lie ---------------------------------------------------------------------

    def _place_samples(self) -> None:
        """Sets `sizes`, and the offset of each sample that is one contiguous range of a file."""
        index = self.index
        assert index.sample_file is not None
        assert index.sample_offset is not None and index.sample_length is not None
        self._file: Int32s = index.sample_file
        self._offset, self.sizes = index.sample_offset, index.sample_length
        # `rows`: the rows of each file, for HDF5 only. `_first`: the number of each file's first
        # sample.
        self.rows: list[Rows] = []
        self._is_plain = np.ones(index.files, dtype=np.bool_)
        counts = np.bincount(self._file, minlength=index.files)
        self._first = np.cumsum(counts) - counts
        if index.kind == "tfrecord":
            self._offset = self._offset + FRAME_BEFORE
            self.sizes = self.sizes - (FRAME_BEFORE + FRAME_AFTER)
        elif index.kind == "hdf5":
            self._place_rows(counts)

    def _place_rows(self, counts: Ints) -> None:
        if self._dataset is None:
            raise ConfigError("dataset: name the HDF5 dataset whose rows are the samples")
        self._offset = self._offset.copy()
        for number, count in enumerate(counts.tolist()):
            path = self._path(number)
            rows = rows_of(Path(path), self._dataset)
            if rows.count != count:
                raise MonarchError(
                    f"{path}: {self._dataset!r} has {rows.count} rows, and the index has {count};"
                    " index the dataset again"
                )
            if (rows.dtype, rows.shape) != (first := self.rows[0] if self.rows else rows).form:
                raise MonarchError(
                    f"{path}: its rows are {rows.dtype} {rows.shape}, and the rows of"
                    f" {self._path(0)} are {first.dtype} {first.shape}; give files with equal rows"
                )
            self.rows.append(rows)
            offsets = plain_offsets(rows)
            self._is_plain[number] = offsets is not None
            if offsets is not None:
                self._offset[self._first[number] :][:count] = offsets
        self.sizes = np.full(len(self._file), self.rows[0].row_bytes, dtype=np.int64)

    def _path(self, number: int) -> str:
        starts = self.index.starts
        name = self.index.pool[int(starts[number]) : int(starts[number + 1])].tobytes()
        return os.path.join(self._root, os.fsdecode(name))

    # --- what each process has of its own ------------------------------------------------------

    def _begin(self) -> None:
        """Creates what processes do not share: the open files, the decoders, and the largest gap at
        which two reads are joined. If `join` is 'auto', the process measures this gap later."""
        self._files = Descriptors(self._path, self.index.sizes)
        self._lock = threading.RLock()  # for the descriptors and decoders, which threads share
        _OPEN.add(self)
        self._decoders: dict[int, Decoder] = {}
        self._gap = None if self.join == "auto" else self.join

    def __getstate__(self) -> dict[str, Any]:
        own = ("_files", "_decoders", "_gap", "_lock")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def close(self) -> None:
        """Closes all files; the next read opens them again."""
        with self._lock:
            self._files.close()
            while self._decoders:
                self._decoders.popitem()[1].close()

    # --- samples -------------------------------------------------------------------------------

    @property
    def sample_form(self) -> Form:
        """The form of the samples, found without reading a sample."""
        if self.rows:
            return Form(self.rows[0].shape, self.rows[0].dtype, False)
        is_even = len(self.sizes) > 0 and bool((self.sizes == self.sizes[0]).all())
        return Form((int(self.sizes[0]),) if is_even else None, np.dtype(np.uint8), True)

    def __len__(self) -> int:
        return len(self._file)

    def __getitem__(self, number: int) -> Any:
        sample = self._one(number)
        return self.__getitems__([number])[0] if sample is None else sample

    def _one(self, number: int) -> Any:
        """Reads the sample with one call of pread. Returns None if this is not possible or fails;
        the caller must then read the sample with `__getitems__`."""
        count = len(self._file)
        number = number + count if -count <= number < 0 else number
        if not 0 <= number < count or not self._is_plain[self._file[number]]:
            return None
        size, offset = int(self.sizes[number]), int(self._offset[number])
        if size > PIECE:
            return None
        with self._lock:
            return self._by_one_read(int(self._file[number]), size, offset)

    def _by_one_read(self, file: int, size: int, offset: int) -> Any:
        descriptor = self._files.one(file)
        try:
            if not self.rows:
                content = os.pread(descriptor, size, offset)
                return content if len(content) == size else None
            row = np.empty(self.rows[0].shape, dtype=self.rows[0].dtype)
            memory: Any = row.reshape(-1).view(np.uint8)
            got = os.preadv(descriptor, [memory], offset)
        except OSError:
            return None
        return row if got == size else None

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        wanted = self._checked(numbers)
        if self.rows:
            out = np.empty((len(wanted), *self.rows[0].shape), dtype=self.rows[0].dtype)
            self._read(wanted, out.view(np.uint8).reshape(-1) if out.size else out)
            return [out[at, ...] for at in range(len(wanted))]
        ends = np.cumsum(self.sizes[wanted]).tolist()
        content = np.empty(ends[-1] if ends else 0, dtype=np.uint8)
        self._read(wanted, content)
        return [
            content[low:high].tobytes() for low, high in zip([0, *ends[:-1]], ends, strict=True)
        ]

    def read_into(self, samples: Sequence[int] | Array, out: Any) -> None:
        """Reads the samples back to back into `out`, a writable buffer. Sample i takes `sizes[i]`
        bytes."""
        wanted = self._checked(samples)
        memory = np.frombuffer(memoryview(out).cast("B"), dtype=np.uint8)
        needed = int(self.sizes[wanted].sum())
        if needed > len(memory):
            raise ConfigError(
                f"out: {len(memory)} bytes, but the samples have {needed}; give a larger buffer"
            )
        self._read(wanted, memory[:needed])

    def _checked(self, samples: Sequence[int] | Array) -> Ints:
        wanted = np.asarray(samples, dtype=np.int64)
        if not len(wanted):
            return wanted
        least, most, count = wanted.min(), wanted.max(), len(self)
        if not -count <= least <= most < count:
            raise IndexError(f"samples {least} to {most}, but the dataset has {count} samples")
        return wanted if least >= 0 else np.where(wanted < 0, wanted + count, wanted)

    # --- reads ---------------------------------------------------------------------------------

    def _read(self, wanted: Ints, out: Array) -> None:
        """Reads the samples into `out`, back to back.

        out : (total size of the samples [bytes],) uint8
        """
        length = self.sizes[wanted]
        start = np.cumsum(length) - length
        file = self._file[wanted]
        extents = Extents(file, self._offset[wanted], length, start)
        plain = self._is_plain[file]
        parts: list[Part] = []
        with self._lock:
            if not plain.all():
                parts = self._parts(wanted, file, np.flatnonzero(~plain))
                extents = extents.take(plain)
            try:
                self._read_all(extents, parts, out)
            except OSError as error:
                raise MonarchError(f"{error.filename}: {error.strerror}; check the file") from error

    def _parts(self, wanted: Ints, file: Int32s, places: Ints) -> list[Part]:
        """Some wanted rows must be made from chunks. Returns a Part for each file with such rows.

        places : the indices of these rows in `wanted`
        """
        found: list[Part] = []
        for number in np.unique(file[places]).tolist():
            rows = self.rows[number]
            assert rows.chunks is not None
            of = places[file[places] == number]
            within = wanted[of] - self._first[number]
            if rows.chunks.is_filtered:
                decoder = self._decoder(number, rows.chunks.shape)
                found.append(Bands(number, rows, within, of, decoder))
            else:
                found.append(RowParts(number, rows, within, of))
        return found

    def _decoder(self, number: int, chunk: tuple[int, ...]) -> Decoder:
        if number not in self._decoders:
            assert self._dataset is not None
            self._decoders[number] = Decoder(Path(self._path(number)), self._dataset, chunk)
        return self._decoders[number]

    def _read_all(self, extents: Extents, parts: list[Part], out: Array) -> None:
        joined = join(extents, self._gap or 0)
        if self._gap is None and len(joined.reads) > 1 and extents.length.min() < PIECE:
            joined = join(extents, self._measured_gap(extents))
        scratch = np.empty(joined.scratch, dtype=np.uint8)
        base = np.where(joined.in_scratch, address(scratch), address(out))
        reads = [_placed(joined.reads, base)]
        contents = [np.empty(part.scratch, dtype=np.uint8) for part in parts]
        for part, content in zip(parts, contents, strict=True):
            reads.append(_placed(part.extents, address(content)))
        self._read_extents(pieces(_together(reads)))
        copied = joined.copied
        for low, size, to in zip(copied.offset, copied.length, copied.start, strict=True):
            out[to : to + size] = scratch[low : low + size]
        if parts:
            rows = self.rows[0]
            table = out.view(rows.dtype).reshape(-1, *rows.shape)
            for part, content in zip(parts, contents, strict=True):
                part.finish(content, table)

    def _read_extents(self, extents: Extents) -> None:
        """Reads extents into memory. The `start` of each extent is a memory address here. Keeps at
        most MOST_OPEN files open at once."""
        if self.index.files > MOST_OPEN:
            numbers = np.unique(extents.file)
            for begin in range(0, len(numbers), MOST_OPEN):
                some = numbers[begin : begin + MOST_OPEN]
                self._read_of_open(extents.take(np.isin(extents.file, some)))
        else:
            self._read_of_open(extents)

    def _read_of_open(self, extents: Extents) -> None:
        read_to(
            self._files.of(extents.file),
            extents.offset,
            extents.length,
            extents.start,
            in_flight=self.in_flight,
        )

    def _measured_gap(self, extents: Extents) -> int:
        """Measures up to which gap between two samples one read is faster than two. Reads the first
        sample, and then a longer range that begins at the second sample. `crossing` computes the
        gap from the two durations. Returns 0 if the file ends too early for the longer range."""
        size, file = int(extents.length[0]), int(extents.file[1])
        low = int(extents.offset[1])
        more = min(PIECE, int(self.index.sizes[file]) - low)
        if more <= size:
            return 0
        memory = np.empty(more, dtype=np.uint8)
        one = extents.take(np.array([0]))
        other = Extents(extents.file[1:2], extents.offset[1:2], np.array([more]), one.start)
        seconds = []
        for each in (one, other):
            self._files.of(each.file)
            began = time.perf_counter()
            self._read_extents(_placed(each, address(memory), np.zeros(1, dtype=np.int64)))
            seconds.append(time.perf_counter() - began)
        self._gap = crossing(seconds[0], size, seconds[1], more, self.in_flight)
        return self._gap


def crossing(seconds: float, size: int, longer: float, more: int, in_flight: int) -> int:
    """Returns the largest gap of unwanted bytes that one read may include, from LEAST_GAP to
    MOST_GAP [bytes].

    A request takes a latency, plus a time for each byte. Because `in_flight` requests wait at the
    same time, one more request adds only `latency / in_flight`. So a gap is worth reading if its
    bytes take no longer than `latency / in_flight`.

    seconds, longer : how long reads of `size` and of `more` bytes took [s]
    """
    each = (longer - seconds) / (more - size)
    if each <= 0:
        return MOST_GAP
    latency = max(0.0, seconds - size * each)
    return max(LEAST_GAP, min(MOST_GAP, int(latency / in_flight / each)))


def _placed(extents: Extents, base: Any, start: Ints | None = None) -> Extents:
    start = extents.start if start is None else start
    return Extents(extents.file, extents.offset, extents.length, start + base)


def _together(reads: list[Extents]) -> Extents:
    if len(reads) == 1:
        return reads[0]
    return Extents(
        np.concatenate([each.file for each in reads]),
        np.concatenate([each.offset for each in reads]),
        np.concatenate([each.length for each in reads]),
        np.concatenate([each.start for each in reads]),
    )
