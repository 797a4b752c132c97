"""Classes with the interface of NoPFS (paper: Dryden and others, SC'21), based on StagedLoader.

::

    job = Job("train", batch_size=64, epochs=90, distr_scheme="uniform", drop_last_batch=True)
    dataset = NoPFSImageFolder("train", job, transform)
    for epoch in range(90):
        for images, labels in NoPFSDataLoader(dataset):
            ...

The seed determines in advance which samples each rank reads, and in which order. From this order,
NoPFS decides which node keeps which samples. In Monarch, the daemons or LocalFirstSampler decide
this.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import Int32s
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.loaders.records.whole_files import ImageFolderFiles
from monarch_py.loaders.samplers.ranks import Ranks
from monarch_py.loaders.samplers.sampler import ScheduledSampler
from monarch_py.loaders.staged.loader import StagedLoader
from monarch_py.plan.schedule import EpochSchedule

DISTR_SCHEMES = ("uniform",)


class UniformSampler(ScheduledSampler):
    """Yields the batches that torch's DistributedSampler and BatchSampler yield: rank r of `n`
    ranks takes the samples r, r + n, r + 2 n, ... of each global batch."""

    def _dealt(self, order: Int32s) -> EpochSchedule:
        ranks, position = self.ranks.world_size, np.arange(len(order))
        place = position // self._at.per_step * ranks + position % self._at.per_step % ranks
        steps = -(-len(order) // self._at.per_step)
        starts = np.zeros(steps * ranks + 1, dtype=np.int64)
        np.cumsum(np.bincount(place, minlength=steps * ranks), out=starts[1:])
        return EpochSchedule(order[np.argsort(place, kind="stable")], starts, ranks)


class Job:
    """Delivers the samples of a training run in the order of their use. They are read ahead into
    one buffer.

    dataset : the root of an ImageFolder, or a dataset with `read_into` and `sizes`. It may have
        `labels`, one for each sample
    batch_size : the number of samples in a batch of this rank
    epochs : the number of epochs of the training run
    distr_scheme : "uniform": each epoch has a new random order
    drop_last_batch : whether the last batch is left out if it is not full
    seed : the seed of the random orders; the same on all ranks
    workers : the number of worker processes, or "auto";  max_batch : the largest size of a batch
    multiprocessing_context : "fork", "spawn" or "forkserver"; None for Python's default
    rank, world_size : None to take them from torch.distributed
    """

    def __init__(  # noqa: PLR0917  the arguments of NoPFS
        self,
        dataset: Any,
        batch_size: int,
        epochs: int,
        distr_scheme: str = "uniform",
        drop_last_batch: bool = False,
        seed: int = 0,
        *,
        workers: int | str = 4,
        max_batch: int | str = "1GiB",
        multiprocessing_context: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if distr_scheme not in DISTR_SCHEMES:
            raise ConfigError(
                f"distr_scheme: {distr_scheme!r} is unknown; give {' or '.join(DISTR_SCHEMES)}"
            )
        if epochs < 1:
            raise ConfigError(f"epochs: {epochs}; give 1 or more")
        is_path = isinstance(dataset, (str, Path))
        self.dataset: Any = ImageFolderFiles(dataset) if is_path else dataset
        if not (hasattr(self.dataset, "read_into") and hasattr(self.dataset, "sizes")):
            raise ConfigError(
                "dataset: it cannot be read into a buffer; give the root of an ImageFolder, or a"
                " dataset with read_into and sizes, such as RecordDataset"
            )
        self.batch_size, self.epochs, self.drop_last_batch = batch_size, epochs, drop_last_batch
        # UniformSampler does not ask which ranks share a node, so per_node is set to 1.
        ranks = Ranks.found(rank, world_size, per_node=1)
        self.sampler = UniformSampler(
            len(self.dataset), batch_size, seed, ranks, drop_last=drop_last_batch
        )
        self.settings: dict[str, Any] = {
            "workers": workers,
            "max_batch": max_batch,
            "multiprocessing_context": multiprocessing_context,
        }
        self._loader: StagedLoader | None = None
        self._begin()

    def _begin(self) -> None:
        self._epoch = -1
        self._is_cut = False  # whether this epoch was interrupted because a worker was lost
        self.iterated = 0  # the number of epochs that loaders of this job have begun
        self._batches: Any = None
        self._samples: Iterator[tuple[memoryview, Any]] = iter(())

    @property
    def loader(self) -> StagedLoader:
        """The loader that reads for `get`. The first `get` starts its workers."""
        if self._loader is None:
            self._loader = StagedLoader(
                self.dataset, batch_sampler=self.sampler, tensors=False, **self.settings
            )
            if not self._loader.reads_in_place:
                raise ConfigError("dataset: read_into and dataset[i] differ; make them agree")
        return self._loader

    def get(self) -> tuple[memoryview, Any]:
        """Returns this rank's next sample and its label (None without labels). The sample is a view
        of the memory that it was read into. The view is valid until `get` is called for the first
        sample of the next batch. Raises MonarchError after the last epoch. Also raises MonarchError
        if a worker was lost; the next call then reads the same batch with new workers."""
        for sample in self._samples:
            return sample
        self._samples = self._of_batch()
        return self.get()

    def _of_batch(self) -> Iterator[tuple[memoryview, Any]]:
        """Returns the samples of the next batch, each with its label."""
        batch = None if self._batches is None else self._next_batch()
        while batch is None:
            self._next_epoch()
            batch = self._next_batch()
        loader = self.loader
        memory = memoryview(loader.ring.slot(batch.slot).data)
        views = [memory[begin:end] for begin, end in loader.bounds(batch)]
        labels = getattr(self.dataset, "labels", None)
        of = [None] * len(views) if labels is None else [labels[i] for i in batch.indices]
        return zip(views, of, strict=True)

    def _next_batch(self) -> Any:
        try:
            return next(self._batches, None)
        except MonarchError:
            # The error has ended the loader's iteration. Load the loader's own state, so that the
            # next iteration begins after the delivered batches.
            self.loader.load_state_dict(self.loader.state_dict())
            self._batches, self._is_cut = None, True
            raise

    def _next_epoch(self) -> None:
        if not self._is_cut:
            if self._epoch + 1 >= self.epochs:
                raise MonarchError(f"job: all {self.epochs} epochs were delivered; make a new job")
            self._epoch += 1
            self.sampler.set_epoch(self._epoch)
        self._is_cut = False
        self._batches = self.loader.iterate_slots()

    @property
    def buffer(self) -> memoryview:
        """The whole buffer that samples are read into."""
        return memoryview(self.loader.ring.memory)

    def length(self) -> int:
        """Returns the number of the dataset's samples."""
        return len(self.dataset)

    def statistics(self) -> dict[str, Any]:
        """Returns the result of StagedLoader.statistics for the samples that `get` has
        delivered."""
        return self.loader.statistics()

    def destroy(self) -> None:
        """Ends the workers. A later `get` begins with the first epoch."""
        if self._loader is not None:
            self._loader.close()
        self._begin()


