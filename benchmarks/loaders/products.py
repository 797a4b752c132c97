"""``python -m benchmarks.loaders.products``: Monarch's loaders, compared with widely used ones.

All loaders read the same samples of 128 KiB, which are stored in the format of each loader. Batches
have 64 samples. Each loader has two workers (processes or threads). The samples come from a source
with a latency of 4 ms and a rate of 1 GB/s, or from memory ("present"). Before each epoch on the
source, the kernel's cached pages are dropped. The samples are not decoded.

Each loader runs in its own process, for two epochs. In each round, all loaders run one after the
other, and their times are compared with those of PyTorch's DataLoader. The benchmark leaves out
each loader that is not installed, and prints a message about it. Needs FUSE, and root for MosaicML
streaming.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import psutil
import yaml

from benchmarks.common import SEED, Child, plain_environment, scratch
from benchmarks.loaders.records import pace, slow_source
from benchmarks.nodes.compared import is_installed, make_formats, with_own_shm
from benchmarks.nodes.loaders import (
    CACHE_VARIABLE,
    LOCAL_VARIABLE,
    TAR_BUFFER,
    TF_BUFFER,
    Files,
)
from benchmarks.nodes.testbed import Dataset
from benchmarks.numbers import Result, describe_machine, report
from monarch_py.demo.slowsource import SlowSource, why_unavailable

SIZE, BATCH, WORKERS, EPOCHS = 128 << 10, 64, 2, 2
SOURCES = ("4 ms", "present")
# How long [s] a process may take to end. This limit is long, because `monarch run` removes its
# copies before it ends.
END_LIMIT_S = 60.0


class Product(NamedTuple):
    """A loader, and its data.

    loader : the loader's name in benchmarks/nodes/loaders.py
    form : the format of the samples. The directory of the samples has the same name
    shuffle : a text for the table: which samples the loader can mix with each other in an epoch
    package : the package that must be installed
    under_monarch : whether `monarch run` runs the loader
    """

    loader: str
    form: str
    shuffle: str
    package: str = "torch"
    under_monarch: bool = False


BASE = "PyTorch's DataLoader"
PRODUCTS = {
    BASE: Product("torch", "files", "all samples"),
    "torchdata's nodes": Product("torchdata", "files", "all samples", "torchdata"),
    "DALI": Product("dali", "files", "all samples, not in epoch 1", "nvidia.dali"),
    "WebDataset": Product(
        "webdataset", "tar", f"shards, then a buffer of {TAR_BUFFER} samples", "webdataset"
    ),
    "MosaicML streaming": Product(
        "streaming", "mds", "within 262,144 samples: here all", "streaming"
    ),
    "tf.data, with cache": Product(
        "tensorflow", "files", f"a buffer of {TF_BUFFER} samples", "tensorflow"
    ),
    "FFCV": Product("ffcv", "beton", "all samples", "ffcv"),
    "PyTorch's DataLoader, monarch run": Product(
        "torch", "files", "all samples", under_monarch=True
    ),
    "RecordDataset, DataLoader": Product("records", "hdf5", "all samples"),
    "RecordDataset, StagedLoader": Product("staged", "hdf5", "all samples"),
    "RecordDataset, GroupLoader": Product("groups", "hdf5", "groups of 16 MiB, then within them"),
    "StagedLoader, monarch run": Product("staged", "hdf5", "all samples", under_monarch=True),
}


@dataclass(frozen=True)
class Epoch:
    """The costs of an epoch.

    seconds : the wall time [s]
    cpu_s : the CPU time of the process and all its children [s]
    requests : the number of requests to the source
    source_bytes : the number of bytes that the source has sent
    """

    seconds: float
    cpu_s: float
    requests: int = 0
    source_bytes: int = 0


# --- a run --------------------------------------------------------------------------------------


class Arrays(Files):
    """A dataset in which each sample is a tuple with a single array, as FFCV's writer requires."""

    def __getitem__(self, index: int) -> Any:
        return (np.frombuffer(super().__getitem__(index), np.uint8),)


