"""GroupLoader: reads groups of neighbouring samples ahead of the training.

The method is that of Lee and others (2021), section III.

With a full shuffle, each sample needs a read request of its own, which is slow for small samples. A
group consists of many neighbouring samples, which are read together. Groups are read in random
order, and the samples within a group are used in random order.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from monarch_py.arrays import Array, Int32s, Ints
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.loaders.groups.reader import GroupReader
from monarch_py.loaders.groups.runs import RankGroups, Run
from monarch_py.loaders.groups.size import fitting, largest, warn
from monarch_py.loaders.memory.ring import check_owner
from monarch_py.loaders.memory.sizes import n_bytes
from monarch_py.loaders.memory.tensors import as_tensor
from monarch_py.loaders.records.form import form_of
from monarch_py.loaders.samplers.ranks import Ranks
from monarch_py.plan.schedule import EpochSchedule, group_schedule
from monarch_py.util.units import format_size


@dataclass(frozen=True)
class GroupTimes:
    """How much an epoch has read so far, and how long its reads and waits took.

    groups, n_bytes : the number and the total size [bytes] of the groups that were read
    reading_s : how long the reads took in the reading process [s]
    first_wait_s : how long the training waited for the first group [s]
    wait_s : how long the training waited for all other groups together [s]
    """

    groups: int = 0
    n_bytes: int = 0
    reading_s: float = 0.0
    first_wait_s: float = 0.0
    wait_s: float = 0.0

    def and_group(self, n_bytes: int, reading_s: float, wait_s: float) -> "GroupTimes":
        is_first = self.groups == 0
        return GroupTimes(
            self.groups + 1,
            self.n_bytes + n_bytes,
            self.reading_s + reading_s,
            self.first_wait_s + wait_s if is_first else self.first_wait_s,
            self.wait_s if is_first else self.wait_s + wait_s,
        )


# A request to the reading process: (the run whose samples are read, the slot that the samples are
# read into, the number of the task).
Asked = tuple[Run, int, int]


@dataclass(frozen=True, eq=False)
class GroupsAhead:
    """The groups that the next iteration will use. The reading process may begin to read them
    before the iteration begins.

    groups : all groups of the iteration's epoch
    runs : yields the groups that the reading process was not asked for yet
    asked : the requests that the reading process was sent, in order
    """

    epoch: int
    groups: RankGroups
    runs: Iterator[Run]
    asked: list[Asked]


class GroupLoader:
    """Yields batches of samples, as a DataLoader does, group by group::

        dataset = RecordDataset("train.h5", dataset="x")
        loader = GroupLoader(dataset, batch_size=64, epochs=100)
        for epoch in range(100):
            loader.set_epoch(epoch)
            for batch in loader:
                ...

    Each rank has a reading process and two shared buffers. The process reads a group into one
    buffer while the training uses the other buffer. Towards the end of an epoch, the process begins
    to read the next epoch.

    Groups mix samples less than a full shuffle does. Lee and others found that the training is as
    good as with a full shuffle under two conditions: a group has more samples than the training has
    epochs, and the dataset is not sorted by class. The loader warns if a group has too few samples,
    or if `labels` show that the dataset is sorted.

    All ranks take the same number of steps, and in each step their batches have the same size. So
    if the number of samples is not a multiple of `world_size`, an epoch uses a few samples a second
    time: (-length) % world_size. With `drop_last`, an epoch instead leaves out length % world_size
    samples, and each rank's last batch if that batch is not full.

    dataset : a dataset with `sizes` and `read_into`, such as a RecordDataset or a PackDataset.
        `dataset[i]` must return exactly the bytes that `read_into` reads for sample i
    group : the number of samples in a group. With 'auto', a group has at least 16 MiB and more than
        `epochs` samples. Groups are smaller if two of them would exceed `memory`, or if there would
        be fewer groups than ranks
    epochs : the number of epochs of the training. After the last one, the loader reads no groups
        ahead
    labels : the label of each sample. If labels are given, a batch is a pair (samples, labels)
    rank, world_size : None to take them from torch.distributed
    memory : the most memory for the two buffers of a rank, in bytes or as a size such as "4GiB"
    collate : makes a batch from a list of samples. By default, rows become one tensor (one array if
        torch is not installed), and samples that are bytes stay a list
    start_method : multiprocessing's start method for the reading process; None for the default

    The attribute `times` (GroupTimes) says how much the current epoch has read and waited.
    Iterating raises MonarchError if the reading process is killed or stopped, or if samples cannot
    be read.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        group: int | Literal["auto"] = "auto",
        *,
        epochs: int = 100,
        seed: int = 0,
        labels: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        memory: int | str = "4GiB",
        collate: Callable[[list[Any]], Any] | None = None,
        start_method: str | None = None,
    ) -> None:
        self.form = form_of(dataset)
        if self.form is None:
            raise ConfigError(
                f"dataset: {type(dataset).__name__} has no read_into that reads the bytes of"
                " dataset[i]; give a RecordDataset, and change samples in collate"
            )
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.drop_last, self.collate = drop_last, collate
        self.ranks = Ranks.found(rank, world_size, 1)
        self.labels = None if labels is None else np.asarray(labels)
        if self.labels is not None and len(self.labels) != len(dataset):
            raise ConfigError(
                f"labels: {len(self.labels)} for {len(dataset)} samples; give one label for each"
            )
        room = n_bytes("memory", memory)
        sizes, ranks = np.asarray(dataset.sizes), self.ranks.world_size
        self.group = fitting(sizes, epochs, ranks, room) if group == "auto" else group
        self._start_method = start_method
        self.epoch = self._begin = self._given = 0
        self._reader: GroupReader | None = None
        self._ahead: GroupsAhead | None = None
        self._epochs, self._iteration = epochs, 0
        self._owner = 0  # the id of the process that has started the reader
        self._is_told = False  # whether the training has set an epoch
        self.times = GroupTimes()
        self._steps = self._schedule(0).steps
        self._slot_bytes = largest(sizes, self.group)
        if GroupReader.SLOTS * self._slot_bytes > room:
            raise ConfigError(
                f"group: two groups of {self.group} samples take"
                f" {format_size(GroupReader.SLOTS * self._slot_bytes)}, and memory is"
                f" {format_size(room)}; give a smaller group or more memory"
            )
        warn(self.group, epochs, self.labels)

    # --- epochs ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._steps

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration. Call it before iterating over the loader."""
        self._is_told = True
        if epoch != self.epoch:
            self.epoch, self._begin, self._given = epoch, 0, 0

    def state_dict(self, done: int | None = None) -> dict[str, Any]:
        """Returns the training's position for a checkpoint: a dict of less than 1 KB.

        done : how many batches of the current epoch the training has used; None for all that the
            loader has yielded
        """
        given = max(self._given, self._begin) if done is None else done
        if not 0 <= given <= len(self):
            raise ConfigError(f"done: {given} is out of range; an epoch has {len(self)} batches")
        return {**self._settings(), "epoch": self.epoch, "done": given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues after the last batch that the state counts as done. Raises ConfigError if the
        state belongs to another seed or to a dataset of another length. If the state was saved in
        the middle of an epoch, also raises ConfigError if the number of ranks, the batch size, the
        group size or `drop_last` differs. Otherwise the rest of the epoch would have other
        batches."""
        settings = self._settings()
        fixed = ("monarch_groups", "length", "seed")
        is_whole = state.get("done") in (0, state.get("steps"))
        for name in fixed if is_whole else settings:
            if state.get(name) != settings[name]:
                raise ConfigError(
                    f"state: {name} is {state.get(name)!r}, but this loader has {settings[name]!r};"
                    f" give the same {name}, or continue from the end of an epoch"
                )
        done = 0 if state["done"] == 0 else len(self) if is_whole else int(state["done"])
        self.epoch, self._begin = int(state["epoch"]), done
        self._given = done
        self._is_told = True

    def _settings(self) -> dict[str, Any]:
        return {
            "monarch_groups": 1,
            "length": len(self.dataset),
            "seed": self.seed,
            "group": self.group,
            "batch_size": self.batch_size,
            "ranks": self.ranks.world_size,
            "drop_last": self.drop_last,
            "steps": self._steps,
        }

    def _schedule(self, epoch: int) -> EpochSchedule:
        return group_schedule(
            len(self.dataset),
            self.group,
            self.seed,
            epoch,
            self.ranks.world_size,
            self.batch_size,
            self.drop_last,
        )

    # --- batches ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        self.ranks.check()
        begin, self._begin = self._begin, 0
        self._given = begin
        self._iteration += 1
        self.times = GroupTimes()
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.epoch != self.epoch or begin > 0:
            ahead = self._expected(self.epoch, begin)
        return self._batches(ahead, begin, self._iteration)

    def _expected(self, epoch: int, begin: int = 0) -> GroupsAhead:
        """Returns the groups of an epoch from the step `begin` on. The groups are not yet requested
        from the reading process."""
        groups = RankGroups.of(self._schedule(epoch), self.ranks.rank, self.group)
        at = int(groups.ends[begin - 1]) if begin else 0
        return GroupsAhead(epoch, groups, groups.runs(at), [])

    def read_ahead(self, reader: GroupReader, slot: int) -> None:
        """Asks the reader to read one more group of the next epoch into a free slot. Does nothing
        if all groups of the next epoch were requested, or if there is no next epoch."""
        epoch = self.epoch + 1 if self._is_told else self.epoch
        if (epoch if self._is_told else self._iteration) >= self._epochs:
            return
        if self._ahead is None:
            self._ahead = self._expected(epoch)
        run = next(self._ahead.runs, None)
        if run is not None:
            self._ahead.asked.append((run, slot, reader.ask(slot, run.samples)))

    def _batches(self, ahead: GroupsAhead, begin: int, iteration: int) -> Iterator[Any]:
        # This code runs only when the first batch is asked for, which may be long after __iter__
        # made the generator. Meanwhile, another iteration may have begun, or the process may have
        # forked.
        self._check_newest(iteration)
        epoch = ahead.groups
        if begin >= len(epoch.ends):
            return
        at = int(epoch.ends[begin - 1]) if begin else 0
        if self._reader is None:
            self._reader = GroupReader(self.dataset, self._slot_bytes, self._start_method)
            self._owner = os.getpid()
            if ahead.asked:  # these requests went to a reader that is closed now
                ahead = self._expected(ahead.epoch, begin)
        groups = _Groups(self, self._reader, ahead)
        for step in range(begin, len(epoch.ends)):
            self._check_newest(iteration)
            end = int(epoch.ends[step])
            samples = self._or_close(groups.samples, at, end)
            self._given = step + 1
            yield self._batch(samples, epoch.samples[at:end])
            at = end

    def _check_newest(self, iteration: int) -> None:
        if self._reader is not None:
            check_owner(self._owner)
        if self._iteration != iteration:
            raise MonarchError(
                "groups: another iteration over this loader has begun; continue with the newer"
                " iteration"
            )

    def _or_close(self, get: Callable[[int, int], Any], begin: int, end: int) -> Any:
        try:
            return get(begin, end)
        except Exception:
            self.close()
            raise

    def _batch(self, samples: Any, numbers: Int32s) -> Any:
        if self.collate is not None:
            batch = self.collate(list(samples))
        else:
            batch = as_tensor(samples) if isinstance(samples, np.ndarray) else samples
        if self.labels is None:
            return batch
        return batch, as_tensor(self.labels[numbers])

    def close(self) -> None:
        """Ends the reading process. The next epoch starts a new process."""
        if self._reader is not None:
            self._reader.close()
            self._reader = self._ahead = None


