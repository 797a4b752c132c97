"""Batch samplers that follow a schedule, which a thread works out while the epoch before runs.

Every rank computes the epoch by itself, in a thread of its process: a second or two for 19 million
samples, and next to nothing for one million. To share it among the ranks of a node would need a
place in shared memory that outlives none of them, and ranks that wait for each other.
"""

import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any

import numpy as np

from monarch_py.errors import ConfigError
from monarch_py.loaders.memory.kept import KeptDataset
from monarch_py.loaders.samplers.agreement import Agreement, process_group
from monarch_py.loaders.samplers.misuse import found_misuse
from monarch_py.loaders.samplers.ranks import Ranks
from monarch_py.loaders.samplers.state import State
from monarch_py.native import Int32s, Ints
from monarch_py.plan.samplers import DistributedSampler
from monarch_py.plan.schedule import EpochSchedule

log = logging.getLogger("monarch.loaders")

# What pickling adds to a sample at most, for which there is room in a node's memory [bytes].
PICKLED_BYTES = 512


@dataclass(frozen=True, eq=False)
class RankEpoch:
    """The batches of one rank in an epoch.

    samples : (accesses,) int32;  starts : (steps + 1,) int64, where each batch begins there
    sizes : (steps,) how many samples of each step are this rank's. A rank that has none takes one
        of another rank, unless it may have an empty batch, and that one does not count
    totals : (steps,) the sizes of the global batches
    is_equal : whether all ranks' batches are equal in each step
    """

    samples: Int32s
    starts: Ints
    sizes: Ints
    totals: Ints
    is_equal: bool

    @classmethod
    def of(cls, schedule: EpochSchedule, rank: int, *, may_be_empty: bool) -> "RankEpoch":
        sizes = schedule.sizes()
        own = sizes[:, rank]
        first = schedule.starts[rank : -1 : schedule.ranks].copy()
        taken = own.copy()
        if not may_be_empty:
            empty = own == 0
            first[empty] = schedule.starts[: -1 : schedule.ranks][empty]
            taken[empty] = 1
        starts = np.zeros(len(own) + 1, dtype=np.int64)
        np.cumsum(taken, out=starts[1:])
        at = np.arange(starts[-1]) + np.repeat(first - starts[:-1], taken)
        is_equal = bool((sizes.max(axis=1) == sizes.min(axis=1)).all())
        return cls(schedule.samples[at], starts, own, sizes.sum(axis=1), is_equal)


def _is_dealing(ranks: Ranks) -> bool:
    """Whether the process group consists of these ranks."""
    group = process_group()
    return group is not None and (group.get_rank(), group.get_world_size()) == (
        ranks.rank,
        ranks.world_size,
    )


