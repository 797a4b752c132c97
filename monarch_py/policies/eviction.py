"""Caches of one node that evict the least recently used file, or the file with the farthest next
use.

The caches are plain loops over dictionaries and heaps. Array operations would not help, because
each access depends on the changes that earlier accesses made. In a cache of 200,000 files, an
access takes 0.4 to 0.7 us with LRU and one storage class, and 0.4 us more for each further class.
With eviction by the next use, an access takes 1.1 us. benchmarks/policies measures a complete
simulation: ten million accesses to two million files, half of which are cached. One access then
takes 1.1 us with LRU and 1.8 us with eviction by the next use. These times include the computation
of orders and next uses.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from monarch_py.plan.access import NEVER
from monarch_py.policies.view import STAGING, Bools, Ints

# Returned instead of the number of a storage class if no class holds the file. MISS is the number
# of the staging buffer. The staging buffer holds no copies, so its number is free for this use.
MISS = STAGING


class Uses:
    """The results of accesses to a cache. Each field has one element for each access: the number of
    a storage class, or MISS for none.

    found : the class that held the file before the access
    into : the class into which the accessed file was copied. In LeastRecent, the files that this
        class drops to make room go to the next slower class
    down : the slowest class that received a file: the accessed file, or a file that a faster class
        dropped
    """

    def __init__(self, accesses: int) -> None:
        self.found, self.into, self.down = (bytearray(accesses) for _ in range(3))


class LeastRecent:
    """LRU over the storage classes of a node, with the most recently used files in the fastest
    class.

    A file that a class drops goes to the next slower class, and a file that is used returns to the
    fastest class. So each file is in at most one class. All classes together are the LRU stack of
    Mattson et al. 1970: each class holds the section of the stack that fits into its capacity.

    capacity : (classes,) [bytes], including the staging buffer, which takes no files
    """

    def __init__(self, capacity: Ints) -> None:
        self._free = [int(each) for each in capacity]
        self._capacity = list(self._free)
        self._held: list[OrderedDict[int, int]] = [OrderedDict() for _ in self._free]
        self._classes = range(STAGING + 1, len(self._free))

    def run(self, files: Sequence[int], sizes: Sequence[int]) -> Uses:
        """Processes one access to each of these files, in order. Returns, for each access, the
        storage class that held the file, and the classes that received files.

        sizes : the sizes of these files [bytes]
        """
        uses = Uses(len(files))
        if len(self._classes) == 1:
            self._run_one(files, sizes, uses)
        elif self._classes:
            self._run_several(files, sizes, uses)
        return uses

    def _run_one(self, files: Sequence[int], sizes: Sequence[int], uses: Uses) -> None:
        """The same as `_run_several`, but faster, for a cache with only one class."""
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
        """Puts a file into the fastest storage class that can hold it, as the most recently used
        file. Files that a class drops to make room go to the next slower class. Returns the class
        that the file is in, and the slowest class that received any file. Both are MISS if no class
        can hold the file."""
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
    """Evicts the file with the farthest next use. A file is not admitted if its next use is farther
    than the next use of every held file (Belady 1966, with bypass).

    If all files have the same size, no policy has more hits. If sizes differ, this policy is only a
    heuristic. To make room for a file, the cache evicts as many files as needed, but only files
    with a farther next use. A copy stays in the storage class that admitted it.

    capacity : (classes,) [bytes], including the staging buffer, which takes no files
    sizes : (files,) [bytes], a list, which the caches of all nodes may share
    """

    def __init__(self, capacity: Ints, sizes: list[int]) -> None:
        self._free = [int(each) for each in capacity]
        self._classes = range(STAGING + 1, len(self._free))
        self._size = sizes
        self._files = len(sizes)
        self._level = bytearray(self._files)
        # A heap entry is one number that encodes a file and its next use: -(next use x number of
        # files + file). The top of the heap is the smallest entry, which has the farthest next use.
        # An entry becomes stale when its file is used: the use that it encodes is then in the past.
        # Valid entries encode uses in the future, so stale entries lie below all valid entries.
        self._heap: list[int] = []

    def level(self, file: int) -> int:
        """Returns the storage class that holds the file, or MISS."""
        return self._level[file]

    def levels(self) -> npt.NDArray[np.uint8]:
        """Returns the storage class that holds each file, or MISS, (files,). The array is a view of
        the cache's own data, so it also shows later changes."""
        return np.frombuffer(self._level, np.uint8)

    def used(self, file: int, upcoming: int) -> None:
        """Tells the cache that a held file was used.

        upcoming : the file's next use; if it is NEVER, the file is dropped
        """
        if upcoming == NEVER:
            self.drop(file)
        else:
            heapq.heappush(self._heap, -(upcoming * self._files + file))

    def drop(self, file: int) -> None:
        self._free[self._level[file]] += self._size[file]
        self._level[file] = MISS

    def offer(self, file: int, upcoming: int, now: int) -> list[int] | None:
        """Admits a loaded file to the cache, if the rule of FarthestUse permits that. The cache
        must not hold the file yet.

        upcoming : the number of the access that uses the file next, or NEVER
        now : the number of the latest access. Heap entries of this and earlier accesses are stale

        Returns the files that were evicted for this file, or None if this file was not admitted.
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
        """Makes room for a file of `size` bytes, and pushes the file's entry, `key`, onto the heap.

        Evicts the files with the farthest next use until a storage class has enough room. Evicts
        only files whose next use is farther than the use in `key`. If even all of these evictions
        free too little room, nothing changes. Returns the class that has the room (MISS if there is
        none), and the evicted files."""
        heap = self._heap
        at, victim = divmod(-heap[0], self._files)
        level = self._level[victim]
        if at > now and level and self._free[level] + self._size[victim] >= size:
            # A shortcut that takes half the time of the general case: one file replaces one file.
            # If all files have the same size, no other case occurs.
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
            # An entry that fails this test is stale: the file was used or dropped after this entry
            # was pushed.
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
        """Processes one access to each of these files, in order. Returns, for each access, the
        storage class that held the file, and the class that the file was newly put into.

        upcoming : for each access, the number of the next access to the same file, or NEVER
        now : the number of each access
        """
        uses = Uses(len(files))
        found, into = uses.found, uses.into
        level, count, heap, push = self._level, self._files, self._heap, heapq.heappush
        for at, (file, after) in enumerate(zip(files, upcoming, strict=True)):
            if not level[file]:
                self.offer(file, after, now[at])
                into[at] = level[file]
                continue
            found[at] = level[file]
            # Same as `used`, inlined for speed.
            if after == NEVER:
                self.drop(file)
            else:
                push(heap, -(after * count + file))
        if now:
            self.forget(now[-1])
        uses.down[:] = into
        return uses

    def forget(self, now: int) -> None:
        """Removes the stale entries from the heap: those of access `now` and of earlier accesses.
        Every use of a file leaves one stale entry."""
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
) -> tuple[Bools, Bools]:
    """Decides which files of a cache are evicted to make room for loaded files, by the rule of
    `FarthestUse`: a file is evicted only for files whose next use is sooner.

    held_use, held_bytes : (held,) the next use of each held file, 0 or more, and its size
    coming_use, coming_bytes : (coming,) the next use of each loaded file and its size, in the order
        of loading. If a file is loaded because it is used now, this present use does not count
    free_bytes : the free room of the cache, in addition to the room that the held files take

    Returns which held files are evicted, (held,), and which loaded files are kept, (coming,).
    """
    sizes = [*held_bytes.tolist(), *coming_bytes.tolist()]
    room = max(0, free_bytes) + sum(sizes[: len(held_use)])
    cache = FarthestUse(np.array([0, room]), sizes)
    for file, use in enumerate([*held_use.tolist(), *coming_use.tolist()]):
        cache.offer(file, min(use, NEVER - 1), -1)
    there = cache.levels() != MISS
    return ~there[: len(held_use)], there[len(held_use) :]
