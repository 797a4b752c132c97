"""``python -m benchmarks.loaders.records``: batches of random samples of one HDF5 file.

h5py reads one sample after the other. RecordDataset reads the samples of a batch concurrently. The
benchmark measures RecordDataset in two variants: one joins reads of neighbouring samples, and the
other does not. The file is sparse, because the content of the samples does not matter. Needs FUSE
and h5py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from benchmarks.common import scratch
from benchmarks.numbers import Result, describe_machine, file_system, report
from monarch_py.demo.slowsource import SlowSource, find_slowsource, why_unavailable
from monarch_py.loaders.records.dataset import RecordDataset
from monarch_py.loaders.records.joining import Extents, join

# Maps a name to the latency of a request [s] and the rate [bytes/s] of a slow source.
SOURCES = {"0.5 ms": (0.0005, 200e6), "4 ms": (0.004, 1e9)}
# The number of samples is that of SOLAR's smallest dataset. The size of a sample [bytes] is from
# the paper of Lee and others.
SAMPLES, SAMPLE_BYTES = 87_632, 19_200
BATCH = 64


@contextmanager
def slow_source(place: Path) -> Iterator[SlowSource]:
    """Yields a slow source whose directory is empty."""
    backing, mountpoint = place / "backing", place / "mount"
    backing.mkdir()
    mountpoint.mkdir()
    binary = find_slowsource()
    assert binary is not None
    with SlowSource(backing, mountpoint, binary=binary) as slow:
        yield slow


def pace(slow: SlowSource, name: str) -> None:
    """Sets the latency and rate of the slow source to those of `name` in SOURCES."""
    latency, rate = SOURCES[name]
    slow.latency(open=latency, getattr=latency, read=latency)
    slow.rate(rate)


def make_sparse(path: Path, samples: int) -> None:
    """Creates an HDF5 file of zeros, which takes no disk space."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((samples, SAMPLE_BYTES))
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_UINT8, space, dcpl=settings)
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size)


Numbers = list[list[int]]


def read_one_by_one(path: Path, batches: Numbers) -> float:
    """Returns the median time of a batch [s]."""
    seconds = []
    with h5py.File(path, "r") as file:
        found = file["x"]
        found[0]
        for wanted in batches:
            began = time.perf_counter()
            for number in wanted:
                found[number]
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def read_together(datasets: list[RecordDataset], batches: Numbers) -> tuple[float, float]:
    """Returns the median time of a batch [s] for each of the two datasets, which read the same
    file. Only one of the datasets reads a batch, because a second read would find the pages in the
    cache."""
    for dataset in datasets:
        dataset.close()
    for dataset in datasets:
        # Read a first batch that is not timed. It takes longer, because the dataset also opens the
        # file, and measures whether joining neighbouring reads saves time.
        dataset.__getitems__([0, SAMPLES // 2])
    seconds: tuple[list[float], list[float]] = ([], [])
    for number, wanted in enumerate(batches):
        which = (number + number // 2) % 2  # the datasets are read in the order 0 1 1 0 0 1 1 0
        began = time.perf_counter()
        datasets[which].__getitems__(wanted)
        seconds[which].append(time.perf_counter() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def joined_reads(batches: Numbers, gap: int) -> tuple[float, float]:
    """Returns two ratios of joined reads to single reads: of the number of requests, and of the
    number of bytes.

    gap : reads are joined if at most this many bytes lie between them
    """
    reads, n_bytes = 0, 0
    for wanted in batches:
        offset = SAMPLE_BYTES * np.array(wanted)
        length = np.full(len(wanted), SAMPLE_BYTES)
        start = np.cumsum(length) - length
        found = join(Extents(np.zeros(len(wanted), np.int32), offset, length, start), gap).reads
        reads += len(found)
        n_bytes += int(found.length.sum())
    samples = sum(map(len, batches))
    return reads / samples, n_bytes / (samples * SAMPLE_BYTES)


def measure(slow: SlowSource, name: str, rounds: int) -> list[Result]:
    pace(slow, name)
    path = slow.mountpoint / "train.h5"
    rng = np.random.default_rng(20221)
    datasets = [RecordDataset(path, dataset="x", join=way) for way in ("auto", 0)]
    faster, ratios, counted = [], [], []
    for _ in range(rounds):
        batches = rng.permutation(SAMPLES)[: 80 * BATCH].reshape(-1, BATCH).tolist()
        h5 = read_one_by_one(path, batches[:3])
        joined, apart = read_together(datasets, batches)
        print(
            f"{name}: a batch with h5py, joined reads, single reads [s]: {h5, joined, apart}",
            file=sys.stderr,
        )
        faster.append(h5 / joined)
        ratios.append(joined / apart)
        counted.append(joined_reads(batches, datasets[0]._gap or 0))
    print(f"{name}: joined over {datasets[0]._gap} bytes", file=sys.stderr)
    what = f"latency {name}: time of a batch of {BATCH} samples, h5py / RecordDataset"
    least = 10 if name == "4 ms" else None
    results = [Result(name, what, "ratio", statistics.median(faster), least, is_least=True)]
    values = {
        "time of a batch": statistics.median(ratios),
        "requests": statistics.mean(requests for requests, _ in counted),
        "bytes": statistics.mean(n_bytes for _, n_bytes in counted),
    }
    for key, value in values.items():
        what = f"  {key} with joined reads / with single reads"
        results.append(Result(f"{name}: {key}", what, "ratio", value, 1.02))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where scratch files go")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if reason := why_unavailable():
        parser.error(reason)
    with scratch(args.directory) as place, slow_source(place) as slow:
        make_sparse(slow.backing / "train.h5", SAMPLES)
        results = [each for name in SOURCES for each in measure(slow, name, args.rounds)]
        document = {
            "benchmark": "loaders.records",
            "machine": describe_machine(),
            "samples": SAMPLES,
            "sample_bytes": SAMPLE_BYTES,
            "file_system": file_system(place),
        }
    sys.exit(0 if report(document, results, args.json) else 1)


if __name__ == "__main__":
    main()
