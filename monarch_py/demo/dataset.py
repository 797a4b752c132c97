"""Makes a small dataset to train on, with the same bytes for the same seed and size.

Images of ten classes in the formats that training jobs read, in these directories::

    tfrecord/  TFRecord files of some 8 MiB; a record is a byte with the label, then the pixels
    tree/      one file of pixels per image, some 100 KB as a JPEG has, in a directory per class
    npy/       images-*.npy (n, 176, 192, 3) uint8, and labels-*.npy (n,) uint8
    hdf5/      samples.h5 with the datasets images and labels; only where h5py is installed

A class is a pattern of coloured cells, hidden in noise that differs for each image. A linear model
learns the patterns within a few epochs, but not without training.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monarch_py.errors import MonarchError
from monarch_py.util.units import MIB, format_size

__all__ = [
    "IMAGE_SHAPE",
    "MIN_SIZE_BYTES",
    "N_CLASSES",
    "DatasetSummary",
    "make_dataset",
    "masked_crc32c",
]

Bytes = NDArray[np.uint8]

# Below this size, a format could be left without any image.
MIN_SIZE_BYTES = 2 * MIB

N_CLASSES = 10
CELL = 16  # [pixels] on a side
CELLS_SHAPE = (11, 12, 3)
IMAGE_SHAPE = (CELL * CELLS_SHAPE[0], CELL * CELLS_SHAPE[1], CELLS_SHAPE[2])
IMAGE_BYTES = IMAGE_SHAPE[0] * IMAGE_SHAPE[1] * IMAGE_SHAPE[2]

# Share of each format in the requested size.
SHARES = {"tfrecord": 0.40, "tree": 0.35, "npy": 0.15, "hdf5": 0.10}
IMAGES_PER_TFRECORD = 80
IMAGES_PER_NPY = 40
# Images made at a time, which bounds the memory for making a large dataset to some 50 MiB.
IMAGES_PER_STEP = 160

# 2020-09-13. An old time, so that no file seems to be still being written; a fixed time, so that
# the dataset is the same in every attribute.
MTIME_NS = 1_600_000_000 * 10**9


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """What was made.  left_out : one sentence for each format that was not made"""

    n_files: int
    n_bytes: int
    n_images: int
    left_out: tuple[str, ...]


def make_dataset(directory: Path, *, size_bytes: int, seed: int) -> DatasetSummary:
    """Makes `directory`, which must not exist, and writes a dataset of about `size_bytes` into it.

    MonarchError for a size below MIN_SIZE_BYTES.
    """
    if size_bytes < MIN_SIZE_BYTES:
        raise MonarchError(
            f"{format_size(size_bytes)} is too small for a dataset; ask for"
            f" {format_size(MIN_SIZE_BYTES)} or more"
        )
    directory.mkdir(parents=True)
    left_out = []
    n_images = 0
    patterns = np.random.default_rng(seed).normal(size=(N_CLASSES, *CELLS_SHAPE))
    for number, (part, write) in enumerate(_WRITERS.items()):
        if part == "hdf5" and find_spec("h5py") is None:
            left_out.append("The dataset has no HDF5 file, because h5py is not installed.")
            continue
        n = max(1, round(size_bytes * SHARES[part] / IMAGE_BYTES))
        (directory / part).mkdir()
        write(directory / part, n, _images(patterns, n, np.random.default_rng([seed, number])))
        n_images += n
    files = [path for path in directory.rglob("*") if path.is_file()]
    for path in files:
        os.utime(path, ns=(MTIME_NS, MTIME_NS))
    n_bytes = sum(path.stat().st_size for path in files)
    return DatasetSummary(len(files), n_bytes, n_images, tuple(left_out))


def masked_crc32c(rows: Bytes) -> NDArray[np.uint32]:
    """CRC-32C (Castagnoli) of each row, rotated and shifted as TFRecord framing wants it.

    rows : (n, length) uint8  ->  (n,) uint32

    It goes byte by byte, but over all rows at once. In plain Python, the 25 MiB would take half a
    minute.
    """
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        crc = _CRC_TABLE[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc ^= np.uint32(0xFFFFFFFF)
    return np.asarray((crc >> 15 | crc << 17) + np.uint32(0xA282EAD8), np.uint32)


def _crc_table() -> NDArray[np.uint32]:
    table: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.asarray((table >> 1) ^ (table & 1) * np.uint32(0x82F63B78), np.uint32)
    return table


_CRC_TABLE = _crc_table()


def _images(
    patterns: NDArray[np.float64], n: int, random: np.random.Generator
) -> Iterator[tuple[Bytes, Bytes]]:
    """`n` images in steps: labels (step,) uint8, pixels (step, *IMAGE_SHAPE) uint8."""
    for start in range(0, n, IMAGES_PER_STEP):
        step = min(IMAGES_PER_STEP, n - start)
        labels = random.integers(0, N_CLASSES, step, dtype=np.uint8)
        # The noise of a cell is seven times the pattern, which spans 396 cells. So classes overlap
        # in every single cell, and only all cells together tell them apart.
        cells = 96 + 4 * patterns[labels] + 28 * random.normal(size=(step, *CELLS_SHAPE))
        coarse = np.clip(cells, 0, 191).astype(np.uint8)
        pixels = coarse.repeat(CELL, axis=1).repeat(CELL, axis=2)
        pixels += random.integers(0, 64, pixels.shape, dtype=np.uint8)
        yield labels, pixels


def _write_tfrecord(directory: Path, n: int, images: Iterator[tuple[Bytes, Bytes]]) -> None:
    length = struct.pack("<Q", 1 + IMAGE_BYTES)
    head = length + masked_crc32c(np.frombuffer(length, np.uint8)[np.newaxis]).tobytes()
    number = 0
    for labels, pixels in images:
        records = np.concatenate([labels[:, np.newaxis], pixels.reshape(len(labels), -1)], axis=1)
        checksums = masked_crc32c(records).astype("<u4")
        for record, checksum in zip(records, checksums, strict=True):
            name = f"train-{number // IMAGES_PER_TFRECORD:04}.tfrecord"
            with (directory / name).open("ab") as file:
                file.write(head + record.tobytes() + checksum.tobytes())
            number += 1


def _write_tree(directory: Path, n: int, images: Iterator[tuple[Bytes, Bytes]]) -> None:
    for label in range(N_CLASSES):
        (directory / f"class-{label}").mkdir()
    number = 0
    for labels, pixels in images:
        for label, image in zip(labels, pixels, strict=True):
            (directory / f"class-{label}" / f"{number:06}.raw").write_bytes(image.tobytes())
            number += 1


def _write_npy(directory: Path, n: int, images: Iterator[tuple[Bytes, Bytes]]) -> None:
    number = 0
    for labels, pixels in images:
        for start in range(0, len(labels), IMAGES_PER_NPY):
            rows = slice(start, start + IMAGES_PER_NPY)
            np.save(directory / f"images-{number:04}.npy", pixels[rows])
            np.save(directory / f"labels-{number:04}.npy", labels[rows])
            number += 1


def _write_hdf5(directory: Path, n: int, images: Iterator[tuple[Bytes, Bytes]]) -> None:
    # Not an import statement: h5py is optional, and has no types for a checker to find.
    h5py: Any = import_module("h5py")
    with h5py.File(directory / "samples.h5", "w") as file:
        all_labels = file.create_dataset("labels", (n,), np.uint8)
        all_pixels = file.create_dataset("images", (n, *IMAGE_SHAPE), np.uint8)
        start = 0
        for labels, pixels in images:
            all_labels[start : start + len(labels)] = labels
            all_pixels[start : start + len(labels)] = pixels
            start += len(labels)


_WRITERS: dict[str, Any] = {
    "tfrecord": _write_tfrecord,
    "tree": _write_tree,
    "npy": _write_npy,
    "hdf5": _write_hdf5,
}
