"""``python -m benchmarks.loaders.staged``: StagedLoader, compared with PyTorch's DataLoader.

StagedLoader stores batches in a ring buffer. The benchmark measures:

- Processor time and samples per second of both loaders. The records of 128 KiB are in the page
  cache. Each loader has two workers and batches of 64. In each round, DataLoader runs some epochs,
  and then StagedLoader runs the same number of epochs on the same file.
- `job.get()` of a sample when the sample's batch has arrived: the median time, and the number of
  bytes that are copied.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil

from benchmarks.common import SEED, scratch
from benchmarks.numbers import Result, describe_machine, report
from monarch_py.loaders import Job, RecordDataset, StagedLoader

KIB = 1 << 10
RECORD, BATCH, WORKERS = 128 * KIB, 64, 2


def make_records(place: Path, count: int) -> RecordDataset:
    """Creates an HDF5 file of `count` rows of bytes, which follow each other without gaps."""
    path, random = place / "records.h5", np.random.RandomState(SEED)
    with h5py.File(path, "w") as file:
        rows = file.create_dataset("x", (count, RECORD), dtype=np.uint8)
        for number in range(count):
            rows[number] = np.frombuffer(random.bytes(RECORD), dtype=np.uint8)
    return RecordDataset(path, dataset="x")


def batches(length: int) -> list[list[int]]:
    order = np.random.RandomState(SEED).permutation(length).tolist()
    return [order[i : i + BATCH] for i in range(0, length, BATCH)]


def _cpu_s() -> float:
    """Returns the CPU time of this process and its workers so far [s]."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        times = process.cpu_times()
        total += times.user + times.system
    return total


def _epochs(loader: Iterable[Any], epochs: int) -> tuple[float, float]:
    """Runs `epochs` epochs. Returns their processor time and their wall time [s]. Instead of a
    training step, the loop reads one byte of each sample."""
    cpu, wall = _cpu_s(), time.perf_counter()
    for _ in range(epochs):
        for batch in loader:
            int(batch[:, 0].sum())
    return _cpu_s() - cpu, time.perf_counter() - wall


def compare(records: RecordDataset, rounds: int, epochs: int) -> list[Result]:
    import torch

    torch.set_num_threads(1)
    order = batches(len(records))
    dataset: Any = records  # DataLoader does not require a subclass of Dataset
    theirs: Any = torch.utils.data.DataLoader(
        dataset,
        batch_sampler=order,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    ours = StagedLoader(records, batch_sampler=order, workers=WORKERS)
    for loader in (theirs, ours):
        _epochs(loader, 1)
    samples, cpu, wall = epochs * len(records), [], []
    for _ in range(rounds):
        plain, staged = _epochs(theirs, epochs), _epochs(ours, epochs)
        cpu.append((staged[0], plain[0]))
        wall.append((staged[1], plain[1]))
    ours.close()

    def row(name: str, what: str, values: list[float], limit: float, **more: Any) -> Result:
        return Result(name, what, "ratio", statistics.median(values), limit, rounds=rounds, **more)

    def each(seconds: Iterable[float]) -> float:
        return statistics.median(seconds) / samples * 1e9

    return [
        row(
            "cpu",
            "processor time per sample, StagedLoader / DataLoader",
            [a / b for a, b in cpu],
            0.25,
            with_library=each(a for a, _ in cpu),
            without=each(b for _, b in cpu),
        ),
        row(
            "throughput",
            "samples per second, StagedLoader / DataLoader",
            [b / a for a, b in wall],
            3.0,
            is_least=True,
            with_library=each(a for a, _ in wall),
            without=each(b for _, b in wall),
        ),
    ]


def get(records: RecordDataset, batches_seen: int) -> list[Result]:
    """Measures `job.get()` for all samples of each batch except the first sample. The first sample
    is left out, because its `job.get()` waits until the batch has arrived."""
    job = Job(records, BATCH, epochs=1 + batches_seen * BATCH // len(records), workers=WORKERS)
    begin = np.frombuffer(job.buffer, dtype=np.uint8).ctypes.data
    end = begin + len(job.buffer)
    times, copied = [], 0
    for number in range(batches_seen * BATCH):
        began = time.perf_counter_ns()
        view, _ = job.get()
        took = time.perf_counter_ns() - began
        place = np.frombuffer(view, dtype=np.uint8).ctypes.data
        copied += 0 if begin <= place <= end - len(view) else len(view)
        if number % BATCH:
            times.append(took / 1000)
    job.destroy()
    low, _, high = statistics.quantiles(times, n=4)
    return [
        Result(
            "get",
            "time of job.get() if the batch has arrived",
            "us",
            statistics.median(times),
            5.0,
            quartiles=(low, high),
        ),
        Result("copied", "  bytes that job.get() copies", "bytes", copied, 0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--records", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10, help="number of epochs in a round")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    with scratch(options.dir) as place:
        records = make_records(place, options.records)
        results = compare(records, options.rounds, options.epochs) + get(records, 64)
    document = {
        "benchmark": "loaders.staged",
        "machine": describe_machine(),
        "record_bytes": RECORD,
        "batch": BATCH,
    }
    sys.exit(not report(document, results, options.output))


if __name__ == "__main__":
    main()
