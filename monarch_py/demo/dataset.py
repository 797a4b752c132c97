"""Creates a small dataset for the demo's training. The same seed and size always give the same
bytes.

The dataset has images of ten classes in three layouts that are usual in training jobs, each in its
own directory::

    shards/  files of about 8 MiB; a record is a byte with the label, then the pixels
    tree/    a directory per class; one file of pixels per image, of about 100 KB, like a JPEG
    npy/     images-*.npy (n, 176, 192, 3) uint8, and labels-*.npy (n,) uint8

A class is a pattern of coloured cells, hidden in noise that differs for each image. A linear model
learns the patterns within a few epochs, but not without training.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from monarch_py.errors import MonarchError
from monarch_py.util.units import MIB, format_size

Bytes = NDArray[np.uint8]

# The smallest allowed size of a dataset [bytes]. In a smaller dataset, some directory would have
# fewer than four images.
MIN_SIZE_BYTES = 2 * MIB

N_CLASSES = 10
CELL = 16  # side length of a cell [pixels]
CELLS_SHAPE = (11, 12, 3)
IMAGE_SHAPE = (CELL * CELLS_SHAPE[0], CELL * CELLS_SHAPE[1], CELLS_SHAPE[2])
IMAGE_BYTES = IMAGE_SHAPE[0] * IMAGE_SHAPE[1] * IMAGE_SHAPE[2]

# The name of each directory of the dataset -> its share of the requested size.
SHARES = {"shards": 0.40, "tree": 0.40, "npy": 0.20}
IMAGES_PER_SHARD = 80
IMAGES_PER_NPY = 40
# The number of images that are generated at a time. With this number, even a large dataset needs
# only about 50 MiB of memory.
IMAGES_PER_STEP = 160

# The modification time of all files: 2020-09-13. It is far in the past, so that no file seems
# freshly written. It is fixed, so that equal datasets also have equal attributes.
MTIME_NS = 1_600_000_000 * 10**9


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    n_files: int
    n_bytes: int
    n_images: int


def make_dataset(directory: Path, *, size_bytes: int, seed: int) -> DatasetSummary:
    """Creates `directory`, which must not exist, and writes a dataset of about `size_bytes` into
    it.

    Raises MonarchError for a size below MIN_SIZE_BYTES.
    """
    if size_bytes < MIN_SIZE_BYTES:
        raise MonarchError(
            f"{format_size(size_bytes)} is too small for a dataset; ask for"
            f" {format_size(MIN_SIZE_BYTES)} or more"
        )
    directory.mkdir(parents=True)
    n_images = 0
    patterns = np.random.default_rng(seed).normal(size=(N_CLASSES, *CELLS_SHAPE))
    for number, (part, write) in enumerate(_WRITERS.items()):
        n = max(1, round(size_bytes * SHARES[part] / IMAGE_BYTES))
        (directory / part).mkdir()
        write(directory / part, _images(patterns, n, np.random.default_rng([seed, number])))
        n_images += n
    files = [path for path in directory.rglob("*") if path.is_file()]
    for path in files:
        os.utime(path, ns=(MTIME_NS, MTIME_NS))
    n_bytes = sum(path.stat().st_size for path in files)
    return DatasetSummary(len(files), n_bytes, n_images)


def _images(
    patterns: NDArray[np.float64], n: int, random: np.random.Generator
) -> Iterator[tuple[Bytes, Bytes]]:
    """Yields `n` images, at most IMAGES_PER_STEP at a time. Each item is a pair: the labels,
    (step,) uint8, and the pixels, (step, *IMAGE_SHAPE) uint8."""
    for start in range(0, n, IMAGES_PER_STEP):
        step = min(IMAGES_PER_STEP, n - start)
        labels = random.integers(0, N_CLASSES, step, dtype=np.uint8)
        # In each cell, the noise is seven times as strong as the pattern. So a single cell does not
        # show an image's class, but all cells together do.
        cells = 96 + 4 * patterns[labels] + 28 * random.normal(size=(step, *CELLS_SHAPE))
        coarse = np.clip(cells, 0, 191).astype(np.uint8)
        pixels = coarse.repeat(CELL, axis=1).repeat(CELL, axis=2)
        pixels += random.integers(0, 64, pixels.shape, dtype=np.uint8)
        yield labels, pixels


def _parts(images: Iterator[tuple[Bytes, Bytes]], most: int) -> Iterator[tuple[int, Bytes, Bytes]]:
    """Divides the images among files. Yields the number, the labels and the pixels of each file.

    most : the largest number of images in a file
    """
    numbers = count()
    for labels, pixels in images:
        for start in range(0, len(labels), most):
            rows = slice(start, start + most)
            yield next(numbers), labels[rows], pixels[rows]


def _write_shards(directory: Path, images: Iterator[tuple[Bytes, Bytes]]) -> None:
    for number, labels, pixels in _parts(images, IMAGES_PER_SHARD):
        records = np.concatenate([labels[:, np.newaxis], pixels.reshape(len(labels), -1)], axis=1)
        records.tofile(directory / f"train-{number:04}.bin")


def _write_tree(directory: Path, images: Iterator[tuple[Bytes, Bytes]]) -> None:
    for label in range(N_CLASSES):
        (directory / f"class-{label}").mkdir()
    for number, (label,), pixels in _parts(images, 1):
        (directory / f"class-{label}" / f"{number:06}.raw").write_bytes(pixels.tobytes())


def _write_npy(directory: Path, images: Iterator[tuple[Bytes, Bytes]]) -> None:
    for number, labels, pixels in _parts(images, IMAGES_PER_NPY):
        np.save(directory / f"images-{number:04}.npy", pixels)
        np.save(directory / f"labels-{number:04}.npy", labels)


_WRITERS = {"shards": _write_shards, "tree": _write_tree, "npy": _write_npy}
