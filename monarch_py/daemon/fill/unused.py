"""Prefetched files that no program has opened yet, and the limit on their total size."""

import time
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import NO_IDS, Ids
from monarch_py.daemon.segments import Shared
from monarch_py.native import State

# The total size of the prefetched files that no program has opened yet is limited. The limit is
# BYTES_AT_FIRST [bytes], plus BYTES_FOR_EACH_READ for each byte of the files that programs have
# read. A file that is read several times counts once.
BYTES_FOR_EACH_READ = 4
BYTES_AT_FIRST = 256 << 20
# Flags of a file. ORDERED : the file was prefetched and is unused.  READ : programs have read it.
# REFUSED : in an earlier use, there was no room for a copy.
ORDERED, READ, REFUSED = np.uint8(1), np.uint8(2), np.uint8(4)
# If programs open a file again within this time [s], both opens are regarded as one use of the
# file.
ONE_USE_S = 1.0


class UnusedPrefetch:
    """The files that were prefetched, or are being prefetched, and that no program has opened yet.

    files, bytes_ : the number of these files, and the sum of their sizes
    read_bytes : the sum of the sizes of all files that programs have read, each counted once
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.clear()

    def clear(self) -> None:
        """Resets everything, as if nothing had been read or prefetched."""
        self._marks: npt.NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self._under_way: Ids = NO_IDS
        # Files that programs use now and for which no tier had room. Each element is a pair: (when
        # this use counts as ended [s], files).
        self._refusals: deque[tuple[float, Ids]] = deque()
        self.files = self.bytes_ = self.read_bytes = 0

    @property
    def room_bytes(self) -> int:
        """How much more may be prefetched now [bytes], 0 or more."""
        return max(0, BYTES_AT_FIRST + BYTES_FOR_EACH_READ * self.read_bytes - self.bytes_)

    def order(self, ids: Ids) -> None:
        """Records that these files are being prefetched. `ids` must contain each file only once."""
        fresh = ids[self._marked(ids) == 0]
        self._marks[fresh] |= ORDERED
        self.files += len(fresh)
        self.bytes_ += self._bytes_of(fresh)
        self._under_way = np.concatenate([self._under_way, ids])

    def ordered(self, ids: Ids) -> Ids:
        """Returns the files of `ids` that were prefetched and are still unused."""
        return np.asarray(ids[self._marked(ids) & ORDERED != 0])

    def note_read(self, ids: Ids) -> None:
        """Records that programs have read these files to their end."""
        ids = np.unique(ids)
        self._leave(self.ordered(ids))
        fresh = ids[self._marked(ids) & READ == 0]
        self._marks[fresh] |= READ
        self.read_bytes += self._bytes_of(fresh)

    def note_opened(self, ids: Ids) -> None:
        """Records that programs have opened these files. How much of a copy a program reads is not
        known. So a prefetched file counts as read once it is opened."""
        if self.files:
            self.note_read(self.ordered(ids))

    def refuse(self, ids: Ids) -> Ids:
        """Records that programs use these files now, and that no tier has room for them. Returns
        the files that had no room in an earlier use either, and so are marked as REFUSED. The
        others get this mark after ONE_USE_S, when their present use has ended."""
        self._age()
        again = self._marked(ids) & REFUSED != 0
        if not again.all():
            self._refusals.append((time.monotonic() + ONE_USE_S, ids[~again]))
        return np.asarray(ids[again])

    def refused(self, ids: Ids) -> Ids:
        """Returns the files of `ids` for which there was no room in an earlier use."""
        self._age()
        return np.asarray(ids[self._marked(ids) & REFUSED != 0])

    def _age(self) -> None:
        while self._refusals and self._refusals[0][0] <= time.monotonic():
            ids = self._refusals.popleft()[1]
            self._marked(ids)
            self._marks[ids] |= REFUSED

    def settle(self) -> int:
        """Forgets files that will get no copy. Returns how many prefetched files are still queued
        or being filled."""
        states = self.shared.catalog.states(self._under_way)
        open_ = (states == State.WANTED) | (states == State.FILLING)
        lost = self._under_way[~open_ & (states != State.PRESENT)]
        self._leave(self.ordered(lost))
        self._under_way = self._under_way[open_]
        return len(self._under_way)

    def copies(self) -> tuple[Ids, int]:
        """Returns an array (n,) of the files whose copies no program has used, and the files' total
        size [bytes]."""
        ids = np.flatnonzero(self._marks & ORDERED).astype(np.uint64)
        ids = ids[self.shared.catalog.states(ids) == State.PRESENT]
        return ids, self._bytes_of(ids)

    def drop(self, ids: Ids) -> None:
        """Forgets files whose unused copies are being dropped."""
        self._leave(self.ordered(ids))

    def _leave(self, ids: Ids) -> None:
        self._marks[ids] &= ~ORDERED
        self.files -= len(ids)
        # Without `max`, `bytes_` might become negative: a file may have grown since its size was
        # added to `bytes_`.
        self.bytes_ = max(0, self.bytes_ - self._bytes_of(ids)) if self.files else 0

    def _marked(self, ids: Ids) -> npt.NDArray[np.uint8]:
        """Returns an array (n,) of the flags of these files. If the catalog has grown, first
        enlarges the table of flags."""
        entries = len(self.shared.catalog)
        if entries > len(self._marks):
            grown = np.zeros(max(entries, 2 * len(self._marks)), dtype=np.uint8)
            grown[: len(self._marks)] = self._marks
            self._marks = grown
        return np.asarray(self._marks[ids])

    def _bytes_of(self, ids: Ids) -> int:
        sizes: Any = self.shared.catalog.entries["size"][ids]
        return int(sizes.sum(dtype=np.float64))
