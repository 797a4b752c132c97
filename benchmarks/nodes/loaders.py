"""One rank of a job that reads a dataset with somebody's loader; `loaders` of rows.py starts them.

    python -m benchmarks.nodes.loaders NAME ROOT RANK RANKS WORKERS

It says 0 when it is ready. Each line on its standard input is an epoch's number; the answer is the
bytes that came and the time that they took [ns], with whatever the loader does at the beginning of
an epoch. Samples are bytes: nothing is decoded.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BATCH, SEED = 16, 1
# Of a rank's cache, where a loader has one [bytes, as its own option writes it].
CACHE_VARIABLE = "MONARCH_BENCHMARK_CACHE"
# Epoch -> lengths of the samples that this rank gets.
Loader = Callable[[int], Iterator[int]]


class Files:
    """A dataset of PyTorch: each sample is a file."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(str(path) for path in root.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        return Path(self.paths[index]).read_bytes()


def epochs_of(loader: Any, sampler: Any) -> Loader:
    """The lengths of the samples in each epoch. sampler : is told which epoch begins"""

    def epoch(number: int) -> Iterator[int]:
        sampler.set_epoch(number)
        for batch in loader:
            yield from map(len, batch)

    return epoch


def torch_files(root: Path, rank: int, ranks: int, workers: int) -> Loader:
    from torch.utils.data import DataLoader, DistributedSampler

    files: Any = Files(root)
    sampler: Any = DistributedSampler(files, ranks, rank, seed=SEED)
    loader: Any = DataLoader(
        files,
        BATCH,
        sampler=sampler,
        num_workers=workers,
        collate_fn=list,
        persistent_workers=True,
    )

    return epochs_of(loader, sampler)


def local_first(root: Path, rank: int, ranks: int, workers: int) -> Loader:
    from torch.utils.data import DataLoader

    from monarch_py.loaders.samplers.local_first import LocalFirstSampler

    files: Any = Files(root)
    sampler = LocalFirstSampler(
        files.paths, BATCH, SEED, rank=rank, world_size=ranks, ranks_per_node=1
    )
    loader: Any = DataLoader(
        files,
        batch_sampler=sampler,
        num_workers=workers,
        collate_fn=list,
        persistent_workers=True,
    )

    return epochs_of(loader, sampler)


def solar(root: Path, rank: int, ranks: int, workers: int) -> Loader:
    from monarch_py.loaders.records.whole_files import FileDataset
    from monarch_py.loaders.samplers.solar import SolarSampler
    from monarch_py.loaders.staged.loader import StagedLoader
    from monarch_py.plan.builders import index_files

    index = index_files(root)
    sampler = SolarSampler(index, BATCH, SEED, rank=rank, world_size=ranks, ranks_per_node=1)
    loader = StagedLoader(FileDataset(index), batch_sampler=sampler, workers=workers, tensors=False)

    return epochs_of(loader, sampler)


def webdataset(root: Path, rank: int, ranks: int, workers: int) -> Loader:
    import random

    import webdataset as wds
    from torch.utils.data import DataLoader

    shards = sorted(str(path) for path in root.iterdir())

    def epoch(number: int) -> Iterator[int]:
        # Shards are dealt out to the ranks anew in each epoch, as its documentation has it.
        order = list(shards)
        random.Random(number).shuffle(order)
        split = {"nodesplitter": wds.split_by_node, "workersplitter": wds.split_by_worker}
        dataset = wds.WebDataset(order, shardshuffle=False, **split).shuffle(100)
        loader: Any = DataLoader(dataset, None, num_workers=workers)
        for sample in loader:
            yield len(sample["bin"])

    return epoch


def streaming(root: Path, rank: int, ranks: int, workers: int) -> Loader:
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    dataset = StreamingDataset(
        remote=str(root),
        local=os.environ["MONARCH_BENCHMARK_LOCAL"],
        shuffle=True,
        batch_size=BATCH,
        cache_limit=int(os.environ[CACHE_VARIABLE]),
    )
    loader: Any = DataLoader(
        dataset, BATCH, num_workers=workers, collate_fn=list, persistent_workers=True
    )

    def epoch(_: int) -> Iterator[int]:
        for batch in loader:
            yield from (len(sample["bin"]) for sample in batch)

    return epoch


def dali(root: Path, rank: int, ranks: int, workers: int) -> Loader:
    from nvidia.dali import fn, pipeline_def

    files = sorted(str(path) for path in root.iterdir())

    def reads() -> Any:
        data, _ = fn.readers.file(
            files=files,
            shard_id=rank,
            num_shards=ranks,
            shuffle_after_epoch=True,
            name="reader",
            seed=SEED,
        )
        return data

    pipeline: Any = pipeline_def(reads, batch_size=BATCH, num_threads=workers, device_id=None)
    made = pipeline()
    made.build()

    def epoch(_: int) -> Iterator[int]:
        left = len(files) // ranks
        while left > 0:
            (batch,) = made.run()
            taken = min(left, len(batch))
            yield from (batch.at(i).size for i in range(taken))
            left -= taken

    return epoch


LOADERS: dict[str, Callable[[Path, int, int, int], Loader]] = {
    "torch": torch_files,
    "local_first": local_first,
    "solar": solar,
    "webdataset": webdataset,
    "streaming": streaming,
    "dali": dali,
}


def main() -> None:
    name, root, *numbers = sys.argv[1:]
    # What a library prints of itself is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    epoch = LOADERS[name](Path(root), *map(int, numbers))
    print(0, file=answers, flush=True)
    for line in sys.stdin:
        began = time.monotonic_ns()
        got = sum(epoch(int(line)))
        print(got, time.monotonic_ns() - began, file=answers, flush=True)


if __name__ == "__main__":
    main()
