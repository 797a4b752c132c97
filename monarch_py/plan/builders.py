"""Builds the index of a dataset on disk, with one function for each file format."""

import os
import re
import struct
from collections.abc import Callable, Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import Ints, Uints
from monarch_py.config.patterns import PathFilter
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.plan.index import Index

# Default name patterns of each format. (`index_image_folder` has no patterns, but selects files by
# the extensions IMAGES.)
PATTERNS = {
    "files": ("**",),
    "fixed": ("**",),
    "hdf5": ("*.h5", "*.hdf5"),
    "tfrecord": ("*.tfrecord", "*.tfrecords", "*.tfrecord-*", "*.tfrecords-*"),
    "webdataset": ("*.tar",),
}

# The file name extensions by which torchvision's ImageFolder recognises images.
IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

# The samples of one file: their offsets and their lengths [bytes].
Extents = tuple[Ints, Ints]


def _cannot_read(path: str | Path, error: OSError) -> MonarchError:
    # h5py's errors have no strerror.
    return MonarchError(f"{path}: {error.strerror or error}; check the path and its permissions")


def _walk(root: Path, patterns: tuple[str, ...]) -> list[str]:
    """Returns the paths of all files below `root` that match one of the patterns. The paths are
    sorted, and relative to `root`."""
    wanted, found, seen = PathFilter(patterns), [], 0

    def failed(error: OSError) -> None:
        raise _cannot_read(error.filename, error)

    for directory, _, names in os.walk(root, onerror=failed, followlinks=True):
        below = os.path.relpath(directory, root)
        paths = names if below == "." else [f"{below}/{name}" for name in names]
        found += [path for path in paths if wanted.matches(path)]
        seen += len(paths)
    if not seen:
        raise ConfigError(f"{root}: the directory contains no files; check the path")
    if not found:
        raise ConfigError(f"{root}: no file matches {' or '.join(patterns)}; give --pattern")
    return sorted(found)


def _sizes(root: Path, names: list[str]) -> Uints:
    try:
        sizes = (os.stat(os.path.join(root, name)).st_size for name in names)
        return np.fromiter(sizes, dtype=np.uint64, count=len(names))
    except OSError as error:
        raise _cannot_read(error.filename, error) from None


def index_files(root: Path, patterns: tuple[str, ...] = PATTERNS["files"]) -> Index:
    """Returns the index of a dataset in which each file is one sample. The samples are sorted by
    path."""
    names = _walk(root, patterns)
    return Index.of("files", root, names, _sizes(root, names))


def index_image_folder(root: Path) -> Index:
    """Returns the index of an ImageFolder. Its samples are in torchvision's order: the classes
    (directories directly below `root`) by name, the directories of a class by path, and the images
    of a directory by name.

    Raises MonarchError for a class without images. ImageFolder refuses such a class too.
    """
    names: list[str] = []
    try:
        with os.scandir(root) as entries:
            classes = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        raise _cannot_read(root, error) from None
    for each in classes:
        before = len(names)
        for directory, _, files in sorted(os.walk(root / each, followlinks=True)):
            below = os.path.relpath(directory, root)
            images = (name for name in sorted(files) if name.lower().endswith(IMAGES))
            names += [f"{below}/{name}" for name in images]
        if len(names) == before:
            raise MonarchError(
                f"{root / each}: the directory of the class {each!r} holds no image"
                f" ({', '.join(IMAGES)}), and ImageFolder refuses a class without images; remove"
                " the directory, or add its images"
            )
    if not names:
        raise ConfigError(
            f"{root}: has no class directories; name the root directory of an ImageFolder"
        )
    return Index.of("image_folder", root, names, _sizes(root, names))


def _index_shards(
    kind: str, root: Path, patterns: tuple[str, ...], read: Callable[[Path], Extents]
) -> Index:
    """Returns the index of a dataset in which a file contains many samples. The files are sorted by
    path. The samples of a file keep their order in the file.

    root : the directory of the files, or a single file
    read : a function that returns the offsets and lengths of a file's samples
    """
    if root.is_file():
        root, names = root.parent, [root.name]
    else:
        names = _walk(root, patterns)
    extents = []
    for name in names:
        try:
            extents.append(read(root / name))
        except OSError as error:
            raise _cannot_read(root / name, error) from None
    counts = [len(offsets) for offsets, _ in extents]
    samples: tuple[Any, Any, Any] = (
        np.repeat(np.arange(len(names), dtype=np.int32), counts),
        np.concatenate([offsets for offsets, _ in extents]),
        np.concatenate([lengths for _, lengths in extents]),
    )
    return Index.of(kind, root, names, _sizes(root, names), samples)