class _Ahead:
    """A result that a thread works out before it is asked for. A forked child, which has no such
    thread, works it out itself."""

    def __init__(self, make: Callable[[], RankEpoch]) -> None:
        self._make, self._pid = make, os.getpid()
        self._found: RankEpoch | None = None
        self._thread = Thread(target=self._run, name="monarch-schedule", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._found = self._make()

    def result(self) -> RankEpoch:
        if self._pid == os.getpid():
            self._thread.join()
        # Without a result, the thread has raised an error, which is raised here again.
        return self._make() if self._found is None else self._found


class ScheduledSampler(ABC):
    """A batch sampler for DataLoader's `batch_sampler`: it yields the batches of one rank.

    The global batches are those of DistributedSampler with the same seed, and of batches of
    `batch_size`. With `drop_last`, the samples that do not divide among the ranks are left out, and
    the last batch if it is not full; else the epoch is padded from its head, and the last batch is
    smaller.

    A state names global batches. So any number of ranks continues with the same ones, and where
    that number does not divide them, batches differ by one sample, and `weight` makes up for it.
    """

    holders: Int32s  # (samples,) or (samples, any) the nodes that hold each sample

    def __init__(
        self,
        length: int,
        batch_size: int,
        seed: int,
        ranks: Ranks,
        *,
        sizes: Ints | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size: {batch_size} is out of range; write 1 or more")
        batch_size = int(batch_size)
        self.batch_size, self.drop_last, self.ranks = batch_size, drop_last, ranks
        self._at = State(
            epoch=0,
            done=0,
            per_step=batch_size * ranks.world_size,
            ranks=ranks.world_size,
            length=length,
            seed=int(seed),  # of NumPy's types, JSON would take none
            shuffle=bool(shuffle),
            drop_last=bool(drop_last),
        )
        self._agreement = Agreement() if _is_dealing(ranks) else None
        self._sizes = sizes  # of the samples, if ranks keep them; None if daemons do
        self._begin = 0  # the step at which the next iteration begins
        self._given = 0  # steps whose batches the running iteration has handed out
        self._weighed = 0  # the step of which `weight` is asked next
        self._ready: dict[int, RankEpoch] = {}  # the running epoch
        self._ahead: dict[int, _Ahead] = {}  # the next one
        self._goes_on = False  # whether the training tells of its epochs
        if self._steps() == 0:
            raise ConfigError(
                f"batch_size: {batch_size} leaves no full batch of {length} samples for"
                f" {ranks.world_size} ranks; write a smaller one or drop_last=False"
            )

    # --- what a subclass says -------------------------------------------------------------------

    @abstractmethod
    def _dealt(self, order: Int32s) -> EpochSchedule:
        """Deals the order of an epoch to the ranks, `_at.per_step` samples a step."""

    _may_be_empty = False

    def _number(self, epoch: int) -> int:
        """The epoch whose order is used in `epoch` of the training."""
        return epoch

    # --- a batch sampler ------------------------------------------------------------------------

    @property
    def sampler(self) -> "ScheduledSampler":
        """This sampler itself: Lightning tells the epoch to a batch sampler's `sampler`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch begins, before the DataLoader is iterated over."""
        self._goes_on = True
        self._move(epoch, 0 if epoch != self._at.epoch else self._begin)

    def __len__(self) -> int:
        if (misuse := found_misuse(sys._getframe(1))) is not None:
            raise misuse
        return self._steps()

    def __iter__(self) -> Iterator[list[int]]:
        misuse = found_misuse(sys._getframe(1))
        begin = self._given = self._weighed = self._begin
        return self._batches(self._at.epoch, begin, misuse)

    def _batches(self, number: int, begin: int, misuse: ConfigError | None) -> Iterator[list[int]]:
        # A DataLoader of which only the half has been made would complain of that too; so the error
        # waits until the first batch is asked for.
        if misuse is not None:
            raise misuse
        self._compare()
        self._begin = 0
        epoch = self.epoch(number)
        if self._goes_on:
            self._prepare(number + 1)
        starts = epoch.starts.tolist()
        for step in range(begin, len(epoch.sizes)):
            self._given = step + 1
            yield epoch.samples[starts[step] : starts[step + 1]].tolist()

    def epoch(self, number: int) -> RankEpoch:
        """The batches of this rank in an epoch."""
        if number not in self._ready:
            ahead = self._ahead.pop(number, None)
            made = self._make(number) if ahead is None else ahead.result()
            self._ready = {number: made}
        return self._ready[number]

    def schedule(self, number: int) -> EpochSchedule:
        """The batches of all ranks in an epoch."""
        at = self._at
        order = DistributedSampler(at.length, at.ranks, at.seed, at.shuffle, at.drop_last)
        whole = order.epoch(self._number(number))
        return self._dealt(whole[: self._steps() * at.per_step])

    def _make(self, number: int) -> RankEpoch:
        return RankEpoch.of(self.schedule(number), self.ranks.rank, may_be_empty=self._may_be_empty)

    def _compare(self) -> None:
        """Raises ConfigError if this rank is another one by now, or if ranks deal differently."""
        self.ranks.check()
        agreement, self._agreement = self._agreement, None
        if agreement is not None:
            agreement.check(self._dealt_by())

    def _dealt_by(self) -> list[Any]:
        """What determines the batches of all ranks."""
        at = replace(self._at, epoch=0)  # which a look at the first batch may precede
        return [type(self).__name__, at, self.ranks.per_node]

    def _prepare(self, number: int) -> None:
        if number not in self._ahead and number not in self._ready:
            self._ahead = {number: _Ahead(lambda: self._make(number))}

    def _steps(self) -> int:
        at = self._at
        if at.drop_last:
            return (at.length - at.length % at.ranks) // at.per_step
        padded = at.length + -at.length % at.ranks
        return -(-padded // at.per_step)

    def _move(self, epoch: int, done: int) -> None:
        self._at = replace(self._at, epoch=int(epoch))
        self._begin = self._given = self._weighed = done

    # --- without daemons ------------------------------------------------------------------------

    def keep(self, dataset: Any) -> KeptDataset:
        """The dataset, whose samples stay in the memory of the node that holds them: give it to the
        loader in the dataset's place. A held sample stays as it was first read: put random
        augmentations around this dataset, and not into the one that is kept. Raises ConfigError for
        a sampler without a quota, because daemons keep the files then."""
        if self._sizes is None:
            raise ConfigError("quota: daemons keep the files; use the dataset as it is")
        owner = self.holders if self.holders.ndim == 1 else self.holders[:, 0]
        own = np.flatnonzero(owner == self.ranks.node)
        room = int(self._sizes[own].sum()) + PICKLED_BYTES * len(own)
        return KeptDataset(dataset, own, max(room, 1))

    # --- unequal batches ------------------------------------------------------------------------

    def weight(self, batch_len: int, step: int | None = None, *, summed: bool = False) -> float:
        """By what a rank multiplies its mean loss, so that DDP's mean over the ranks is the mean
        over the global batch. Equal batches weigh 1.

        batch_len : the length of the batch;  step : of the epoch; None if `weight` is called once
            for each batch, in order;  summed : whether the loss is a sum over the batch
        """
        epoch = self.epoch(self._at.epoch)
        if epoch.is_equal and not summed:
            return 1.0
        step = self._step_of(epoch, batch_len) if step is None else step
        size, ranks = int(epoch.sizes[step]), self.ranks.world_size
        if max(size, 0 if self._may_be_empty else 1) != batch_len:
            raise ConfigError(
                f"batch_len: {batch_len}, but the batch of step {step} has {size}; give each"
                " batch's own length and step"
            )
        if summed:
            return ranks / int(epoch.totals[step]) if size else 0.0
        return size * ranks / int(epoch.totals[step])

    def _step_of(self, epoch: RankEpoch, batch_len: int) -> int:
        """The next step whose batch has this length. Batches that nobody weighed are left out."""
        lengths = np.diff(epoch.starts[self._weighed :])
        found = np.flatnonzero(lengths == batch_len)
        if not len(found):
            raise ConfigError(
                f"batch_len: no batch of {batch_len} samples is left in this epoch; call weight"
                " once for each batch, or give its step"
            )
        step = self._weighed + int(found[0])
        self._weighed = step + 1
        return step

    # --- state ----------------------------------------------------------------------------------

    def state_dict(self, done: int | None = None) -> dict[str, Any]:
        """What a checkpoint stores, less than 1 KB.

        done : how many batches of the running epoch were delivered, from its very beginning. None
            counts those that the iterator has handed out. A DataLoader with workers asks for
            batches ahead: give `done` there, unless the loader keeps account (StatefulDataLoader)
        """
        given = max(self._given, self._begin) if done is None else done
        if not 0 <= given <= self._steps():
            raise ConfigError(
                f"done: {given} is none of {self._steps()} batches; count the epoch's"
            )
        return {**self._at.to_dict(), "done": int(given)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where `state_dict` was called: the next iteration begins with the batch after
        the last one that was delivered. The state decides on seed, shuffle, drop_last and the size
        of the global batches. The first batch that is taken uses the place up, even if it is only
        looked at."""
        self._take(State.from_dict(state, self._at.length))

    def _take(self, state: State) -> None:
        if state.epochs and type(self)._number is ScheduledSampler._number:
            raise ConfigError(
                "state: it is of a SolarSampler with epoch_order; load it with a SolarSampler"
            )
        for name in ("seed", "shuffle", "drop_last"):
            if getattr(state, name) != getattr(self._at, name):
                log.warning(
                    "the state has %s=%r, and the sampler was made with %r: the state's counts",
                    name,
                    getattr(state, name),
                    getattr(self._at, name),
                )
        self._at = state
        self.drop_last = state.drop_last
        self.batch_size = -(-state.per_step // self.ranks.world_size)  # of the larger ones
        self._ready, self._ahead = {}, {}
        self._goes_on = True
        self._begin = self._given = self._weighed = self._at.done

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_ready": {}, "_ahead": {}}
