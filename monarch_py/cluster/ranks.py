"""The processes that bring up the daemons together, by MPI, until all of them are up."""

from __future__ import annotations

import socket
import time
from collections import Counter
from typing import Any, TypeVar

from monarch_py.cluster.join_timeout import bounded_join
from monarch_py.errors import SessionError
from monarch_py.util.launcher import Launch

__all__ = ["Ranks"]

T = TypeVar("T")

# A rank that waits in MPI burns a core, and rank 0 may scan for minutes: the others look now and
# then whether all have come, and only then begin what MPI blocks in [s].
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0002, 0.02
HINT = "start each node's daemon by itself with --alone"


class Ranks:
    """Joined by the constructor; every rank makes the same calls in the same order.

    names : of the nodes, for people, in the order of the ranks

    SessionError without mpi4py, or when it does not see the ranks that the launcher has started.
    """

    def __init__(self, launch: Launch) -> None:
        self._mpi = _load(launch)
        with bounded_join(launch):
            self._mpi.Init_thread(self._mpi.THREAD_FUNNELED)
        self._comm: Any = self._mpi.COMM_WORLD
        self.rank, self.size = int(self._comm.rank), int(self._comm.size)
        self.names = _names(self.gather(socket.gethostname()))
        if self.size != launch.size:
            self.leave()
            raise SessionError(
                f"{launch.size} processes were started, and MPI sees {self.size}: start them with"
                f" the mpiexec of the MPI that mpi4py uses, or srun --mpi=pmi2 or pmix; or {HINT}"
            )

    def meet(self) -> None:
        """Returns when all ranks are here."""
        request, pause = self._comm.Ibarrier(), FIRST_PAUSE_S
        while not request.Test():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in their order, on every rank."""
        self.meet()
        values: list[T] = self._comm.allgather(value)
        return values

    def broadcast(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        self.meet()
        told: T = self._comm.bcast(value)
        return told

    def leave(self) -> None:
        """The end of MPI in this process."""
        self._mpi.Finalize()

    def abort(self) -> None:
        """Ends all ranks at once, this one too: they would wait for one that cannot go on."""
        self._comm.Abort(1)


def _names(hosts: list[str]) -> list[str]:
    """Where several ranks are on one host, its name and the rank's number."""
    ranks_on = Counter(hosts)
    return [host if ranks_on[host] == 1 else f"{host}#{i}" for i, host in enumerate(hosts)]


def _load(launch: Launch) -> Any:
    try:
        import mpi4py

        # By hand: so that it ends before the process does, and only where it is needed.
        mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        why = (str(error).splitlines() or [""])[0]
        raise SessionError(
            f"{launch.size} processes were started together, which takes mpi4py ({why}); install"
            f" it with: pip install mpi4py mpich; or {HINT}"
        ) from error
    return MPI
