"""``python -m benchmarks.loaders.advice``: the advised number of workers, compared with a sweep.

There are two datasets. The first consists of records on a slow source (4 ms per read, 1 GB/s), so
its workers mostly wait. With the second dataset, workers mostly compute: for each sample, they
repeat a checksum for 2 ms. For each dataset, the benchmark measures epochs with 1 to 8 workers.
After each batch, it sleeps instead of running a training step. The best number of workers is the
smallest number with which an epoch takes at most 5 % longer than the shortest of these epochs. The
benchmark compares this number with the number that `monarch advise workers` would recommend.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import SEED, scratch
from benchmarks.numbers import Result, describe_machine, report
from monarch_py.demo.slowsource import SlowSource, find_slowsource
from monarch_py.loaders.staged.loader import StagedLoader
from monarch_py.loaders.staged.measuring import Advice, advise

RECORD, BATCH = 19_200, 16
COUNTS = (1, 2, 3, 4, 6, 8)
TOLERANCE = 1.05


class Waiting:
    """A dataset of records in a file on a slow source. Reading a sample mostly waits."""

    def __init__(self, path: Path, length: int) -> None:
        self.path, self.length = path, length
        self._descriptor = -1

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        return np.frombuffer(
            bytearray(os.pread(self._descriptor, RECORD, index * RECORD)), np.uint8
        )


class Computing:
    """A dataset in which each sample takes 2 ms of processor time."""

    def __init__(self, length: int) -> None:
        self.content, self.length = bytes(RECORD), length
        began = time.thread_time()
        for _ in range(100):
            zlib.crc32(self.content)
        self.times = max(1, int(0.002 / ((time.thread_time() - began) / 100)))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        found = index
        for _ in range(self.times):
            found = zlib.crc32(self.content, found)
        return found


def _sweep(dataset: Any, step_s: float, epochs: int) -> dict[int, float]:
    """Returns the median time of an epoch [s] for each number of workers. Each round runs one epoch
    with each number of workers, so that a change of the machine's load affects all numbers of
    workers equally."""
    order = np.random.RandomState(SEED).permutation(len(dataset)).reshape(-1, BATCH).tolist()
    loaders = {count: StagedLoader(dataset, batch_sampler=order, workers=count) for count in COUNTS}
    seconds: dict[int, list[float]] = {count: [] for count in COUNTS}
    for _ in range(epochs):
        for count, loader in loaders.items():
            began = time.perf_counter()
            for _ in loader:
                time.sleep(step_s)
            seconds[count].append(time.perf_counter() - began)
    for loader in loaders.values():
        loader.close()
    return {count: statistics.median(each) for count, each in seconds.items()}


def _compare(name: str, dataset: Any, step_s: float, epochs: int) -> list[Result]:
    found: Advice = advise(dataset, BATCH, step_s, most=COUNTS[-1], seconds=1.0)
    sweep = _sweep(dataset, step_s, epochs)
    best = min(sweep.values())
    fewest = next(count for count in COUNTS if sweep[count] <= TOLERANCE * best)
    for count in COUNTS:
        print(
            f"{name}, {count} workers: an epoch took {sweep[count]:.3f} s,"
            f" {found.epoch_seconds(count):.3f} s were predicted",
            file=sys.stderr,
        )
    print(f"{name}: {found.workers} workers are advised, {fewest} are best", file=sys.stderr)
    near = min(COUNTS, key=lambda count: abs(count - found.workers))
    off = abs(found.epoch_seconds(near) / sweep[near] - 1)
    return [
        Result(
            f"{name}_workers",
            f"{name}: difference between the advised and the best number of workers",
            "",
            abs(found.workers - fewest),
            1,
        ),
        Result(
            f"{name}_epoch",
            f"{name}: relative error of the predicted epoch time",
            "ratio",
            off,
            0.15,
        ),
    ]


def _waiting(directory: Path, samples: int, epochs: int) -> list[Result]:
    binary = find_slowsource()
    if binary is None:
        sys.exit("the slow source was not built; install libfuse3's development files")
    with scratch(directory) as place:
        backing, mountpoint = place / "backing", place / "mount"
        backing.mkdir()
        mountpoint.mkdir()
        (backing / "records").write_bytes(np.random.RandomState(SEED).bytes(samples * RECORD))
        with SlowSource(backing, mountpoint, binary=binary, direct=True) as source:
            source.rate(1e9)
            source.latency(read=0.004)
            dataset = Waiting(mountpoint / "records", samples)
            return _compare("waiting", dataset, 0.02, epochs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--samples", type=int, default=1024, help="a multiple of 16")
    parser.add_argument("--only", choices=("waiting", "computing"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    results: list[Result] = []
    if options.only != "computing":
        results += _waiting(options.dir, options.samples, options.epochs)
    if options.only != "waiting":
        results += _compare("computing", Computing(options.samples), 0.005, options.epochs)
    sys.exit(not report({"machine": describe_machine()}, results, options.output))


if __name__ == "__main__":
    main()