def _extents(pairs: Iterator[tuple[int, int]]) -> Extents:
    table = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def index_fixed(
    root: Path, record_bytes: int, header_bytes: int = 0, patterns: tuple[str, ...] = ("**",)
) -> Index:
    """Returns the index of files that consist of a header and equally large records. Each record is
    a sample. Raises ConfigError if the last record of a file is incomplete."""
    if record_bytes < 1 or header_bytes < 0:
        raise ConfigError("--record-bytes has to be 1 or more, and --header-bytes 0 or more")

    def read(path: Path) -> Extents:
        size = os.stat(path).st_size - header_bytes
        if size < 0 or size % record_bytes:
            raise ConfigError(
                f"{path}: {size} bytes after the header are not a multiple of {record_bytes};"
                " correct --record-bytes or --header-bytes"
            )
        offsets = header_bytes + record_bytes * np.arange(size // record_bytes, dtype=np.int64)
        return offsets, np.full(len(offsets), record_bytes, dtype=np.int64)

    return _index_shards("fixed", root, patterns, read)


def index_tfrecord(root: Path, patterns: tuple[str, ...] = PATTERNS["tfrecord"]) -> Index:
    """Returns the index of TFRecord files. A sample is a record including its frame (8 + 4 bytes
    before the data, and 4 bytes after it).

    Raises MonarchError for a file that does not consist of records, such as a compressed file, in
    which records have no fixed positions.
    """
    return _index_shards("tfrecord", root, patterns, lambda path: _extents(_records(path)))


def _records(path: Path) -> Iterator[tuple[int, int]]:
    size = os.stat(path).st_size
    if size == 0:
        return
    with open(path, "rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as content:
        at = 0
        while at < size:
            framed = at + 16 <= size
            length = struct.unpack_from("<Q", content, at)[0] + 16 if framed else 0
            if not framed or at + length > size:
                raise MonarchError(
                    f"{path}: no record at byte {at}; name TFRecord files that are complete and"
                    " not compressed"
                )
            yield at, length
            at += length


# Matches the name of a tar member. Group 1 is the key of the member's sample: the directories, and
# the file name up to its first dot.
_MEMBER = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")


def index_webdataset(root: Path, patterns: tuple[str, ...] = PATTERNS["webdataset"]) -> Index:
    """Returns the index of webdataset's tar files. Consecutive members with the same key form a
    sample. A sample extends from the header of its first member to the end of the padding of its
    last member. Raises MonarchError for a file that is not a tar archive."""
    return _index_shards("webdataset", root, patterns, lambda path: _extents(_members(path)))


def _members(path: Path) -> Iterator[tuple[int, int]]:
    import tarfile

    key, start, end = None, 0, 0
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                found = _MEMBER.match(member.name)
                if not member.isreg() or found is None:
                    continue
                if found[1] != key:
                    if key is not None:
                        yield start, end - start
                    key, start = found[1], member.offset
                end = member.offset_data + -(-member.size // 512) * 512
    except tarfile.TarError as error:
        raise MonarchError(f"{path}: {error}; name tar files that are not compressed") from None
    if key is not None:
        yield start, end - start


def index_hdf5(root: Path, dataset: str, patterns: tuple[str, ...] = PATTERNS["hdf5"]) -> Index:
    """Returns the index of HDF5 files. A sample is a row of the HDF5 dataset with the name
    `dataset`. If this dataset is contiguous, a sample has the bytes of its row. If the dataset is
    chunked, a sample extends from the first to the last byte of all chunks that contain a part of
    its row.

    Raises MonarchError if h5py is not installed or a file has no such dataset.
    """
    try:
        import h5py
    except ImportError:
        raise MonarchError("h5py is not installed; pip install h5py") from None

    def read(path: Path) -> Extents:
        with h5py.File(path, "r") as file:
            if not isinstance(file.get(dataset), h5py.Dataset):
                raise MonarchError(f"{path}: no dataset {dataset!r}; correct --dataset")
            found = file[dataset]
            if found.ndim == 0:
                raise MonarchError(f"{path}: {dataset!r} has no rows; correct --dataset")
            return _contiguous_rows(path, found) if found.chunks is None else _chunk_rows(found)

    return _index_shards("hdf5", root, patterns, read)


def _contiguous_rows(path: Path, found: Any) -> Extents:
    start, rows = found.id.get_offset(), found.shape[0]
    if start is None and rows:
        raise MonarchError(
            f"{path}: {found.name!r} is compact, virtual or not written, so its rows have no fixed"
            " place in the file; store it as a contiguous or chunked dataset"
        )
    row = found.dtype.itemsize * int(np.prod(found.shape[1:], dtype=np.int64))
    offsets = (start or 0) + row * np.arange(rows, dtype=np.int64)
    return offsets, np.full(rows, row, dtype=np.int64)


def _chunk_rows(found: Any) -> Extents:
    rows, tall = found.shape[0], found.chunks[0]
    low = np.full(-(-rows // tall), np.iinfo(np.int64).max, dtype=np.int64)
    high = np.zeros(len(low), dtype=np.int64)
    for chunk in hdf5_chunks(found):
        band = chunk.chunk_offset[0] // tall
        low[band] = min(low[band], chunk.byte_offset)
        high[band] = max(high[band], chunk.byte_offset + chunk.size)
    # A row of which no chunk was ever written gets a length of 0 bytes.
    low = np.minimum(low, high)
    band_of = np.arange(rows) // tall
    return low[band_of], (high - low)[band_of]


def hdf5_chunks(found: Any) -> list[Any]:
    """Returns the position in the file of each written chunk of an HDF5 dataset, as h5py's
    StoreInfo."""
    chunks: list[Any] = []
    try:
        found.id.chunk_iter(chunks.append)
    # HDF5 before 1.12.3 has no chunk_iter. The queries below are slower: each takes time in
    # proportion to the number of chunks.
    except AttributeError:
        return [found.id.get_chunk_info(at) for at in range(found.id.get_num_chunks())]
    return chunks
