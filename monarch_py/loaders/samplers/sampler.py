"""Batch samplers that follow a schedule. A thread computes an epoch's schedule while the previous
epoch runs.

Every rank computes the schedule itself, in a thread of its process. That takes a second or two for
19 million samples, and next to nothing for one million. To share one schedule, the ranks of a node
would need shared memory, and would have to wait for each other.
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

from monarch_py.arrays import Int32s, Ints
from monarch_py.errors import ConfigError
from monarch_py.loaders.samplers.agreement import Agreement, process_group
from monarch_py.loaders.samplers.misuse import found_misuse, other_length
from monarch_py.loaders.samplers.ranks import Ranks
from monarch_py.loaders.samplers.state import State
from monarch_py.plan.samplers import DistributedSampler
from monarch_py.plan.schedule import EpochSchedule

log = logging.getLogger("monarch.loaders")


@dataclass(frozen=True, eq=False)
class RankEpoch:
    """The batches of one rank in an epoch.

    samples : int32, the samples of all batches, one batch after the other
    starts : (steps + 1,) int64, where each batch begins in `samples`
    sizes : (steps,) how many samples the schedule assigns to this rank in each step. If the number
        is 0 and batches must not be empty, the rank's batch is one sample of another rank, with the
        weight 0
    totals : (steps,) the sizes of the global batches
    is_equal : whether all ranks' batches have the same size in each step
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
    """Whether there is a process group whose rank and number of ranks are those in `ranks`."""
    group = process_group()
    return group is not None and (group.get_rank(), group.get_world_size()) == (
        ranks.rank,
        ranks.world_size,
    )


class _Ahead:
    """Computes a result in a thread, before the result is needed. A forked child does not have the
    thread, and computes the result itself."""

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
        # If the thread has failed, there is no result. The calling thread then repeats the
        # computation, which raises the same error.
        return self._make() if self._found is None else self._found


