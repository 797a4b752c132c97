"""One rank of a job that reads a dataset with one of several loaders.

The command for one rank is::

    python -m benchmarks.nodes.loaders NAME ROOT RANK RANKS WORKERS BATCH

rows.py (`loaders`) starts several ranks, and benchmarks.loaders.products starts one rank.
The program prints 0 when it is ready. Each line on its standard input is the number of an epoch to
run. The answer is the number of bytes read, and the duration of the epoch [ns]. The duration
includes the loader's work at the beginning of the epoch. The samples are bytes, which are not
decoded.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

SEED = 1
# The name of an environment variable. Its value is the size of a rank's cache [bytes], for loaders
# that have a cache.
CACHE_VARIABLE = "MONARCH_BENCHMARK_CACHE"
# The name of an environment variable. Its value is a directory in which the loader may cache
# samples.
LOCAL_VARIABLE = "MONARCH_BENCHMARK_LOCAL"
# The number of samples in the shuffle buffer, for webdataset and for tf.data.
TAR_BUFFER, TF_BUFFER = 100, 1000
# A function that runs one epoch, and yields the length of each sample that this rank gets. Its
# argument is the number of the epoch.
Loader = Callable[[int], Iterator[int]]


class Job(NamedTuple):
    """The task of a rank.

    root : the directory of the samples, which are stored in the format of the loader
    ranks : the number of ranks
    workers : the number of worker processes or threads of each rank
    batch : the number of samples in a batch
    """

    root: Path
    rank: int
    ranks: int
    workers: int
    batch: int


class Files:
    """A PyTorch dataset in which each sample is a file."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(str(path) for path in root.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        return Path(self.paths[index]).read_bytes()


def epochs_of(loader: Any, sampler: Any) -> Loader:
    """Returns a Loader that yields the lengths of the samples.

    loader : an iterable over batches
    sampler : the object whose `set_epoch` gets the number of each epoch
    """

    def epoch(number: int) -> Iterator[int]:
        sampler.set_epoch(number)
        for batch in loader:
            yield from map(len, batch)

    return epoch


def torch_files(job: Job) -> Loader:
    from torch.utils.data import DataLoader, DistributedSampler

    files: Any = Files(job.root)
    sampler: Any = DistributedSampler(files, job.ranks, job.rank, seed=SEED)
    loader: Any = DataLoader(
        files,
        job.batch,
        sampler=sampler,
        num_workers=job.workers,
        collate_fn=list,
        persistent_workers=True,
    )

    return epochs_of(loader, sampler)


def local_first(job: Job) -> Loader:
    from torch.utils.data import DataLoader

    from monarch_py.loaders.samplers.local_first import LocalFirstSampler

    files: Any = Files(job.root)
    sampler = LocalFirstSampler(
        files.paths, job.batch, SEED, rank=job.rank, world_size=job.ranks, ranks_per_node=1
    )
    loader: Any = DataLoader(
        files,
        batch_sampler=sampler,
        num_workers=job.workers,
        collate_fn=list,
        persistent_workers=True,
    )

    return epochs_of(loader, sampler)


def solar(job: Job) -> Loader:
    from monarch_py.loaders.records.whole_files import FileDataset
    from monarch_py.loaders.samplers.solar import SolarSampler
    from monarch_py.loaders.staged.loader import StagedLoader
    from monarch_py.plan.builders import index_files

    index = index_files(job.root)
    sampler = SolarSampler(
        index, job.batch, SEED, rank=job.rank, world_size=job.ranks, ranks_per_node=1
    )
    loader = StagedLoader(
        FileDataset(index), batch_sampler=sampler, workers=job.workers, tensors=False
    )

    return epochs_of(loader, sampler)


def webdataset(job: Job) -> Loader:
    import random

    import webdataset as wds
    from torch.utils.data import DataLoader

    shards = sorted(str(path) for path in job.root.iterdir())

    def epoch(number: int) -> Iterator[int]:
        # Distribute the shards to the ranks again in each epoch, as the documentation of webdataset
        # recommends.
        order = list(shards)
        random.Random(number).shuffle(order)
        split = {"nodesplitter": wds.split_by_node, "workersplitter": wds.split_by_worker}
        dataset = wds.WebDataset(order, shardshuffle=False, **split).shuffle(TAR_BUFFER)
        batches = dataset.batched(job.batch, collation_fn=list)
        loader: Any = DataLoader(batches, None, num_workers=job.workers)
        for batch in loader:
            yield from (len(sample["bin"]) for sample in batch)

    return epoch


def streaming(job: Job) -> Loader:
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    dataset = StreamingDataset(
        remote=str(job.root),
        local=os.environ[LOCAL_VARIABLE],
        shuffle=True,
        batch_size=job.batch,
        cache_limit=int(os.environ[CACHE_VARIABLE]),
    )
    loader: Any = DataLoader(
        dataset, job.batch, num_workers=job.workers, collate_fn=list, persistent_workers=True
    )

    def epoch(_: int) -> Iterator[int]:
        for batch in loader:
            yield from (len(sample["bin"]) for sample in batch)

    return epoch