def make_dataset(root: Path, samples: int) -> None:
    (root / "files").mkdir()
    random = np.random.RandomState(SEED)
    for number in range(samples):
        (root / "files" / Dataset.name(number)).write_bytes(random.bytes(SIZE))
    make_formats(root, Dataset(root / "files", np.full(samples, SIZE)))
    (root / "hdf5").mkdir()
    with h5py.File(root / "hdf5" / "train.h5", "w") as file:
        rows = file.create_dataset("bin", (samples, SIZE), dtype="u1")
        for number, path in enumerate(sorted((root / "files").iterdir())):
            rows[number] = np.frombuffer(path.read_bytes(), np.uint8)
    if is_installed("ffcv"):
        from ffcv.fields import BytesField
        from ffcv.writer import DatasetWriter

        (root / "beton").mkdir()
        writer = DatasetWriter(
            str(root / "beton" / "train.beton"), {"bin": BytesField()}, num_workers=WORKERS
        )
        writer.from_indexed_dataset(Arrays(root / "files"))


def cpu_s(pid: int) -> float:
    """Returns the CPU time [s] of a process and its children, including children that have
    ended."""
    process = psutil.Process(pid)
    return sum(sum(each.cpu_times()[:4]) for each in [process, *process.children(recursive=True)])


@contextmanager
def started(product: Product, root: Path, n_bytes: int) -> Iterator[Child]:
    """Starts the process of a loader, and yields it when it is ready.

    root : the directory with the samples in all formats, on tmpfs or on the slow source
    n_bytes : the size of the dataset [bytes]
    """
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=root.parent)))
        (place / "local").mkdir()
        data = root / product.form
        argv = [sys.executable, "-m", "benchmarks.nodes.loaders", product.loader, str(data)]
        argv += ["0", "1", str(WORKERS), str(BATCH)]
        environment = plain_environment() | {
            "LOCAL_WORLD_SIZE": "1",
            "WORLD_SIZE": "1",
            "RANK": "0",
            "LOCAL_RANK": "0",
            LOCAL_VARIABLE: str(place / "local"),
            CACHE_VARIABLE: str(2 * n_bytes),
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        if product.loader == "streaming":
            keep = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
            argv = with_own_shm(argv, keep, root.parent)
        if product.under_monarch:
            tier = {"mount_point": str(place / "local"), "max_storage_quota": 2 * n_bytes}
            config = place / "tiers.yaml"
            config.write_text(yaml.safe_dump({"sources": [str(data)], "hierarchy": [tier]}))
            command = [sys.executable, "-m", "monarch_py", "run", "--quiet", "-c", str(config)]
            argv = [*command, *argv]
        with Child(argv, environment) as child:
            child.hear()
            yield child
            child.finish(END_LIMIT_S)


def make_slow(slow: SlowSource) -> None:
    """Drops the cached pages of all files, makes the source slow, and resets its counts. When a
    file of this source is opened, the kernel drops the file's pages. So this function opens every
    file."""
    slow.latency(open=0, getattr=0, read=0)
    for path in slow.mountpoint.rglob("*.*"):
        os.close(os.open(path, os.O_RDONLY))
    pace(slow, SOURCES[0])
    slow.reset()


def run(product: Product, root: Path, slow: SlowSource | None, n_bytes: int) -> list[Epoch]:
    epochs = []
    if slow is not None:
        make_slow(slow)
    with started(product, root if slow is None else slow.mountpoint, n_bytes) as child:
        for number in range(EPOCHS):
            # Do not reset the counts before the first epoch, so that this epoch also includes the
            # requests that the loader made when it started.
            if slow is not None and number:
                make_slow(slow)
            before = cpu_s(child.pid)
            got, took_ns = child.ask(str(number))
            used = cpu_s(child.pid) - before
            if got != n_bytes:
                raise RuntimeError(f"{product.loader} gave {got} bytes of {n_bytes}")
            counts = {} if slow is None else slow.counts()
            asked = sum(n for kind, n in counts.items() if not kind.startswith("bytes"))
            epochs.append(Epoch(took_ns / 1e9, used, asked, counts.get("bytes_read", 0)))
    return epochs


# --- all products -------------------------------------------------------------------------------

Runs = dict[str, dict[str, list[list[Epoch]]]]


def rounds_of(place: Path, slow: SlowSource, names: list[str], samples: int, rounds: int) -> Runs:
    """Runs all rounds. Returns, for each source, each product and each round, the epochs."""
    runs: Runs = {source: {name: [] for name in names} for source in SOURCES}
    for number in range(rounds):
        for source in SOURCES:
            for name in names:
                there = None if source == "present" else slow
                epochs = run(PRODUCTS[name], slow.backing, there, samples * SIZE)
                runs[source][name].append(epochs)
                said = ", ".join(f"{each.seconds:.2f} s" for each in epochs)
                load = os.getloadavg()[0]
                print(
                    f"  round {number + 1}: {source}: {name}: epochs took {said};"
                    f" load average {load:.1f}",
                    file=sys.stderr,
                )
    return runs


def results_of(runs: Runs) -> list[Result]:
    """Returns, for each epoch of each product, its time relative to the same epoch of PyTorch's
    DataLoader in the same round."""
    results = []
    for source, products in runs.items():
        for name, found in products.items():
            for at in range(EPOCHS):
                pairs = zip(found, products[BASE], strict=True)
                ratios = [ours[at].seconds / theirs[at].seconds for ours, theirs in pairs]
                what = f"{source}: time of epoch {at + 1}, {name} / {BASE}"
                value = statistics.median(ratios)
                results.append(Result(f"{source} {name} {at + 1}", what, "ratio", value, None))
    return results


def cells(name: str, runs: dict[str, list[list[Epoch]]], samples: int) -> list[str]:
    """Returns the row of a product in the table. Each measured cell contains the medians of epoch 1
    and of epoch 2."""
    found, bases = runs[name], runs[BASE]

    def both(of: Callable[[Epoch, Epoch], float], form: str) -> str:
        middle = [
            statistics.median(of(a[at], b[at]) for a, b in zip(found, bases, strict=True))
            for at in range(EPOCHS)
        ]
        return "; ".join(format(value, form) for value in middle)

    return [
        name,
        PRODUCTS[name].shuffle,
        both(lambda ours, base: ours.seconds / base.seconds, ".3f"),
        both(lambda ours, _: ours.cpu_s / samples * 1e6, ".0f"),
        both(lambda ours, _: ours.requests / samples, ".2f"),
        both(lambda ours, _: ours.source_bytes / (samples * SIZE), ".2f"),
    ]


def table(runs: dict[str, list[list[Epoch]]], samples: int) -> str:
    """Returns the table for docs/benchmarks.md."""
    head = ["", "shuffles", "time", "CPU a sample [us]", "requests a sample", "bytes / dataset"]
    rows = [head, ["---"] * len(head), *(cells(name, runs, samples) for name in runs)]
    seconds = [statistics.median(epochs[at].seconds for epochs in runs[BASE]) for at in range(2)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", f"{BASE}: {seconds[0]:.2f} and {seconds[1]:.2f} s"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loaders.products")
    parser.add_argument("--only", nargs="+", choices=PRODUCTS, default=list(PRODUCTS))
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if reason := why_unavailable():
        parser.error(reason)
    missing = {name: p.package for name, p in PRODUCTS.items() if not is_installed(p.package)}
    for name, package in missing.items():
        print(f"  {name} is left out: the package {package} is not installed", file=sys.stderr)
    names = [BASE, *(n for n in PRODUCTS if n in args.only and n not in missing and n != BASE)]
    with scratch(args.dir) as place, slow_source(place) as slow:
        make_dataset(slow.backing, args.samples)
        runs = rounds_of(place, slow, names, args.samples, args.rounds)
    for source in SOURCES:
        print(f"\n{source}\n\n{table(runs[source], args.samples)}", file=sys.stderr)
    document = {
        "benchmark": "loaders.products",
        "machine": describe_machine(),
        "samples": args.samples,
        "sample_bytes": SIZE,
        "shuffles": {name: PRODUCTS[name].shuffle for name in names},
        "runs": {
            source: {
                name: [[asdict(each) for each in epochs] for epochs in found]
                for name, found in products.items()
            }
            for source, products in runs.items()
        },
    }
    report(document, results_of(runs), args.json)


if __name__ == "__main__":
    main()
