"""The process that reads groups of samples into shared memory while the training uses other groups.

The memory has no name, and the process ends when the training ends, even if the training is killed.
So neither of the two outlives the training.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from monarch_py.arrays import Ints
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.loaders.memory.ring import Bytes, Ring
from monarch_py.util.processes import PROC, Identity

# While the training waits for a group, it checks at this interval [s] that the reading process
# still runs. At the same interval, the reading process checks that the training still runs.
LOOK_S = 0.25
# If this many consecutive checks find the reading process stopped (SIGSTOP), the training raises an
# error. Checks are counted instead of seconds: while a user has stopped the complete job, time
# passes, but the training makes no checks.
STOPPED_LOOKS = 10
# How long [s] the training waits for the reading process to end, which may have to finish a read
# first. After this time, the training kills the reading process.
END_S = 1.0


@dataclass(frozen=True)
class Task:
    """A request to the reading process to read samples into a slot.

    some : the samples' numbers in rising order; None for the samples `low` to `high` - 1
    """

    number: int
    slot: int
    low: int
    high: int
    some: Ints | None

    @property
    def samples(self) -> Ints:
        return np.arange(self.low, self.high) if self.some is None else self.some


@dataclass(frozen=True)
class Answer:
    """The outcome of a task.

    seconds : how long the reads took [s];  error : what the reads raised; None if they succeeded
    """

    task: int
    seconds: float
    error: Exception | None


class GroupReader:
    """Reads samples into two slots, in the order of the calls of `ask`.

    dataset : has `read_into`;  slot_bytes : the size of the largest group [bytes]
    method : multiprocessing's start method for the process; None for the default
    """

    SLOTS = 2

    def __init__(self, dataset: Any, slot_bytes: int, method: str | None = None) -> None:
        self._ring = Ring(self.SLOTS, max(1, slot_bytes))
        context: Any = multiprocessing.get_context(method)
        self._link, theirs = context.Pipe()
        # A forked reading process inherits `_link` and must close its copy. Otherwise it would keep
        # the pipe open itself, and would not notice when this process closes `_link`.
        inherited = [self._link] if context.get_start_method() == "fork" else []
        self._process = context.Process(
            target=_serve,
            args=(dataset, self._ring, theirs, inherited, Identity.of(os.getpid())),
            name="monarch-groups",
            daemon=True,
        )
        try:
            self._process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise ConfigError(
                f"dataset: it cannot be sent to another process ({error}); define it at the top of"
                ' a module, or give start_method="fork"'
            ) from error
        finally:
            theirs.close()
        self._tasks = 0
        # The callback must not refer to this object. Otherwise the object is never
        # garbage-collected, and the reading process runs until the interpreter ends.
        self._end = weakref.finalize(self, _end, self._process, self._link, os.getpid())

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def slot(self, number: int) -> Bytes:
        """Returns the memory of a slot, (slot_bytes,) uint8."""
        return self._ring.slot(number)

    def ask(self, slot: int, samples: Ints) -> int:
        """Asks the reading process to read samples back to back into a slot. Returns the task's
        number.

        samples : the numbers of the samples, in rising order
        """
        self._tasks += 1
        low, high = int(samples[0]), int(samples[-1]) + 1
        # If the samples' numbers are consecutive, only the two bounds are sent. The list of all
        # numbers of a large group would fill the pipe. This process would then block until the
        # reading process receives the list.
        some = None if high - low == len(samples) else samples
        try:
            self._link.send(Task(self._tasks, slot, low, high, some))
        except OSError:
            raise self._gone() from None
        return self._tasks

    def take(self, task: int) -> float:
        """Waits until a task is done, and returns how long its reads took [s]. Drops the answers to
        earlier tasks. If the reads failed, raises their error. Raises MonarchError if the reading
        process has ended or was stopped."""
        stopped = 0
        while True:
            ready = wait([self._link, self._process.sentinel], LOOK_S)
            if self._link in ready:
                answer = self._hear()
                if answer.task == task:
                    if answer.error is not None:
                        raise answer.error
                    return answer.seconds
            elif ready:
                raise self._gone()
            stopped = stopped + 1 if not ready and _is_stopped(self.pid) else 0
            if stopped >= STOPPED_LOOKS:
                raise MonarchError(
                    f"groups: the process that reads groups ({self.pid}) was stopped by a signal;"
                    " begin the epoch again to start a new process"
                )

    def _hear(self) -> Answer:
        try:
            answer = self._link.recv()
        except (OSError, EOFError):
            raise self._gone() from None
        assert isinstance(answer, Answer)
        return answer

    def _gone(self) -> MonarchError:
        self._process.join(END_S)
        status = self._process.exitcode
        how = "closed its pipe" if status is None else f"ended with status {status}"
        if status is not None and status < 0:
            how = f"was killed by signal {-status}"
        return MonarchError(
            f"groups: the process that reads groups {how}; begin the epoch again to start a new"
            " process"
        )

    def close(self) -> None:
        """Ends the process. The slots stay readable as long as something refers to them."""
        self._end()


def _end(process: Any, link: Connection, owner: int) -> None:
    if os.getpid() != owner:  # in a forked child of the training, do nothing
        return
    # Send None to end the process. Closing `link` is not enough, because other forked processes may
    # have copies of `link`, which keep the pipe open.
    with suppress(OSError):
        link.send(None)
    link.close()
    if not _is_stopped(process.pid):
        process.join(END_S)
    if process.exitcode is None:
        process.kill()
        # Do not wait longer than END_S: a process whose read hangs survives even SIGKILL.
        process.join(END_S)


def _is_stopped(pid: int) -> bool:
    with suppress(OSError):
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()[0] in "Tt"
    return False


# --- code that runs in the reading process -------------------------------------------------------


def _serve(
    dataset: Any, ring: Ring, link: Connection, inherited: Sequence[Connection], parent: Identity
) -> None:
    """Runs the reading process: performs tasks until the training sends None or the pipe is
    closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C, the training ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked process inherits the parent's handler
    for other in inherited:
        other.close()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with suppress(OSError, EOFError):  # raised when the training ends or closes the pipe
        while (task := link.recv()) is not None:
            link.send(_do(dataset, ring, task))


def _end_with(parent: Identity) -> None:
    """Ends this process when its parent has ended, even in the middle of a read."""
    while not parent.has_ended:
        time.sleep(LOOK_S)
    os._exit(1)


def _do(dataset: Any, ring: Ring, task: Task) -> Answer:
    began = time.perf_counter()
    error: Exception | None = None
    try:
        dataset.read_into(task.samples, ring.slot(task.slot))
    except Exception as raised:
        error = raised if _travels(raised) else MonarchError(f"groups: {raised!r}")
    return Answer(task.number, time.perf_counter() - began, error)


def _travels(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  our own
    except Exception:
        return False
    return True