def dali(job: Job) -> Loader:
    from nvidia.dali import fn, pipeline_def

    files = sorted(str(path) for path in job.root.iterdir())

    def reads() -> Any:
        data, _ = fn.readers.file(
            files=files,
            shard_id=job.rank,
            num_shards=job.ranks,
            shuffle_after_epoch=True,
            name="reader",
            seed=SEED,
        )
        return data

    pipeline: Any = pipeline_def(
        reads, batch_size=job.batch, num_threads=job.workers, device_id=None
    )
    made = pipeline()
    made.build()

    def epoch(_: int) -> Iterator[int]:
        left = len(files) // job.ranks
        while left > 0:
            (batch,) = made.run()
            taken = min(left, len(batch))
            yield from (batch.at(i).size for i in range(taken))
            left -= taken

    return epoch


def torchdata(job: Job) -> Loader:
    from torch.utils.data import DistributedSampler
    from torchdata.nodes import Batcher, Loader, ParallelMapper, SamplerWrapper

    files: Any = Files(job.root)
    sampler: Any = DistributedSampler(files, job.ranks, job.rank, seed=SEED)
    node: Any = ParallelMapper(
        SamplerWrapper(sampler), files.__getitem__, num_workers=job.workers, method="process"
    )
    return epochs_of(Loader(Batcher(node, job.batch, drop_last=False)), sampler)


def tensorflow(job: Job) -> Loader:
    """Returns a tf.data loader. Its cache is a file, which is complete after the first epoch."""
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = job.workers
    data = (
        tf.data.Dataset.from_tensor_slices(sorted(str(path) for path in job.root.iterdir()))
        .shard(job.ranks, job.rank)
        .map(tf.io.read_file, num_parallel_calls=job.workers)
        .cache(str(Path(os.environ[LOCAL_VARIABLE]) / "cache"))
        .shuffle(TF_BUFFER, seed=SEED)
        .batch(job.batch)
        .prefetch(2)
        .with_options(options)
    )

    def epoch(_: int) -> Iterator[int]:
        for batch in data.as_numpy_iterator():
            yield from map(len, batch)

    return epoch


def ffcv(job: Job) -> Loader:
    from ffcv.fields.decoders import BytesDecoder
    from ffcv.loader import Loader, OrderOption

    loader = Loader(
        str(next(job.root.iterdir())),
        batch_size=job.batch,
        num_workers=job.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        seed=SEED,
        pipelines={"bin": [BytesDecoder()]},
    )

    def epoch(_: int) -> Iterator[int]:
        for (batch,) in loader:
            yield from map(len, batch)

    return epoch


def records_of(job: Job) -> Any:
    from monarch_py.loaders import RecordDataset

    return RecordDataset(next(job.root.iterdir()), dataset="bin")


def records(job: Job) -> Loader:
    from torch.utils.data import DataLoader, DistributedSampler

    rows = records_of(job)
    sampler: Any = DistributedSampler(rows, job.ranks, job.rank, seed=SEED)
    loader: Any = DataLoader(
        rows, job.batch, sampler=sampler, num_workers=job.workers, persistent_workers=True
    )
    return epochs_of(loader, sampler)


def staged(job: Job) -> Loader:
    from torch.utils.data import BatchSampler, DistributedSampler

    from monarch_py.loaders import StagedLoader

    rows = records_of(job)
    sampler: Any = DistributedSampler(rows, job.ranks, job.rank, seed=SEED)
    batches = BatchSampler(sampler, job.batch, drop_last=False)
    return epochs_of(StagedLoader(rows, batch_sampler=batches, workers=job.workers), sampler)


def groups(job: Job) -> Loader:
    """Returns a loader that uses a GroupLoader. A GroupLoader uses a single process, so the number
    of workers has no effect."""
    import torch  # imported before the first epoch, as in a training program

    from monarch_py.loaders import GroupLoader

    torch.set_num_threads(1)

    loader = GroupLoader(records_of(job), job.batch, epochs=2, rank=job.rank, world_size=job.ranks)
    return epochs_of(loader, loader)


LOADERS: dict[str, Callable[[Job], Loader]] = {
    "torch": torch_files,
    "local_first": local_first,
    "solar": solar,
    "webdataset": webdataset,
    "streaming": streaming,
    "dali": dali,
    "torchdata": torchdata,
    "tensorflow": tensorflow,
    "ffcv": ffcv,
    "records": records,
    "staged": staged,
    "groups": groups,
}


def main() -> None:
    name, root, *numbers = sys.argv[1:]
    # Redirect standard output to standard error. Otherwise, text that a library prints would appear
    # among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    epoch = LOADERS[name](Job(Path(root), *map(int, numbers)))
    print(0, file=answers, flush=True)
    for line in sys.stdin:
        began = time.monotonic_ns()
        got = sum(epoch(int(line)))
        print(got, time.monotonic_ns() - began, file=answers, flush=True)


if __name__ == "__main__":
    main()
