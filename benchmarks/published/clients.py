"""A log of the reads from the parallel file system (PFS), to find how many nodes read at a time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable

from benchmarks.published.behaviours import Behaviour

__all__ = ["WINDOW_S", "ClientLog"]

# At a given time, a node is considered to read from the PFS if it began a read at most this long
# [s] before or after this time. The published simulator uses the same value.
WINDOW_S = 0.1
_NEVER = float("-inf")


class ClientLog:
    """Logs the times [s] at which every node began to read or to prefetch samples from the PFS.

    Reads are logged in the order of their times. Prefetches come from several threads, so they are
    logged in another order. ClientLog sorts the prefetches by time, unless
    CLIENTS_BY_UNSORTED_SEARCH is on.
    """

    def __init__(self, nodes: int, on: Collection[Behaviour]) -> None:
        self.last_read = [_NEVER] * nodes
        self.reads: list[list[float]] = [[] for _ in range(nodes)]
        self.prefetches: list[list[float]] = [[] for _ in range(nodes)]
        self._others = [[other for other in range(nodes) if other != node] for node in range(nodes)]
        self._of_the_future = Behaviour.CLIENTS_OF_THE_FUTURE in on
        self._unsorted = Behaviour.CLIENTS_BY_UNSORTED_SEARCH in on

    def read(self, node: int, time: float) -> None:
        """Logs the read of a sample from the PFS at `time`."""
        self.last_read[node] = time
        if not self._of_the_future:
            self.reads[node].append(time)

    def prefetch(self, node: int, time: float) -> None:
        """Logs a prefetch that began at `time`."""
        if self._unsorted:
            self.prefetches[node].append(time)
        else:
            insort(self.prefetches[node], time)

    def prefetch_many(self, node: int, times: Iterable[float]) -> None:
        """Logs prefetches that began at `times`, in the order of `times`."""
        self.prefetches[node].extend(times)
        if not self._unsorted:
            self.prefetches[node].sort()

    def clients(self, now: float, node: int) -> int:
        """Returns how many nodes read from the PFS at `now`, including `node`."""
        if self._of_the_future:
            return 1 + sum(self._reads_from(other, now) for other in self._others[node])
        return 1 + sum(self._reads_about(other, now) for other in self._others[node])

    def _reads_from(self, node: int, now: float) -> bool:
        """Returns whether a search of the logs finds a read at the time `now` or later.

        As in the published simulator, the log of prefetches is not searched if its last entry is at
        least WINDOW_S before `now`.
        """
        if self.last_read[node] >= now:
            return True
        log = self.prefetches[node]
        if not log or log[-1] <= now - WINDOW_S:
            return False
        return log[-1] >= now or bisect_left(log, now) < len(log)

    def _reads_about(self, node: int, now: float) -> bool:
        """Returns whether the logs contain a read that began within WINDOW_S of `now`."""
        for log in (self.reads[node], self.prefetches[node]):
            at = bisect_left(log, now - WINDOW_S)
            if at < len(log) and log[at] <= now + WINDOW_S:
                return True
        return False
