"""StagedLoader: like torch's DataLoader, but batches are read into a reused ring of shared memory.

Worker processes read samples straight into a slot of the ring, and the training receives views of
the slot. So a sample is written only once, and no memory is allocated, sent or mapped for a batch::

    loader = StagedLoader(dataset, batch_sampler=sampler, workers=4)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:       # views, valid until the next batch
            ...
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import signature
from itertools import islice
from typing import Any

import numpy as np

from monarch_py.errors import ConfigError
from monarch_py.loaders.memory.ring import Bytes, Ring, check_owner
from monarch_py.loaders.memory.sizes import n_bytes
from monarch_py.loaders.memory.tensors import as_tensor, has_torch
from monarch_py.loaders.records.form import form_of
from monarch_py.loaders.samplers.sampler import ScheduledSampler
from monarch_py.loaders.staged.advice import Advisor
from monarch_py.loaders.staged.pinning import Pinned
from monarch_py.loaders.staged.placing import copied, take, view_of
from monarch_py.loaders.staged.sources import daemon_sources
from monarch_py.loaders.staged.stage import Batch, Stage
from monarch_py.loaders.staged.work import Failure, Work

# "auto" starts at most this many workers. If a node has room for more processes, the user can give
# the number of workers instead.
MOST_AUTO_WORKERS = 16


class StagedLoader:
    """Batches of a dataset in the order of its batch sampler, read ahead by worker processes.

    The arrays of a batch are views of shared memory. They are valid until the next batch is asked
    for.

    dataset : a dataset with `dataset[i]` or `__getitems__(list)`. Samples are read in place
        (straight into the shared memory) if three conditions are met: there is no collate_fn;
        samples are bytes or arrays; and the class of the dataset defines `read_into(samples, out)`
        and `sizes` together with `dataset[i]`. A batch is then one array of the shape (samples,
        *shape). If samples differ in size, it is a list of byte arrays
    batch_sampler : an iterable of lists of samples. If its state_dict has an argument `done`, the
        sampler itself continues an epoch from a checkpoint. Otherwise the loader skips the batches
        that were delivered before the checkpoint
    workers : the number of processes; 0 reads in this process. With "auto", the first epoch has one
        process, and the loader computes the number for each later epoch from measured times, as in
        section 4.1 of the Lobster paper
    copy : True copies each batch to memory of its own, so that the training may keep the batch
    pin_memory : registers the shared memory with CUDA. When the training asks for the next batch,
        work on the current CUDA stream may still read the previous batch. The memory of the
        previous batch is reused only after this work
    collate_fn : makes a batch of samples, in the worker; None to collate as torch does
    tensors : whether batches have torch's tensors; if not, arrays. None for tensors if torch is
        installed
    prefetch : the number of batches per worker that are read ahead
    persistent : whether the workers continue to run after an epoch
    max_batch : the largest size that a batch may have: bytes, or a size such as "1GiB". A large
        limit reserves address space, but the loader uses only as much memory as its largest batches
    multiprocessing_context : "fork", "spawn" or "forkserver"; None for Python's default
    worker_init_fn : called in each worker at its start, with the worker's number

    Raises ConfigError for arguments that cannot work. An exception that the dataset raises in a
    worker is raised again by the iteration, with the worker's traceback. If a worker is killed or
    stopped, the iteration raises MonarchError within seconds.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_sampler: Iterable[Sequence[Any]],
        workers: int | str = 4,
        copy: bool = False,
        pin_memory: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        tensors: bool | None = None,
        prefetch: int = 2,
        persistent: bool = True,
        max_batch: int | str = "1GiB",
        multiprocessing_context: str | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
    ) -> None:
        if isinstance(batch_sampler, ScheduledSampler):
            batch_sampler.check_dataset(dataset)
        self.dataset, self.batch_sampler = dataset, batch_sampler
        self.pin_memory, self.persistent = pin_memory, persistent
        self._copy = copy
        self._tensors = has_torch() if tensors is None else tensors
        self._form = None if collate_fn is not None else form_of(dataset)
        sizes = None if self._form is None else np.asarray(dataset.sizes, dtype=np.int64)
        self._advisor = Advisor(MOST_AUTO_WORKERS) if workers == "auto" else None
        count = _check_workers(workers)
        if prefetch < 1:
            raise ConfigError(f"prefetch: {prefetch} batches ahead; give 1 or more")
        self._stage = Stage(
            Work(dataset, sizes, collate_fn),
            n_bytes("max_batch", max_batch),
            workers=count,
            prefetch=prefetch,
            most_workers=MOST_AUTO_WORKERS if self._advisor else count,
            method=multiprocessing_context,
            init=worker_init_fn,
        )
        self._pinned = Pinned(self._stage.ring) if pin_memory else None
        if self._pinned is not None:
            self._stage.may_reuse = self._pinned.may_reuse
        self._sizes = sizes
        self._owner = os.getpid()
        self._epoch = 0  # the number of the newest iteration; older iterations yield nothing
        self._delivered, self._skip = 0, 0
        self._sampled_epoch = _epoch_of(batch_sampler)

    @property
    def num_workers(self) -> int:
        return self._stage.workers

    @property
    def ring(self) -> Ring:
        """The shared memory that batches are read into."""
        return self._stage.ring

    @property
    def reads_in_place(self) -> bool:
        """Whether the dataset's read_into writes samples straight into the ring."""
        return self._sizes is not None

    def __len__(self) -> int:
        """The number of this rank's batches in an epoch."""
        return len(self.batch_sampler)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Calls `set_epoch` of the batch sampler and of its sampler, if they have this method."""
        told: list[Any] = [self.batch_sampler, getattr(self.batch_sampler, "sampler", None)]
        for sampler in told:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return _Epoch(self, self.views)

    def iterate_slots(self) -> Iterator[Batch]:
        """Yields the batches of an epoch as slots of the ring. A slot is valid until the next batch
        is asked for. If samples are read in place, `bounds` yields where each sample lies in the
        slot."""
        return _Epoch(self, lambda batch: batch)

    def begin_epoch(self) -> int:
        """Begins an epoch, and returns a number that identifies it. From now on, `next_batch`
        returns batches only if it is called with this number."""
        check_owner(self._owner)
        if self._advisor is not None:
            self._stage.workers = self._advisor.begin(self._stage.counts)
        if self._pinned is not None:
            self._pinned.passed_on()  # frees the last batch of an unfinished epoch
        epoch = _epoch_of(self.batch_sampler)
        # The batches that a loaded state counts as delivered are skipped only in the state's own
        # epoch.
        skip = self._skip if epoch == self._sampled_epoch else 0
        self._delivered, self._skip, self._sampled_epoch = skip, 0, epoch
        batches = iter(self.batch_sampler)
        if not _resumes(self.batch_sampler):
            batches = islice(batches, skip, None)
        self._stage.begin(batches)
        self._epoch += 1
        return self._epoch

    # --- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the training's position for a checkpoint. Only batches that were delivered to the
        training count, not batches that were read ahead."""
        is_new = _epoch_of(self.batch_sampler) != self._sampled_epoch
        done = 0 if is_new else self._delivered
        sampler: Any = self.batch_sampler
        if not _resumes(sampler):
            return {"delivered": done, "epoch": _epoch_of(sampler)}
        return {"delivered": done, "batch_sampler": sampler.state_dict(done=done)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration continue the state's epoch after the last delivered batch. If
        `set_epoch` sets another epoch before the iteration, that epoch begins at its first batch.
        If the batch sampler has no epochs and the state was saved at the end of an epoch, the next
        iteration begins at the first batch."""
        self._epoch += 1
        done = int(state["delivered"])
        sampler: Any = self.batch_sampler
        if _resumes(sampler):
            sampler.load_state_dict(state["batch_sampler"])
        elif state.get("epoch") is not None:
            self.set_epoch(state["epoch"])
        elif hasattr(sampler, "__len__") and done == len(sampler):
            done = 0
        self._skip = self._delivered = done
        self._sampled_epoch = _epoch_of(self.batch_sampler)

    # --- statistics -----------------------------------------------------------------------------

    def statistics(self) -> dict[str, Any]:
        """Returns counts since the loader was made.

        batches, samples, bytes : how much was delivered to the training
        stalls, wait_seconds : how often and how long the training waited for a batch
        workers : the number of workers now
        waiting_seconds, computing_seconds : how long workers waited for data, and how long they
            computed
        sources : counts that show how much came from the source. If the dataset has a method
            `sources`, as KeptDataset has, they are its result; otherwise they are the counts of the
            node's daemon (daemon_sources)
        """
        counts = self._stage.counts
        own = getattr(self.dataset, "sources", None)
        return {
            "batches": counts.batches,
            "samples": counts.samples,
            "bytes": counts.bytes,
            "stalls": counts.stalls,
            "wait_seconds": counts.wait_seconds,
            "workers": self._stage.workers,
            "waiting_seconds": counts.waiting_seconds,
            "computing_seconds": counts.computing_seconds,
            "sources": daemon_sources() if own is None else own(),
        }

    def close(self) -> None:
        """Ends the workers. A later iteration starts new ones."""
        self._epoch += 1
        self._stage.close()

    # --- one batch ------------------------------------------------------------------------------

    def next_batch(self, epoch: int) -> Batch:
        """Returns the next batch in its slot. Raises StopIteration at the end of the epoch, or if a
        newer epoch has begun."""
        check_owner(self._owner)
        if epoch != self._epoch:
            raise StopIteration
        if self._pinned is not None:
            self._pinned.passed_on()
        try:
            batch = self._stage.next()
        except StopIteration:
            self._end_epoch()
            raise
        self._delivered += 1
        if isinstance(batch.tree, Failure):
            batch.tree.raise_in_training(f"in a worker, in batch {self._delivered - 1}")
        if self._advisor is not None:
            self._advisor.saw(batch)
        return batch

    def views(self, batch: Batch) -> Any:
        """Returns the batch as the training receives it: views of the slot, or copies."""
        slot = self._stage.ring.slot(batch.slot)
        if self._pinned is not None:
            self._pinned.register(batch.slot, batch.n_bytes)
        if batch.tree is None:
            found = self._views_as_read(batch, slot)
        else:
            found = take(batch.tree, slot, tensors=self._tensors)
        return copied(found) if self._copy else found

    def _views_as_read(self, batch: Batch, slot: Bytes) -> Any:
        assert self._form is not None
        if self._form.shape is not None:
            shape = (len(batch.indices), *self._form.shape)
            array = view_of(slot, 0, shape, self._form.dtype)
            return as_tensor(array) if self._tensors else array
        parts = [slot[begin:end] for begin, end in self.bounds(batch)]
        return [as_tensor(part) for part in parts] if self._tensors else parts

    def bounds(self, batch: Batch) -> Iterator[tuple[int, int]]:
        """Yields where each sample of a batch begins and ends in the batch's slot. The batch must
        have been read in place."""
        assert self._sizes is not None
        ends = np.cumsum(self._sizes[np.asarray(batch.indices, dtype=np.int64)]).tolist()
        return zip([0, *ends], ends, strict=False)

    def _end_epoch(self) -> None:
        self._epoch += 1
        if self._advisor is not None:
            self._advisor.end(self._stage.counts)
        if not self.persistent:
            self._stage.close()


class _Epoch(Iterator[Any]):
    """The iterator of one epoch. It returns `change(batch)` for each batch."""

    def __init__(self, loader: StagedLoader, change: Callable[[Batch], Any]) -> None:
        self._loader, self._change = loader, change
        self._number = loader.begin_epoch()

    def __next__(self) -> Any:
        return self._change(self._loader.next_batch(self._number))


def _check_workers(workers: int | str) -> int:
    if workers == "auto":
        return 1
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ConfigError(f'workers: {workers!r} is not possible; give 0 or more, or "auto"')
    return workers


def _resumes(batch_sampler: Any) -> bool:
    """Whether the batch sampler itself can resume an epoch. If not, the loader skips batches."""
    if not (hasattr(batch_sampler, "state_dict") and hasattr(batch_sampler, "load_state_dict")):
        return False
    return "done" in signature(batch_sampler.state_dict).parameters


def _epoch_of(batch_sampler: Any) -> Any:
    """Returns the epoch that was set on a batch sampler or on its sampler. Returns None if neither
    has an epoch."""
    if _resumes(batch_sampler):
        return batch_sampler.state_dict(done=0).get("epoch")
    inner = getattr(batch_sampler, "sampler", None)
    return getattr(batch_sampler, "epoch", getattr(inner, "epoch", None))
