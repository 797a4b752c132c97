"""Starts and ends the worker processes of a loader, sends them tasks and receives their answers."""

import multiprocessing
import os
import pickle
import select
import signal
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from monarch_py.errors import ConfigError, MonarchError
from monarch_py.loaders.memory.ring import Ring
from monarch_py.loaders.staged.work import Done, Start, Work, run
from monarch_py.util.processes import PROC, Identity

# While the training waits for a batch, it checks at this interval [s] that its workers still run.
LOOK_S = 0.5
# If a worker remains stopped (by SIGSTOP) for longer than this time [s], an error is raised.
# Shorter stops are allowed: if a user stops or continues a whole job, the signal does not reach all
# processes at the same moment.
STOPPED_S = 3.0
# How long [s] workers may take to end before they are killed. A worker may first have to finish a
# read.
END_S = 1.0

# The task that ends a worker.
NO_MORE = pickle.dumps(None)


class Worker:
    """A worker process, and the training's end of the pipe to this process."""

    def __init__(self, process: Any, link: Connection) -> None:
        self.process = process
        self.link = link
        self.tasks = 0  # tasks that the worker has not answered yet

    @property
    def name(self) -> str:
        return f"worker {self.process.name} (process {self.process.pid})"


class Crew:
    """Worker processes that read batches into the slots of one shared ring.

    method : multiprocessing's start method for the workers; None for the default
    seed : the seed of the random generators in worker 0; worker n has the seed `seed` + n
    init : a function that each worker calls at its start, with its number
    """

    def __init__(
        self, work: Work, ring: Ring, method: str | None, seed: int, init: Callable[..., Any] | None
    ) -> None:
        self._work, self._ring = work, ring
        self._context: Any = multiprocessing.get_context(method)
        self._seed, self._init = seed, init
        self._started = 0
        self._poll = select.poll()
        self._workers: dict[int, Worker] = {}  # descriptor of the pipe -> worker at its other end
        self._stopped_since: dict[int, float] = {}  # process id -> when it was first seen stopped
        # The callback must not refer to this object. Otherwise the object would never be
        # garbage-collected, and the workers would run until the interpreter ends.
        self._end = weakref.finalize(self, _end_all, self._workers, os.getpid())

    @property
    def size(self) -> int:
        return len(self._workers)

    def resize(self, count: int) -> None:
        """Starts or ends workers until `count` workers run. Surplus workers must be idle."""
        while self.size < count:
            self._start()
        surplus = list(self._workers.items())[count:]
        for descriptor, _ in surplus:
            self._poll.unregister(descriptor)
        _end_workers([self._workers.pop(descriptor) for descriptor, _ in surplus])

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        is_fork = self._context.get_start_method() == "fork"
        inherited = [worker.link for worker in self._workers.values()] + [ours] if is_fork else []
        parent, number = Identity.of(os.getpid()), self._started
        start = Start(self._work, self._ring, parent, number, self._seed + number, self._init)
        process = self._context.Process(
            target=run,
            args=(start, theirs, inherited),
            name=f"{number}",
            daemon=True,
        )
        try:
            process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise ConfigError(
                f"dataset: it cannot be sent to worker processes ({error}); define it at the top"
                ' of a module, or give multiprocessing_context="fork"'
            ) from error
        finally:
            theirs.close()
        self._started += 1
        self._workers[ours.fileno()] = Worker(process, ours)
        self._poll.register(ours, select.POLLIN)

    def give(self, task: tuple[int, int, Any]) -> None:
        """Sends a task to the worker that has the fewest unanswered tasks."""
        worker = min(self._workers.values(), key=lambda worker: worker.tasks)
        try:
            worker.link.send_bytes(pickle.dumps(task, 5))
        except OSError:
            raise self._gone(worker) from None
        worker.tasks += 1

    def hear(self, *, wait: bool) -> list[Done]:
        """Returns the answers that have arrived since the last call. Raises MonarchError if a
        worker has ended, or has been stopped for STOPPED_S.

        wait : whether to wait until there is an answer
        """
        while True:
            ready = self._poll.poll(LOOK_S * 1000 if wait else 0)
            answers = [self._answer(self._workers[descriptor]) for descriptor, _ in ready]
            if answers:
                self._stopped_since.clear()
            if answers or not wait:
                return answers
            self._look_for_stopped()

    def _answer(self, worker: Worker) -> Done:
        try:
            done = pickle.loads(worker.link.recv_bytes())  # noqa: S301  from our own worker
        except (OSError, EOFError):
            raise self._gone(worker) from None
        worker.tasks -= 1
        assert isinstance(done, Done)
        return done

    def _gone(self, worker: Worker) -> MonarchError:
        worker.process.join(END_S)
        status = worker.process.exitcode
        if status is None:
            how = "has closed its pipe"
        elif status < 0:
            how = f"was killed by {_signal_name(-status)}"
        else:
            how = f"has ended with status {status}"
        return MonarchError(f"loader: {worker.name} {how}; begin the epoch again for new workers")

    def _look_for_stopped(self) -> None:
        now = time.monotonic()
        for worker in self._workers.values():
            pid = worker.process.pid
            # A child of the worker may have inherited the pipe and keep it open after the worker's
            # end. So the exit status is checked too.
            if worker.process.exitcode is not None:
                raise self._gone(worker)
            if not _is_stopped(pid):
                self._stopped_since.pop(pid, None)
            elif now - self._stopped_since.setdefault(pid, now) > STOPPED_S:
                raise MonarchError(
                    f"loader: {worker.name} has been stopped by a signal; continue it (kill -CONT"
                    f" {pid}) and begin the epoch again"
                )

    def close(self) -> None:
        """Ends all workers."""
        self._end()


def _end_all(workers: dict[int, Worker], owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the finalizer, but not the workers
        _end_workers(list(workers.values()))
    workers.clear()


def _end_workers(workers: Sequence[Worker]) -> None:
    """Tells workers that there are no more tasks, and kills those that do not end within END_S."""
    for worker in workers:
        # Closing the pipe is not enough, because forked processes may have copies of the
        # descriptor, which keep the pipe open.
        with suppress(OSError):
            if _takes_more(worker.link):
                worker.link.send_bytes(NO_MORE)
        worker.link.close()
    limit = time.monotonic() + END_S
    for worker in workers:
        if not _is_stopped(worker.process.pid):
            worker.process.join(max(0.0, limit - time.monotonic()))
        if worker.process.exitcode is None:
            worker.process.kill()
            # Do not wait longer than END_S: a worker whose read hangs survives even SIGKILL.
            worker.process.join(END_S)
        if worker.process.exitcode is not None:
            worker.process.close()


def _takes_more(link: Connection) -> bool:
    """Whether the pipe has room for a message. The pipe of a worker that hangs may be full."""
    poll = select.poll()
    poll.register(link, select.POLLOUT)
    return bool(poll.poll(0))


def _is_stopped(pid: int) -> bool:
    with suppress(OSError):
        state = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return state == "T"
    return False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