class ScheduledSampler(ABC):
    """A batch sampler that yields the batches of one rank, for DataLoader's argument
    `batch_sampler`.

    A global batch consists of the batches of all ranks in one step. With the same seed and
    `batch_size`, it has the same samples as with DistributedSampler, but other ranks may take them.
    With `drop_last`, the last samples are left out if they cannot be divided equally among the
    ranks. A last batch that is not full is left out too. Without `drop_last`, the epoch is padded
    with samples from its beginning, and the last batch may be smaller.

    The state in a checkpoint counts global batches. So a training run can continue with the same
    global batches on another number of ranks. If this number does not divide the size of a global
    batch, the sizes of the ranks' batches differ by one sample. `weight` corrects the loss for this
    difference.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        seed: int,
        ranks: Ranks,
        *,
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
            seed=int(seed),  # JSON does not accept NumPy's integers
            shuffle=bool(shuffle),
            drop_last=bool(drop_last),
        )
        self._agreement = Agreement() if _is_dealing(ranks) else None
        self._begin = 0  # the step at which the next iteration begins
        self._given = 0  # how many of the epoch's batches were yielded
        self._weighed = 0  # the step from which `weight` looks for the next batch
        self._ready: dict[int, RankEpoch] = {}  # the number of the running epoch -> its batches
        self._ahead: dict[int, _Ahead] = {}  # the number of the next epoch -> its batches
        # Whether `set_epoch` or a loaded state has set an epoch. If so, the schedule of the next
        # epoch is computed while an epoch runs.
        self._goes_on = False
        if self._steps() == 0:
            raise ConfigError(
                f"batch_size: {batch_size} leaves no full batch if {ranks.world_size} ranks share"
                f" {length} samples; use a smaller batch_size, or set drop_last=False"
            )

    # --- methods that a subclass overrides ------------------------------------------------------

    @abstractmethod
    def _dealt(self, order: Int32s) -> EpochSchedule:
        """Returns the schedule that assigns the samples of an epoch to the ranks. Each step has
        `_at.per_step` samples.

        order : the samples of the epoch, in their global order
        """

    _may_be_empty = False

    def _number(self, epoch: int) -> int:
        """Returns the epoch of DistributedSampler from which this sampler takes the order of
        samples for `epoch`. By default, this is `epoch` itself. With `epoch_order`, SolarSampler
        permutes the epochs."""
        return epoch

    # --- a batch sampler ------------------------------------------------------------------------

    @property
    def sampler(self) -> "ScheduledSampler":
        """This sampler itself: Lightning calls `set_epoch` on the `sampler` of a batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration. Call it before iterating over the DataLoader."""
        self._goes_on = True
        self._move(epoch, 0 if epoch != self._at.epoch else self._begin)

    def check_dataset(self, dataset: Any) -> None:
        """Raises ConfigError if the dataset and this sampler differ in their number of samples."""
        if (wrong := other_length(self._at.length, dataset)) is not None:
            raise wrong

    def __len__(self) -> int:
        if (misuse := found_misuse(sys._getframe(1), self._at.length)) is not None:
            raise misuse
        return self._steps()

    def __iter__(self) -> Iterator[list[int]]:
        misuse = found_misuse(sys._getframe(1), self._at.length)
        begin = self._given = self._weighed = self._begin
        return self._batches(self._at.epoch, begin, misuse)

    def _batches(self, number: int, begin: int, misuse: ConfigError | None) -> Iterator[list[int]]:
        # An error in __iter__ would leave a half-made DataLoader, which would print further errors.
        # So the error is raised when the first batch is asked for.
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
        """Returns the batches of this rank in an epoch."""
        if number not in self._ready:
            ahead = self._ahead.pop(number, None)
            made = self._make(number) if ahead is None else ahead.result()
            self._ready = {number: made}
        return self._ready[number]

    def schedule(self, number: int) -> EpochSchedule:
        """Returns the batches of all ranks in an epoch."""
        at = self._at
        order = DistributedSampler(at.length, at.ranks, at.seed, at.shuffle, at.drop_last)
        whole = order.epoch(self._number(number))
        return self._dealt(whole[: self._steps() * at.per_step])

    def _make(self, number: int) -> RankEpoch:
        return RankEpoch.of(self.schedule(number), self.ranks.rank, may_be_empty=self._may_be_empty)

    def _compare(self) -> None:
        """Raises ConfigError if this process's rank has changed. The first call also raises
        ConfigError if another rank computes its batches from other inputs."""
        self.ranks.check()
        agreement, self._agreement = self._agreement, None
        if agreement is not None:
            agreement.check(self._dealt_by())

    def _dealt_by(self) -> list[Any]:
        """Returns all inputs from which the ranks compute their batches."""
        # The number of the epoch is not one of the inputs, because the ranks may be in different
        # epochs: one rank may iterate once more than the others, to try out a batch.
        at = replace(self._at, epoch=0)
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

    # --- unequal batches ------------------------------------------------------------------------

    def weight(self, batch_len: int, step: int | None = None, *, summed: bool = False) -> float:
        """Returns the factor for a rank's loss. With this factor, DDP's mean over the ranks becomes
        the mean over the global batch. With batches of equal size, the factor is 1 for a mean loss.

        batch_len : the number of samples in the batch
        step : the batch's step in the epoch; None if `weight` is called once per batch, in order
        summed : whether the loss is the sum over the batch rather than the mean
        """
        epoch = self.epoch(self._at.epoch)
        if epoch.is_equal and not summed:
            return 1.0
        step = self._step_of(epoch, batch_len) if step is None else step
        size, ranks = int(epoch.sizes[step]), self.ranks.world_size
        if max(size, 0 if self._may_be_empty else 1) != batch_len:
            raise ConfigError(
                f"batch_len: {batch_len}, but the batch of step {step} has {size} samples; give"
                " each batch's own length and step"
            )
        if summed:
            return ranks / int(epoch.totals[step]) if size else 0.0
        return size * ranks / int(epoch.totals[step])

    def _step_of(self, epoch: RankEpoch, batch_len: int) -> int:
        """Returns the next step whose batch has this length. Skips batches of other lengths,
        because the training has evidently not called `weight` for them."""
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
        """Returns the training's position for a checkpoint: a dict of less than 1 KB.

        done : how many batches of the current epoch the training has used; None for all that the
            iterator has yielded. If a DataLoader has workers, give `done`, because the workers take
            batches from the iterator ahead of the training. StatefulDataLoader does not need
            `done`: it counts batches itself
        """
        given = max(self._given, self._begin) if done is None else done
        if not 0 <= given <= self._steps():
            raise ConfigError(
                f"done: {given} is out of range; an epoch has {self._steps()} batches"
            )
        return {**self._at.to_dict(), "done": int(given)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues after the last batch that `state` counts as delivered. The state's seed,
        shuffle, drop_last and global batch size replace the sampler's own values. Only the first
        iteration that yields a batch begins at this position. The next one begins at the epoch's
        first batch."""
        self._take(State.from_dict(state, self._at.length))

    def _take(self, state: State) -> None:
        if state.epochs and type(self)._number is ScheduledSampler._number:
            raise ConfigError(
                "state: it comes from a SolarSampler with epoch_order; load it into a SolarSampler"
            )
        for name in ("seed", "shuffle", "drop_last"):
            if getattr(state, name) != getattr(self._at, name):
                log.warning(
                    "the state has %s=%r, but the sampler was made with %r; the state's value is"
                    " used",
                    name,
                    getattr(state, name),
                    getattr(self._at, name),
                )
        self._at = state
        self.drop_last = state.drop_last
        self.batch_size = -(-state.per_step // self.ranks.world_size)  # size of the largest batch
        self._ready, self._ahead = {}, {}
        self._goes_on = True
        self._begin = self._given = self._weighed = self._at.done

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_ready": {}, "_ahead": {}}
