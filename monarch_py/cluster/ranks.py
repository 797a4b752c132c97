"""The MPI ranks that together bring up the daemons, and the ranks' collective calls."""

import socket
import time
from collections import Counter
from typing import Any, TypeVar

from monarch_py.cluster.join_timeout import bounded_join
from monarch_py.errors import SessionError
from monarch_py.util.launcher import Launch

T = TypeVar("T")

# The shortest and the longest pause [s] between two polls in `meet`. A blocking MPI call would keep
# a processor busy, perhaps for minutes while rank 0 scans. So each rank makes a blocking call only
# after all ranks have called `meet`.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0002, 0.02
HINT = "start each node's daemon separately with --alone"


class Ranks:
    """All ranks that the launcher has started. Every rank must make the same calls in the same
    order.

    The constructor returns when all ranks have called it. It raises SessionError if mpi4py cannot
    be loaded, or if MPI does not see all ranks that the launcher has started.

    names : the nodes' names, for messages, in the order of the ranks
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
                f"{launch.size} processes were started, but MPI sees {self.size}: start them with"
                f" the mpiexec of the MPI that mpi4py uses, or srun --mpi=pmi2 or pmix; or {HINT}"
            )

    def meet(self) -> None:
        """Waits until all ranks have called `meet`."""
        request, pause = self._comm.Ibarrier(), FIRST_PAUSE_S
        while not request.Test():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def gather(self, value: T) -> list[T]:
        """Returns, on every rank, the values of all ranks in the order of the ranks."""
        self.meet()
        values: list[T] = self._comm.allgather(value)
        return values

    def broadcast(self, value: T) -> T:
        """Returns rank 0's value on every rank."""
        self.meet()
        told: T = self._comm.bcast(value)
        return told

    def leave(self) -> None:
        """Ends MPI in this process."""
        self._mpi.Finalize()

    def abort(self) -> None:
        """Kills all ranks at once, including this one. Call it if this rank fails, because the
        other ranks would otherwise wait for this rank."""
        self._comm.Abort(1)


def _names(hosts: list[str]) -> list[str]:
    """Returns a name for each rank: the name of the rank's host. If several ranks are on one host,
    the rank's number follows the host's name."""
    ranks_on = Counter(hosts)
    return [host if ranks_on[host] == 1 else f"{host}#{i}" for i, host in enumerate(hosts)]


def _load(launch: Launch) -> Any:
    try:
        import mpi4py

        # By default, the import of mpi4py would call MPI_Init. `Ranks` calls MPI_Init and
        # MPI_Finalize itself. So MPI starts only where it is needed, and ends before the process
        # ends.
        mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        why = (str(error).splitlines() or [""])[0]
        raise SessionError(
            f"{launch.size} processes were started together, which needs mpi4py ({why}); install"
            f" it with: pip install mpi4py mpich; or {HINT}"
        ) from error
    return MPI
