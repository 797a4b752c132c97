"""Records which node holds which file, in which storage class (memory or disk), and since when."""

from __future__ import annotations

from array import array
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from benchmarks.published.behaviours import Behaviour

__all__ = ["Holders"]

_NOBODY = -1


class Holders:
    """The copies in the storage classes of all nodes. A node holds a file in at most one class.

    level : one array (files,) per node: the class in which the node holds each file; 0 if it does
        not hold the file
    since : one array (files,) per node: the time at which each copy is complete [s]
    """

    def __init__(self, nodes: int, files: int, rates: list[float], on: Collection[Behaviour]):
        """Creates the record. At first, no node holds a file.

        rates : (classes,) the rates [bytes/s] at which another node's copies are read
        """
        self.level = [bytearray(files) for _ in range(nodes)]
        self.since = [array("d", bytes(8 * files)) for _ in range(nodes)]
        self._rates = rates
        # For each file, the two holders with the highest node numbers. The second one is needed if
        # the first one is itself the node that requests the file.
        self._last = array("i", [_NOBODY]) * files
        self._second = array("i", [_NOBODY]) * files
        self._is_last_asked = Behaviour.LAST_HOLDER in on

    def hold(
        self, node: int, files: npt.NDArray[np.int32], level: int, since: npt.ArrayLike
    ) -> None:
        """Records that `node` holds `files` in class `level`. Does not change the records of files
        that the node already holds.

        since : the time at which each copy is complete, or one time for all copies [s]
        """
        new, first = np.unique(files, return_index=True)
        times = np.broadcast_to(np.asarray(since, np.float64), len(files))[first]
        levels = np.frombuffer(self.level[node], np.uint8)
        is_new = levels[new] == 0
        new, times = new[is_new], times[is_new]
        levels[new] = level
        np.frombuffer(self.since[node], np.float64)[new] = times
        last = np.frombuffer(self._last, np.int32)
        second = np.frombuffer(self._second, np.int32)
        second[new] = np.maximum(second[new], np.minimum(last[new], node))
        last[new] = np.maximum(last[new], node)

    def elsewhere(self, node: int, file: int) -> int:
        """Returns the node from which `node` requests a file; -1 if no other node holds the
        file."""
        last = self._last[file]
        other = last if last != node else self._second[file]
        if self._is_last_asked or other == _NOBODY:
            return other
        return self._fastest(node, file, float("inf"))

    def elsewhere_now(self, node: int, file: int, now: float) -> int:
        """Like `elsewhere`, but considers only copies that are complete at the time `now` [s]."""
        if not self._is_last_asked:
            return self._fastest(node, file, now)
        for other in range(len(self.level) - 1, -1, -1):
            if other != node and self.level[other][file] and self.since[other][file] <= now:
                return other
        return _NOBODY

    def _fastest(self, node: int, file: int, now: float) -> int:
        best, best_key = _NOBODY, (0.0, 0.0)
        for other, levels in enumerate(self.level):
            since = self.since[other][file]
            if other != node and levels[file] and since <= now:
                key = (self._rates[levels[file]], -since)
                if best == _NOBODY or key > best_key:
                    best, best_key = other, key
        return best
