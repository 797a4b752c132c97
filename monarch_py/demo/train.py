"""Trains softmax regression on the demo's dataset. The script has no code for Monarch.

    python train.py DATASET --json FILE [--epochs 3] [--seed 0] [--lockstep]

In each epoch the script reads every image in the three directories of the dataset. The seed and the
epoch determine the order of the files. The results depend only on the dataset and the seed, not on
the storage.

The script writes ``{"epochs": [...]}`` to FILE. Each element describes one epoch: its number
(`epoch`), its duration (`seconds`), the mean `loss` [nat], the `accuracy`, the number of `samples`,
and the `crc32` of all labels and pixels in the order in which they were read. The accuracy on a
batch is measured before the training step with this batch.

With --lockstep the script prints "end of epoch N" after each epoch. Then it waits for a line or the
end of standard input. Meanwhile, the caller can read the counters of the source.
"""

import argparse
import itertools
import json
import math
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

# Use one thread. Several threads would add numbers in a different order in each run, which changes
# the last digits of sums. Set these variables before numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

SHAPE = (176, 192, 3)
CELL = 16
N_CLASSES = 10
BATCH = 32
LEARNING_RATE = 0.1

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
# An image: its label, and its pixels as an array of the shape SHAPE.
Sample = tuple[int, Bytes]
# The results of an epoch, as the module's docstring lists them.
Record = dict[str, float]
# A function that reads one file from its beginning to its end.
Reader = Callable[[], Iterator[Sample]]


def read_shard(path: Path) -> Iterator[Sample]:
    with path.open("rb") as file:
        while record := file.read(1 + math.prod(SHAPE)):
            yield record[0], np.frombuffer(record, np.uint8, offset=1).reshape(SHAPE)


def read_raw(path: Path) -> Iterator[Sample]:
    label = int(path.parent.name.removeprefix("class-"))
    yield label, np.frombuffer(path.read_bytes(), np.uint8).reshape(SHAPE)


def read_npy(path: Path) -> Iterator[Sample]:
    labels = np.load(path.with_name(path.name.replace("images", "labels")))
    for label, image in zip(labels, np.load(path), strict=True):
        yield int(label), image


def find_files(dataset: Path) -> list[Reader]:
    """Returns a reader for each file of the dataset, sorted by the file's directory and name."""
    kinds: list[tuple[str, Callable[[Path], Iterator[Sample]]]] = [
        ("shards/*.bin", read_shard),
        ("tree/class-*/*.raw", read_raw),
        ("npy/images-*.npy", read_npy),
    ]
    readers = [partial(read, path) for glob, read in kinds for path in sorted(dataset.glob(glob))]
    if not readers:
        raise SystemExit(f"train.py: {dataset} does not hold a dataset of the demo")
    return list(readers)


def features(image: Bytes) -> Floats:
    """Returns the 397 features of an image. There is one feature for each cell and colour: the
    colour's mean in the cell, scaled to about -1 to 1. To save time, only every fourth pixel of
    every fourth row is used. The last feature is 1, for the bias.

    image : uint8 of the shape SHAPE
    """
    rows, columns, colours = SHAPE
    cells = image.reshape(rows // CELL, CELL, columns // CELL, CELL, colours)
    means = cells[:, ::4, :, ::4].mean(axis=(1, 3), dtype=np.float64)
    return np.append((means.ravel() - 128) / 64, 1.0)


def step(weights: Floats, labels: NDArray[np.int64], x: Floats) -> tuple[float, int]:
    """Performs one step of gradient descent on the cross-entropy, and changes `weights` in place.

    weights : (features, classes);  labels : (batch,);  x : (batch, features)

    Returns the sum of the losses [nat] and the number of correct predictions, both before the step.
    """
    scores = x @ weights
    scores -= scores.max(axis=1, keepdims=True)
    log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    each = np.arange(len(labels))
    gradient = np.exp(log_p)
    gradient[each, labels] -= 1
    weights -= LEARNING_RATE * (x.T @ gradient) / len(labels)
    return -float(log_p[each, labels].sum()), int((scores.argmax(axis=1) == labels).sum())


def train_epoch(weights: Floats, readers: list[Reader], order: NDArray[np.int64]) -> Record:
    """Trains for one epoch: reads each file once, in the given order, and changes `weights` in
    place. Returns the results of the epoch."""
    start = time.perf_counter()
    loss, right, n_samples, crc = 0.0, 0, 0, 0
    samples = itertools.chain.from_iterable(readers[i]() for i in order)
    while batch := list(itertools.islice(samples, BATCH)):
        for label, image in batch:
            crc = zlib.crc32(image, zlib.crc32(bytes([label]), crc))
        labels = np.array([label for label, _ in batch])
        step_loss, step_right = step(weights, labels, np.stack([features(i) for _, i in batch]))
        loss += step_loss
        right += step_right
        n_samples += len(batch)
    return {
        "seconds": time.perf_counter() - start,
        "loss": loss / n_samples,
        "accuracy": right / n_samples,
        "samples": n_samples,
        "crc32": crc,
    }


def train(dataset: Path, epochs: int, seed: int, lockstep: bool) -> list[Record]:
    readers = find_files(dataset)
    n_features = (SHAPE[0] // CELL) * (SHAPE[1] // CELL) * SHAPE[2] + 1
    weights = np.zeros((n_features, N_CLASSES))
    records: list[Record] = []
    for epoch in range(1, epochs + 1):
        order = np.random.default_rng([seed, epoch]).permutation(len(readers))
        records.append({"epoch": epoch, **train_epoch(weights, readers, order)})
        if lockstep:
            print(f"end of epoch {epoch}", flush=True)
            sys.stdin.readline()
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description="train on the demo's dataset")
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--lockstep", action="store_true")
    arguments = parser.parse_args()
    records = train(arguments.dataset, arguments.epochs, arguments.seed, arguments.lockstep)
    arguments.json.write_text(json.dumps({"epochs": records}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
