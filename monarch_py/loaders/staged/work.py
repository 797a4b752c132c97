"""The worker process: reads batches into slots of the ring, and reports where their arrays lie."""

import os
import pickle
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from monarch_py.arrays import Ints
from monarch_py.loaders.memory.ring import Ring
from monarch_py.loaders.staged.placing import check_room, collate, emptied, place
from monarch_py.util.processes import Identity

# An idle worker checks at this interval [s] that the training still runs. Usually the pipe is
# closed when the training ends, and the worker notices this at once. But other children of the
# training may keep the pipe open.
ORPHAN_S = 1.0


@dataclass(frozen=True)
class Work:
    """What a worker needs to read batches. If workers are not forked, all fields must be picklable.

    sizes : the samples' sizes [bytes] if `dataset.read_into` reads batches straight into slots (in
        place); else None
    collate_fn : makes a batch of samples; None for placing.collate
    """

    dataset: Any
    sizes: Ints | None
    collate_fn: Callable[[Any], Any] | None

    def read(self, indices: Sequence[Any], slot: Any) -> tuple[Any, int]:
        """Reads a batch into a slot. Returns the batch's tree (None if the batch was read in place)
        and how many bytes of the slot the batch uses."""
        if self.sizes is not None:
            n_bytes = int(self.sizes[np.asarray(indices, dtype=np.int64)].sum())
            check_room(n_bytes, slot)
            self.dataset.read_into(indices, slot[:n_bytes])
            return None, n_bytes
        if hasattr(self.dataset, "__getitems__"):
            samples = self.dataset.__getitems__(list(indices))
        else:
            samples = [self.dataset[index] for index in indices]
        if self.collate_fn is not None:
            return place(self.collate_fn(samples), slot, by_default=False)
        batch = collate(samples) if samples else emptied(collate([self.dataset[0]]))
        return place(batch, slot, by_default=True)


class Times(NamedTuple):
    """A worker's time for one batch [s].

    computing : how long the worker ran on a processor, or was ready and waited for one
    waiting : all other time
    """

    waiting: float
    computing: float


class Clock:
    """Measures how long this process computes and how long it waits.

    The time for which the calling thread waits for a processor counts as computing.
    """

    def __init__(self) -> None:
        try:
            # The second number in this file is the time [ns] that the thread has waited for a
            # processor.
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = -1
        self.start()

    def start(self) -> None:
        self._began = time.perf_counter()
        self._computed = self._computing()

    def stop(self) -> Times:
        wall = time.perf_counter() - self._began
        computing = min(wall, self._computing() - self._computed)
        return Times(wall - computing, computing)

    def close(self) -> None:
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1

    def _computing(self) -> float:
        delayed = 0
        if self._schedstat >= 0:
            delayed = int(os.pread(self._schedstat, 100, 0).split()[1])
        return time.process_time() + delayed / 1e9


@dataclass(frozen=True)
class Failure:
    """An exception that was raised while a batch was read, in a form that a worker can send.

    text : the worker's traceback; "" if the training's own process has read the batch
    """

    error: BaseException | None
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        text = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301  our own
        except Exception:
            return cls(None, text)
        return cls(error, text)

    def raise_in_training(self, where: str) -> None:
        """Raises the exception. If a worker raised it, its cause shows the worker's traceback. A
        StopIteration would end the epoch, so it becomes a RuntimeError, as in a generator."""
        error = self.error or RuntimeError(self.text.strip().splitlines()[-1])
        if isinstance(error, StopIteration):
            error = RuntimeError("the dataset has raised StopIteration")
        if not self.text:
            raise error
        raise error from WorkerTraceback(f"\n{where}:\n{self.text}")


class WorkerTraceback(Exception):  # noqa: N818  only a cause: it shows the worker's traceback
    """The traceback of a worker process, as text."""


class Done(NamedTuple):
    """A worker's answer to a task.

    task : the task's number;  tree : the batch's tree, or a Failure
    """

    task: int
    tree: Any
    n_bytes: int
    times: Times


@dataclass(frozen=True)
class Start:
    """The data that a worker receives when it starts.

    parent : the training's process;  number, seed : this worker's number and seed
    init : called with the worker's number before the first task
    """

    work: Work
    ring: Ring
    parent: Identity
    number: int
    seed: int
    init: Callable[[int], Any] | None


def run(start: Start, link: Connection, inherited: Sequence[Connection]) -> None:
    """Runs a worker: performs tasks until the training sends None or the pipe is closed. A task
    consists of three values: its number, the slot to fill, and what Ring.write_numbers returned.
    From the third value, Ring.read_numbers gets the samples' numbers.

    inherited : the training's ends of the workers' pipes, which a forked worker inherits and must
        close
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C, the training ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    seed_generators(start.seed)
    problem: BaseException | None = None
    try:
        if start.init is not None:
            start.init(start.number)
    except Exception as error:
        problem = error
    clock, poll = Clock(), select.poll()
    poll.register(link, select.POLLIN)
    while (task := _next_task(link, poll, start.parent)) is not None:
        done = _do(start, task, clock, problem)
        try:
            link.send_bytes(_dumps(done))
        except OSError:
            return


def _dumps(done: Done) -> bytes:
    """Returns the answer, pickled. If the batch contains an object that cannot be pickled, returns
    a pickled answer whose tree is a Failure."""
    try:
        return pickle.dumps(done, 5)
    except Exception as error:
        return pickle.dumps(done._replace(tree=Failure.of(error)), 5)


def _next_task(link: Connection, poll: select.poll, parent: Identity) -> Any:
    """Waits for a task and returns it; None if the training has ended or has no more tasks."""
    with suppress(OSError, EOFError):
        while not poll.poll(ORPHAN_S * 1000):
            if parent.has_ended:
                return None
        return pickle.loads(link.recv_bytes())  # noqa: S301  from the training
    return None


def _do(start: Start, task: Any, clock: Clock, problem: BaseException | None) -> Done:
    number, slot, written = task
    clock.start()
    try:
        if problem is not None:
            raise problem
        indices = start.ring.read_numbers(slot, written)
        tree, n_bytes = start.work.read(indices, start.ring.slot(slot))
    except Exception as error:
        tree, n_bytes = Failure.of(error), 0
    return Done(number, tree, n_bytes, clock.stop())


def seed_generators(seed: int) -> None:
    """Seeds this process's random generators, and limits torch to one thread. Without seeds of
    their own, forked workers would all draw the same random numbers."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
