"""Reads batches ahead into a ring, and hands them to the training in the sampler's order."""

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from monarch_py.loaders.memory.ring import Ring
from monarch_py.loaders.staged.crew import Crew
from monarch_py.loaders.staged.work import Clock, Done, Failure, Times, Work

# While all slots are in use, the training checks at this interval [s] whether the copy of a batch
# to a GPU has ended. Then the slot of this batch is free.
BUSY_S = 0.0005


@dataclass
class Counts:
    """How much a loader has delivered since it was made, and how long that took.

    stalls : the number of batches that the training waited for
    wait_seconds : how long the training waited for batches
    waiting_seconds, computing_seconds : how long workers waited for data, and how long they
        computed
    """

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    stalls: int = 0
    wait_seconds: float = 0.0
    waiting_seconds: float = 0.0
    computing_seconds: float = 0.0

    def add(self, batch: "Batch") -> None:
        self.batches += 1
        self.samples += len(batch.indices)
        self.bytes += batch.n_bytes
        self.waiting_seconds += batch.times.waiting
        self.computing_seconds += batch.times.computing


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch in its slot.

    indices : the numbers (or other keys) of the batch's samples
    tree : the batch, with a Placed in place of each array (see placing.place); None if the batch
        was read in place; a Failure if the read has failed
    """

    slot: int
    indices: Sequence[Any]
    tree: Any
    n_bytes: int
    times: Times


@dataclass
class BatchesAhead:
    """The batches of the current epoch that were not delivered yet.

    batches : the batches that have not been requested from workers yet
    has_more : whether `batches` may yield another batch
    order : the numbers of the tasks whose batches were not delivered yet, in the order of delivery.
        A task that is not in `order` belongs to an epoch that the training has left early. When a
        worker answers such a task, the answer is dropped, and the task's slot becomes free
    """

    batches: Iterator[Sequence[Any]] = field(default_factory=lambda: iter(()))
    order: list[int] = field(default_factory=list)
    has_more: bool = False


class Stage:
    """Reads batches ahead and hands them out one by one. The training has at most one batch at a
    time: when it asks for the next batch, the slot of the previous batch becomes free.

    workers : the number of processes; 0 to read in the training's own process
    prefetch : the number of batches to read ahead, per worker
    may_reuse : a function that returns whether a slot may be overwritten now. It is called only for
        slots that the training has given back
    """

    def __init__(
        self,
        work: Work,
        slot_bytes: int,
        *,
        workers: int,
        prefetch: int,
        most_workers: int,
        method: str | None,
        init: Callable[[int], Any] | None,
    ) -> None:
        self._work, self._prefetch, self._method, self._init = work, prefetch, method, init
        self.workers = workers
        self.ring = Ring(max(1, most_workers) * prefetch + 1, slot_bytes)
        self.counts = Counts()
        self.may_reuse: Callable[[int], bool] = lambda slot: True
        self._crew: Crew | None = None
        self._next_task = 0
        self._reset()

    def _reset(self) -> None:
        self._ahead = BatchesAhead()
        self._asked: dict[int, tuple[int, Sequence[Any]]] = {}  # task -> slot, indices
        self._answers: dict[int, Done] = {}
        self._free = list(range(self.ring.slots))
        self._held: int | None = None

    def begin(self, batches: Iterator[Sequence[Any]]) -> None:
        """Begins an epoch. Batches that were read ahead for an earlier epoch are dropped."""
        self._give_back()
        self._ahead = BatchesAhead(batches, has_more=True)
        self._answers = {task: done for task, done in self._answers.items() if self._drop(task)}
        if self.workers:
            if self._crew is None:
                seed = _base_seed()
                self._crew = Crew(self._work, self.ring, self._method, seed, self._init)
            self._guarded(lambda crew: crew.resize(self.workers))
            self._ask()

    def next(self) -> Batch:
        """Returns the next batch. If reading the batch has failed, the batch's tree is a Failure.
        Raises StopIteration at the end of the epoch. If a worker was lost, raises MonarchError, and
        the epoch ends."""
        self._give_back()
        if not self.workers:
            return self._read_here()
        if self._crew is None:
            raise StopIteration
        self._ask()
        done = self._wait()
        self._held, indices = self._asked.pop(done.task)
        return self._counted(Batch(self._held, indices, *done[1:]))

    def close(self) -> None:
        """Ends the workers. A later `begin` starts new ones."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None
        self._reset()

    # --- asking and waiting ---------------------------------------------------------------------

    def _read_here(self) -> Batch:
        indices = next(self._ahead.batches)
        while (slot := self._free_slot()) is None:
            time.sleep(BUSY_S)
        self._held = slot
        clock = Clock()
        try:
            tree, n_bytes = self._work.read(indices, self.ring.slot(slot))
        except Exception as error:
            tree, n_bytes = Failure(error, ""), 0
        finally:
            times = clock.stop()
            clock.close()
        self._waited(sum(times))
        return self._counted(Batch(slot, indices, tree, n_bytes, times))

    def _counted(self, batch: Batch) -> Batch:
        if not isinstance(batch.tree, Failure):
            self.counts.add(batch)
        return batch

    def _free_slot(self) -> int | None:
        slot = next((slot for slot in reversed(self._free) if self.may_reuse(slot)), None)
        if slot is not None:
            self._free.remove(slot)
        return slot

    def _ask(self) -> None:
        """Asks workers for more batches, up to the limit that `prefetch` sets, while slots are
        free."""
        most = self.workers * self._prefetch
        while self._ahead.has_more and len(self._ahead.order) < most:
            slot = self._free_slot()
            if slot is None:
                return
            try:
                indices = next(self._ahead.batches, None)
            except BaseException:
                self._free.append(slot)
                raise
            if indices is None:
                self._free.append(slot)
                self._ahead.has_more = False
                return
            self._give(slot, indices)

    def _give(self, slot: int, indices: Sequence[Any]) -> None:
        task, self._next_task = self._next_task, self._next_task + 1
        self._asked[task] = slot, indices
        self._ahead.order.append(task)
        written = self.ring.write_numbers(slot, indices)
        self._guarded(lambda crew: crew.give((task, slot, written)))

    def _wait(self) -> Done:
        began, is_stall = time.perf_counter(), False
        self._hear(wait=False)
        while not self._ahead.order and self._ahead.has_more:  # no slot was free
            # Either workers still fill slots for an earlier epoch, which the training has left
            # early, or copies from slots to a GPU have not ended yet.
            self._hear(wait=bool(self._asked))
            if not self._asked:
                time.sleep(BUSY_S)
            self._ask()
        if not self._ahead.order:
            raise StopIteration
        task = self._ahead.order[0]
        while task not in self._answers:
            is_stall = True
            self._hear(wait=True)
        del self._ahead.order[0]
        if is_stall:
            self._waited(time.perf_counter() - began)
        return self._answers.pop(task)

    def _hear(self, *, wait: bool) -> None:
        for done in self._guarded(lambda crew: crew.hear(wait=wait)):
            self._answers[done.task] = done
            if done.task not in self._ahead.order:
                self._drop(done.task)
                del self._answers[done.task]

    def _drop(self, task: int) -> bool:
        """Frees the slot of a task of an earlier epoch, after the task was answered. Always returns
        False: in `begin`, this makes a dict comprehension omit the task's answer."""
        self._free.append(self._asked.pop(task)[0])
        return False

    def _guarded(self, act: Callable[[Crew], Any]) -> Any:
        """Returns `act(crew)`. Ends all workers if `act` raises an exception or is interrupted."""
        assert self._crew is not None
        try:
            return act(self._crew)
        except BaseException:
            self.close()
            raise

    def _waited(self, seconds: float) -> None:
        self.counts.stalls += 1
        self.counts.wait_seconds += seconds

    def _give_back(self) -> None:
        if self._held is not None:
            self._free.append(self._held)
            self._held = None


def _base_seed() -> int:
    """Returns a seed for the workers' random generators. If the training has imported torch, the
    seed is drawn from torch's generator, as DataLoader's seed is; otherwise from Python's."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.empty((), dtype=torch.int64).random_().item())
    return random.getrandbits(63)
