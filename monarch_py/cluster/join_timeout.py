"""A time limit for joining the other ranks: MPI_Init never returns if one rank does not call it."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from monarch_py.util.launcher import Launch

# Time limit for MPI_Init [s]. It is long enough for ranks that load Python's modules from a slow
# file system, and so call MPI_Init late.
JOIN_LIMIT_S = 120.0
# Each rank waits APART_S [s] longer than the rank with the next lower number. So one rank reaches
# its time limit first and prints a message. The launcher then ends the others before they print it
# too. From rank APART_RANKS on, all ranks wait equally long.
APART_S, APART_RANKS = 1.0, 10


@contextmanager
def bounded_join(launch: Launch) -> Iterator[None]:
    """Kills this process if the `with` block takes too long. The launcher then ends all other
    ranks.

    A child process watches the time. A thread or signal handler of Python could not, because
    MPI_Init holds Python's global lock. The child ends with the `with` block or with this process.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.close(writing)
        _watch(reading, launch)
    os.close(reading)
    try:
        yield
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def _watch(reading: int, launch: Launch) -> NoReturn:
    """Runs in the child process: kills the parent process at the time limit. Also ends when the
    parent ends, because the child would keep inherited pipes open."""
    try:
        limit_s = JOIN_LIMIT_S + APART_S * min(launch.rank, APART_RANKS)
        parent = os.getppid()
        if not select.select([reading], [], [], limit_s)[0] and os.getppid() == parent:
            words = (
                f"monarch: rank {launch.rank} has waited {limit_s:.0f} s for all {launch.size}"
                " ranks: a rank has not joined, and has probably ended; look for that rank's"
                " message, and check that every node has monarch and mpi4py\n"
            )
            os.write(2, words.encode())
            os.kill(parent, signal.SIGKILL)
    finally:
        os._exit(0)


def end_with_the_others() -> None:
    """Ends this process by a signal if MPICH's launcher has started it. If the process called
    exit() before MPI_Init, this launcher would not notice. The other ranks would then wait for this
    rank."""
    if "PMI_FD" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
