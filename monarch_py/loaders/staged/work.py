"""What a worker process does: it reads a batch into a slot of the ring, and says where it lies."""

import os
import pickle
import random
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

from monarch_py.loaders.memory.ring import Ring
from monarch_py.loaders.staged.placing import check_room, collate, emptied, place
from monarch_py.native import Ints
from monarch_py.util.processes import Identity

# How often an idle worker looks whether the training still runs [s]. Mostly it is told at once, by
# the end of its pipe; but other children of the training may hold that open.
ORPHAN_S = 1.0


@dataclass(frozen=True)
class Work:
    """How batches are read. It must be picklable, unless processes are forked.

    sizes : (samples,) [bytes] if `dataset.read_into` reads the batch, else None
    collate_fn : None for placing.collate
    """

    dataset: Any
    sizes: Ints | None
    collate_fn: Callable[[Any], Any] | None

    def read(self, indices: Sequence[Any], slot: Any) -> tuple[Any, int]:
        """Reads a batch into a slot. Returns its tree (None if the batch was read as it is) and
        the bytes taken."""
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
    """Of one batch [s]. computing : on a processor, or waiting for one."""

    waiting: float
    computing: float


class Clock:
    """Measures the waiting and the computing of this thread's process apart."""

    def __init__(self) -> None:
        try:
            # The second number: how long the thread has waited for a processor [ns].
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
    """What a batch's reading has raised, as it travels from a worker.

    text : the worker's traceback; "" if the training's own process has read
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
        """Raises the exception; a worker's with the worker's traceback as its cause. StopIteration
        becomes a RuntimeError, as in a generator: it would end the epoch."""
        error = self.error or RuntimeError(self.text.strip().splitlines()[-1])
        if isinstance(error, StopIteration):
            error = RuntimeError("the dataset has raised StopIteration")
        if not self.text:
            raise error
        raise error from WorkerTraceback(f"\n{where}:\n{self.text}")


class WorkerTraceback(Exception):  # noqa: N818  not raised: it shows another's traceback
    """The traceback of a worker process, as text."""


class Done(NamedTuple):
    """A worker's answer to a task. tree : of the batch, or a Failure"""

    task: int
    tree: Any
    n_bytes: int
    times: Times


@dataclass(frozen=True)
class Start:
    """What a worker is given at its start.

    parent : the training;  number, seed : the worker's own;  init : is called with the number
    """

    work: Work
    ring: Ring
    parent: Identity
    number: int
    seed: int
    init: Callable[[int], Any] | None


def run(start: Start, link: Connection, inherited: Sequence[Connection]) -> None:
    """The main function of a worker: does tasks (number, slot, what Ring.write_numbers has
    returned) until the pipe ends.

    inherited : ends of other workers' pipes that a fork has brought along
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training tells its workers when to end
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
    clock = Clock()
    while (task := _next_task(link, start.parent)) is not None:
        done = _do(start, task, clock, problem)
        try:
            link.send_bytes(_dumps(done))
        except OSError:
            return


def _dumps(done: Done) -> bytes:
    """The answer, pickled; that of the failure to pickle it, if the batch has such an object."""
    try:
        return pickle.dumps(done, 5)
    except Exception as error:
        return pickle.dumps(done._replace(tree=Failure.of(error)), 5)


def _next_task(link: Connection, parent: Identity) -> Any:
    """The next task; None once the training has ended, or has no more."""
    with suppress(OSError, EOFError):
        while not link.poll(ORPHAN_S):
            if parent.has_ended:
                return None
        return pickle.loads(link.recv_bytes())  # noqa: S301  the training's own
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
    """Gives this process's generators a seed of its own: forked workers would draw alike."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