class NoPFSImageFolder:
    """The images of a job's ImageFolder: `dataset[i]` is a pair: image i, decoded, and its class.

    root : the directory that the job was made for
    transform : applied to each image;  target_transform : applied to each class
    """

    def __init__(
        self,
        root: str | Path,
        job: Job,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
    ) -> None:
        files = job.dataset
        if not isinstance(files, ImageFolderFiles) or files.root != str(Path(root)):
            raise ConfigError(f"root: {root} is not the directory of the job; give that directory")
        self.job, self._files = job, files
        self.transform, self.target_transform = transform, target_transform
        self.classes = files.classes.tolist()
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.targets = files.labels.tolist()

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self._decoded(self._files[index], index)

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        if not len(indices):
            return []
        sizes = self._files.sizes[np.asarray(indices, dtype=np.int64)]
        content = np.empty(int(sizes.sum()), dtype=np.uint8)
        self._files.read_into(indices, content)
        parts = np.split(content, np.cumsum(sizes)[:-1])
        return [self._decoded(part.data, i) for part, i in zip(parts, indices, strict=True)]

    def _decoded(self, content: Any, index: int) -> tuple[Any, Any]:
        image = _decode(content)
        label = self.targets[index]
        return (
            image if self.transform is None else self.transform(image),
            label if self.target_transform is None else self.target_transform(label),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "job": None}  # workers read files and do not need the job


def _decode(content: Any) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MonarchError("Pillow, which decodes images, is missing; pip install pillow") from None
    with Image.open(io.BytesIO(content)) as image:
        return image.convert("RGB")


class NoPFSDataLoader:
    """Batches of a job's images, decoded and transformed by the workers. Each iteration is the
    job's next epoch; all loaders of a job count its epochs together.

    settings : further arguments of StagedLoader, such as collate_fn or pin_memory
    """

    def __init__(self, dataset: NoPFSImageFolder, **settings: Any) -> None:
        self.dataset, self.job = dataset, dataset.job
        self.loader = StagedLoader(
            dataset, batch_sampler=self.job.sampler, **{**self.job.settings, **settings}
        )

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        job = self.job
        if job.iterated >= job.epochs:
            raise MonarchError(f"job: all {job.epochs} epochs were delivered; make a new job")
        self.loader.set_epoch(job.iterated)
        job.iterated += 1
        return iter(self.loader)

    def statistics(self) -> dict[str, Any]:
        """Returns the counts of StagedLoader.statistics."""
        return self.loader.statistics()

    def close(self) -> None:
        """Ends the workers."""
        self.loader.close()
