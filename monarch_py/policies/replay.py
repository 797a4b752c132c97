"""Helpers for policies that evict copies: the next use of each file, and a replay of epochs.

The content of a cache at the start of an epoch depends on all previous epochs. So a policy that
evicts copies is written as a generator, which yields the results of the epochs one after the other.
`Replay` lets the simulator ask for the epochs in any order.
"""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from monarch_py.plan.access import NEVER
from monarch_py.policies.view import NO_FILE, Array, Ints, Job

# The results of this many epochs are kept: the current epoch, and the epochs after it, whose files
# are prefetched before training needs them.
KEPT_EPOCHS = 3

T = TypeVar("T")


class Replay(Generic[T]):
    """Gives random access to the results that a generator yields, one for each epoch. Only the
    latest KEPT_EPOCHS results are kept. For an earlier epoch, the generator runs again from the
    first epoch.

    begin : a function that returns a new generator. The generator starts with the first epoch, in
        the state at the start of the job
    """

    def __init__(self, begin: Callable[[], Iterator[T]]) -> None:
        self._begin = begin
        self._kept: dict[int, T] = {}
        self._running, self._next = begin(), 0

    def at(self, epoch: int) -> T:
        """Returns what the generator yields for `epoch`. Raises IndexError for an epoch after the
        last one."""
        if epoch not in self._kept and epoch < self._next:
            self._running, self._next = self._begin(), 0
        while epoch not in self._kept:
            made = next(self._running, None)
            if made is None:
                raise IndexError(f"epoch {epoch} is past the last one, {self._next - 1}")
            self._kept[self._next] = made
            self._kept.pop(self._next - KEPT_EPOCHS, None)
            self._next += 1
        return self._kept[epoch]


def in_time(order: Ints) -> Array:
    """Returns the accesses of all nodes in the order in which they happen, (nodes x accesses,): the
    first access of every node, then the second access of every node, and so on. Access number `a`
    of node `n` is element `a * nodes + n`.

    order : (nodes, ...), as in `Job.orders`
    """
    return np.asarray(order.reshape(len(order), -1).T.ravel())


def next_uses(job: Job, *, together: bool) -> list[npt.NDArray[np.int64]]:
    """Finds, for each access, the next access to the same file. Returns one array for each epoch,
    (nodes, accesses) int64: the number of the next access, or NEVER. The accesses of the whole job
    are numbered consecutively, in the order in which they happen (`in_time`). The result takes 8
    bytes for every access of the job.

    together : True for the next use by any node (all nodes share one cache), False for the next use
    by the same node
    """
    nodes = job.cluster.nodes
    upcoming = np.full((1 if together else nodes, job.files), NEVER, dtype=np.int64)
    lengths = [job.orders(epoch).size for epoch in range(job.epochs)]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    answer: list[npt.NDArray[np.int64]] = []
    for epoch in reversed(range(job.epochs)):
        order = job.orders(epoch).reshape(nodes, -1)
        times = starts[epoch] + np.arange(order.size).reshape(-1, nodes).T
        if together:
            flat = _upcoming(in_time(order), in_time(times), upcoming[0])
            answer.append(flat.reshape(-1, nodes).T)
        else:
            rows = zip(order, times, upcoming, strict=True)
            answer.append(np.stack([_upcoming(*row) for row in rows]))
    return answer[::-1]


def _upcoming(
    files: Ints, times: npt.NDArray[np.int64], upcoming: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Returns, for each access, the next use of its file after this access; NEVER for NO_FILE. The
    accesses are in order of time.

    upcoming : (files,) the first use of each file after all of these accesses. The function updates
        the array in place: for each file that these accesses use, the element becomes the time of
        the file's first use among them
    """
    is_used = files != NO_FILE
    if not is_used.all():
        padded = np.full(len(files), NEVER, dtype=np.int64)
        padded[is_used] = _upcoming(files[is_used], times[is_used], upcoming)
        return padded
    after = upcoming[files]
    # If the sampler draws with replacement, a file may be used again within the epoch.
    by_file = np.argsort(files, kind="stable")
    again = files[by_file][1:] == files[by_file][:-1]
    after[by_file[:-1][again]] = times[by_file[1:][again]]
    # The assignment runs backwards, so the earliest of several uses of a file remains.
    upcoming[files[::-1]] = times[::-1]
    return after
