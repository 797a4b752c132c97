"""Caches of one node: the least recently used goes, or the farthest next use goes.

Plain loops over dictionaries and heaps: arrays do not help where every access changes what the
next one finds. LRU takes about 0.4 us an access and farthest-next-use about 0.8 us, with one
class of storage (benchmarks/policies).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence

from monarch_py.policies.replay import NEVER
from monarch_py.policies.view import STAGING, Ints

__all__ = ["MISS", "FarthestUse", "LeastRecent"]

# Instead of a storage class: the file is not there. The staging buffer holds no copies.
MISS = STAGING


class LeastRecent:
    """LRU over the classes of a node, the most recently used in the fastest one.

    What a class drops goes to the next slower one, and a file that is used comes back to the
    fastest (an exclusive hierarchy; the LRU stack of Mattson et al. 1970 cut at the capacities).

    capacity : (classes,) [bytes], with the staging buffer, which takes nothing
    """

    def __init__(self, capacity: Ints) -> None:
        self._free = [int(each) for each in capacity]
        self._capacity = list(self._free)
        self._held: list[OrderedDict[int, int]] = [OrderedDict() for _ in self._free]
        self._classes = range(STAGING + 1, len(self._free))

    def run(self, files: Sequence[int], sizes: Sequence[int]) -> bytearray:
        """Uses files one after the other.  files : numbers;  sizes : of the same accesses [bytes].
        Returns for each access the class that had the file, or MISS."""
        found = bytearray(len(files))
        if not self._classes:
            return found
        fastest = self._held[STAGING + 1]
        rest = self._classes[1:]
        for at, file in enumerate(files):
            if file in fastest:
                fastest.move_to_end(file)
                found[at] = STAGING + 1
                continue
            for level in rest:
                if file in self._held[level]:
                    self._free[level] += self._held[level].pop(file)
                    found[at] = level
                    break
            self._push(file, sizes[at])
        return found

    def _push(self, file: int, size: int) -> None:
        """Puts a file in front; what has to go from a class goes to the next slower one."""
        coming = [(file, size)]
        for level in self._classes:
            held, dropped = self._held[level], []
            for each, bytes_ in coming:
                if bytes_ > self._capacity[level]:
                    dropped.append((each, bytes_))
                    continue
                while self._free[level] < bytes_:
                    victim = held.popitem(last=False)
                    self._free[level] += victim[1]
                    dropped.append(victim)
                held[each] = bytes_
                self._free[level] -= bytes_
            if not dropped:
                return
            coming = dropped


class FarthestUse:
    """The file whose next use is farthest goes; one that is used later than all others does not
    come in at all (Belady 1966, with bypass).

    With files of one size no policy hits more often. With several it is a heuristic: as many of the
    farthest go as a nearer one needs. A copy stays in the class into which it came.

    capacity : (classes,) [bytes], with the staging buffer, which takes nothing;  files : how many
    """

    def __init__(self, capacity: Ints, files: int) -> None:
        self._free = [int(each) for each in capacity]
        self._classes = range(STAGING + 1, len(self._free))
        self._files = files
        self._level = bytearray(files)
        self._size: dict[int, int] = {}
        # Entries -(next use x files + file): the smallest is the farthest. Those of files that
        # were used since lie in the past, behind all others, and never come up before them.
        self._heap: list[int] = []

    def level(self, file: int) -> int:
        """The class that has the file, or MISS."""
        return self._level[file]

    def used(self, file: int, upcoming: int) -> None:
        """A file that is held was used; `upcoming` : its next use. One without goes."""
        if upcoming == NEVER:
            self.drop(file)
        else:
            heapq.heappush(self._heap, -(upcoming * self._files + file))

    def drop(self, file: int) -> None:
        self._free[self._level[file]] += self._size.pop(file)
        self._level[file] = MISS

    def offer(self, file: int, size: int, upcoming: int, now: int) -> list[int] | None:
        """A file that is not held was loaded: shall it stay?

        size [bytes];  upcoming : its next use;  now : this access.
        Returns the files that went for it (and are gone), or None where it does not come in.
        """
        if upcoming == NEVER:
            return None
        key = -(upcoming * self._files + file)
        level = self._room(size)
        victims: list[int] = []
        heap, free, put_back = self._heap, list(self._free), []
        while level == MISS and heap and heap[0] < key:
            entry = heapq.heappop(heap)
            put_back.append(entry)
            at, victim = divmod(-entry, self._files)
            # Dropped from outside, or used since: an entry without a file.
            if at > now and self._level[victim]:
                victims.append(victim)
                self._free[self._level[victim]] += self._size[victim]
                level = self._room(size)
        if level == MISS:
            self._free = free
            for entry in put_back:
                heapq.heappush(heap, entry)
            return None
        for victim in victims:
            self._level[victim] = MISS
            del self._size[victim]
        self._level[file] = level
        self._size[file] = size
        self._free[level] -= size
        heapq.heappush(heap, key)
        return victims

    def run(
        self,
        files: Sequence[int],
        sizes: Sequence[int],
        upcoming: Sequence[int],
        now: Sequence[int],
    ) -> bytearray:
        """Uses files one after the other.  sizes [bytes], upcoming, now : as in `offer`, for each
        access.  Returns for each the class that had the file, or MISS."""
        found = bytearray(len(files))
        level, used, offer = self._level, self.used, self.offer
        for at, file in enumerate(files):
            if level[file]:
                found[at] = level[file]
                used(file, upcoming[at])
            else:
                offer(file, sizes[at], upcoming[at], now[at])
        if now:
            self.forget(now[-1])
        return found

    def forget(self, now: int) -> None:
        """Drops the entries of the past, which would otherwise pile up by one a use."""
        last = -(now + 1) * self._files
        self._heap = [entry for entry in self._heap if entry <= last]
        heapq.heapify(self._heap)

    def _room(self, size: int) -> int:
        for level in self._classes:
            if self._free[level] >= size:
                return level
        return MISS