class _Groups:
    """The groups of an iteration. Each of the two slots is free, or contains a group that was read
    or is being read."""

    def __init__(self, loader: GroupLoader, reader: GroupReader, ahead: GroupsAhead) -> None:
        self._loader, self._reader, self._runs = loader, reader, ahead.runs
        self._sizes = np.asarray(loader.dataset.sizes)
        form = loader.form
        self._row = None if form is None or form.is_bytes else form  # None: samples are bytes
        self._asked = ahead.asked
        self._run: Run | None = None
        self._slot = 0
        self._starts: Ints | None = None
        taken = {slot for _, slot, _ in self._asked}
        for slot in range(reader.SLOTS):
            if slot not in taken:
                self._ask(slot)

    def _ask(self, slot: int) -> None:
        run = next(self._runs, None)
        if run is None:
            self._loader.read_ahead(self._reader, slot)
        else:
            self._asked.append((run, slot, self._reader.ask(slot, run.samples)))

    def samples(self, begin: int, end: int) -> Any:
        """Returns the samples at the positions `begin` to `end` - 1 of the rank's epoch, as an
        array of rows or a list of bytes."""
        out: Any = []
        if self._row is not None:
            out = np.empty(self._shape(end - begin), dtype=self._row.dtype)
        at = begin
        while at < end:
            run = self._arrived(at)
            high = min(end, run.end)
            places = run.within[at - run.begin : high - run.begin]
            if self._row is None:
                out += self._bytes(places)
            else:
                part, table = out[at - begin : high - begin], self._rows(len(run.samples))
                np.take(table, places, axis=0, out=part, mode="clip")  # mode="raise" copies twice
            at = high
            if at == run.end:
                self._run = None
                self._ask(self._slot)
        return out

    def _arrived(self, at: int) -> Run:
        """Waits until the run at the position `at` has been read, and returns the run. A run
        consists of consecutive samples of one group."""
        while self._run is None:
            run, self._slot, task = self._asked.pop(0)
            began = time.perf_counter()
            reading_s = self._reader.take(task)
            wait_s = time.perf_counter() - began
            sizes = self._sizes[run.samples]
            self._starts = np.append(0, np.cumsum(sizes))
            n_bytes = int(self._starts[-1])
            self._loader.times = self._loader.times.and_group(n_bytes, reading_s, wait_s)
            self._run = run
        return self._run

    def _rows(self, count: int) -> Array:
        assert self._row is not None
        shape = self._shape(count)
        memory = self._reader.slot(self._slot)[: math.prod(shape) * self._row.dtype.itemsize]
        table: Array = memory.view(self._row.dtype).reshape(shape)
        return table

    def _shape(self, count: int) -> tuple[int, ...]:
        assert self._row is not None and self._row.shape is not None
        return (count, *self._row.shape)

    def _bytes(self, places: Ints) -> list[bytes]:
        assert self._starts is not None
        memory, starts = self._reader.slot(self._slot), self._starts
        bounds = zip(starts[places].tolist(), starts[places + 1].tolist(), strict=True)
        return [memory[low:high].tobytes() for low, high in bounds]
