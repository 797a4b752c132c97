"""Caches of one node: the least recently used goes, or the farthest next use goes.

Plain loops over dictionaries and heaps: arrays do not help where every access changes what the
next one finds. In a cache of 200,000 files LRU takes 0.4 to 0.7 us an access, 0.4 us more a further
class, and farthest-next-use 1.1 us. Ten million accesses to two million files, in a cache of half
of them, took 1.1 and 1.8 us each on a busy machine, with drawing the orders and finding the next
uses (benchmarks/policies).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.plan.access import NEVER
from monarch_py.policies.view import STAGING, Ints

__all__ = ["MISS", "FarthestUse", "LeastRecent", "Uses", "exchange"]

# Instead of a storage class: the file is not there. The staging buffer holds no copies.
MISS = STAGING


@dataclass(frozen=True)
class Uses:
    """What accesses found in a cache, and what they changed; for each a class, or MISS.

    found : that had the file;  into : that took it then;  down : the slowest one that took anything
    (what is pushed out of a class goes to the next slower one)
    """

    found: bytearray
    into: bytearray
    down: bytearray

    @classmethod
    def of(cls, accesses: int) -> Uses:
        return cls(bytearray(accesses), bytearray(accesses), bytearray(accesses))


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

    def run(self, files: Sequence[int], sizes: Sequence[int]) -> Uses:
        """Uses files one after the other.  sizes : of the same accesses [bytes]"""
        uses = Uses.of(len(files))
        if len(self._classes) == 1:
            self._run_one(files, sizes, uses)
        elif self._classes:
            self._run_several(files, sizes, uses)
        return uses

    def _run_one(self, files: Sequence[int], sizes: Sequence[int], uses: Uses) -> None:
        """As below, with one class: then there is nothing to push down."""
        level = STAGING + 1
        held, room, free = self._held[level], self._capacity[level], self._free[level]
        front, pop = held.move_to_end, held.popitem
        found, into = uses.found, uses.into
        for at, (file, size) in enumerate(zip(files, sizes, strict=True)):
            if file in held:
                front(file)
                found[at] = level
            elif size <= room:
                while free < size:
                    free += pop(last=False)[1]
                held[file] = size
                free -= size
                into[at] = level
        self._free[level] = free
        uses.down[:] = into

    def _run_several(self, files: Sequence[int], sizes: Sequence[int], uses: Uses) -> None:
        fastest, rest = self._held[STAGING + 1], self._classes[1:]
        for at, file in enumerate(files):
            if file in fastest:
                fastest.move_to_end(file)
                uses.found[at] = STAGING + 1
                continue
            for level in rest:
                if file in self._held[level]:
                    self._free[level] += self._held[level].pop(file)
                    uses.found[at] = level
                    break
            uses.into[at], uses.down[at] = self._push(file, sizes[at])

    def _push(self, file: int, size: int) -> tuple[int, int]:
        """Puts a file in front; what has to go from a class goes to the next slower one. Returns
        the class that took the file and the slowest one that took anything, MISS for none."""
        coming = [(file, size)]
        into = down = MISS
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
                into, down = into or level, level
            if not dropped:
                break
            coming = dropped
        return into, down


class FarthestUse:
    """The file whose next use is farthest goes; one that is used later than all others does not
    come in at all (Belady 1966, with bypass).

    With files of one size no policy hits more often. With several it is a heuristic: as many of the
    farthest go as a nearer one needs. A copy stays in the class into which it came.

    capacity : (classes,) [bytes], with the staging buffer, which takes nothing;  sizes : (files,)
    [bytes], a list, which the caches of all nodes may share
    """

    def __init__(self, capacity: Ints, sizes: list[int]) -> None:
        self._free = [int(each) for each in capacity]
        self._classes = range(STAGING + 1, len(self._free))
        self._size = sizes
        self._files = len(sizes)
        self._level = bytearray(self._files)
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
        self._free[self._level[file]] += self._size[file]
        self._level[file] = MISS

    def offer(self, file: int, upcoming: int, now: int) -> list[int] | None:
        """A file that is not held was loaded: shall it stay?

        upcoming : its next use;  now : this access.
        Returns the files that went for it (and are gone), or None where it does not come in.
        """
        if upcoming == NEVER:
            return None
        key = -(upcoming * self._files + file)
        size, heap = self._size[file], self._heap
        level = self._room(size)
        victims: list[int] = []
        if level != MISS:
            heapq.heappush(heap, key)
        elif not heap or heap[0] > key:
            return None
        else:
            level, victims = self._make_room(size, key, now)
            if level == MISS:
                return None
        self._level[file] = level
        self._free[level] -= size
        return victims

    def _make_room(self, size: int, key: int, now: int) -> tuple[int, list[int]]:
        """Drops the farthest until a class has `size` bytes, and enters `key`; where all that are
        farther than it are not enough, does nothing. Returns the class, or MISS, and what went."""
        heap = self._heap
        at, victim = divmod(-heap[0], self._files)
        level = self._level[victim]
        if at > now and level and self._free[level] + self._size[victim] >= size:
            # One for one, as always with equal sizes: half the work.
            heapq.heapreplace(heap, key)
            self._free[level] += self._size[victim]
            self._level[victim] = MISS
            return level, [victim]
        level = MISS
        entries: list[int] = []
        victims: list[int] = []
        while level == MISS and heap and heap[0] < key:
            entries.append(heapq.heappop(heap))
            at, victim = divmod(-entries[-1], self._files)
            # Dropped from outside, or used since: an entry without a file.
            if at > now and self._level[victim]:
                victims.append(victim)
                self._free[self._level[victim]] += self._size[victim]
                level = self._room(size)
        if level == MISS:
            for victim in victims:
                self._free[self._level[victim]] -= self._size[victim]
            for entry in entries:
                heapq.heappush(heap, entry)
            return MISS, []
        for victim in victims:
            self._level[victim] = MISS
        heapq.heappush(heap, key)
        return level, victims

    def run(
        self,
        files: Sequence[int],
        upcoming: Sequence[int],
        now: Sequence[int],
    ) -> Uses:
        """Uses files one after the other.  upcoming, now : as in `offer`, for each access."""
        uses = Uses.of(len(files))
        found, into = uses.found, uses.into
        level, count, heap, push = self._level, self._files, self._heap, heapq.heappush
        for at, (file, after) in enumerate(zip(files, upcoming, strict=True)):
            if not level[file]:
                self.offer(file, after, now[at])
                into[at] = level[file]
                continue
            found[at] = level[file]
            # As in `used`.
            if after == NEVER:
                self.drop(file)
            else:
                push(heap, -(after * count + file))
        if now:
            self.forget(now[-1])
        uses.down[:] = into
        return uses

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


def exchange(
    held_use: Ints, held_bytes: Ints, coming_use: Ints, coming_bytes: Ints, free_bytes: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """What of a cache goes for files that are loaded, as `FarthestUse` has it: nothing goes but for
    what is used sooner.

    held_use, held_bytes : (held,) the next use of each, 0 or more, and its size;  coming_use,
    coming_bytes : (coming,) the same of those that are loaded, in this order: the next use after
    that for which they are;  free_bytes : room besides.
    Returns (held,) what goes, and (coming,) what stays.
    """
    sizes = [*held_bytes.tolist(), *coming_bytes.tolist()]
    room = max(0, free_bytes) + sum(sizes[: len(held_use)])
    cache = FarthestUse(np.array([0, room]), sizes)
    for file, use in enumerate([*held_use.tolist(), *coming_use.tolist()]):
        cache.offer(file, min(use, NEVER - 1), -1)
    there = np.array([cache.level(file) != MISS for file in range(len(sizes))], dtype=bool)
    return ~there[: len(held_use)], there[len(held_use) :]
