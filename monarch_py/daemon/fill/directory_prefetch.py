"""Implements `prefetch: auto`: once programs read through a directory, fills its other files ahead
of time.

In a cluster, each file has a home: the node that reads the file from the source for all nodes. Each
node first fills the files whose home it is. It fetches the others from their homes, but only while
a processor is idle, so that no program is slowed down. These fetches can wait: once the home has a
copy, a fetch is always fast.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from monarch_py.arrays import NO_IDS, Ids, pointer
from monarch_py.daemon.copies.idle import IdleCores
from monarch_py.daemon.fill.filler import Filler
from monarch_py.daemon.fill.unused import UnusedPrefetch
from monarch_py.native import State, ffi, lib
from monarch_py.policies.placement import NOWHERE

# Once programs have read NAMES files of a directory to their end, the directory's other files are
# filled. Once they have read files below NAMES of its direct subdirectories, everything below the
# directory is filled.
NAMES = 4
# Of the files that programs have read to their end since the last iteration, at most this many are
# examined. A few are enough to recognize the directory that programs read.
LOOKS = 64
# At most this many prefetched files are queued or being filled.
QUEUE = 4096
# The search for files that can be prefetched examines at most this many entries of the catalog in
# one iteration.
ENTRIES = 65536
# If unused copies are dropped, at least this much room is freed [bytes]. The next files then find
# room without another search for unused copies.
GIVEN_BYTES = 16 << 20
# If no tier has room for the files to be prefetched, nothing is prefetched for this long [s].
FULL_S = 1.0
# After programs have opened files, the daemon's loop iterates often for this long [s]. The next
# opens are likely to follow soon, but an open of a copy does not wake the loop.
AWAKE_S = 2.0

# The flag of an entry whose file has its home on another node.
OF_OTHERS = int(lib.MONARCH_OF_OTHERS)
# A directory: the number of its source, and its path relative to the source ("" for the root).
Place = tuple[int, str]


class _Home(IntEnum):
    """The home of a file: HERE is this node, ELSEWHERE is another node. Without a cluster, every
    file has its home here."""

    HERE = 0
    ELSEWHERE = 1


@dataclass(slots=True)
class _Filled:
    """A directory whose files are filled. The search for them goes through the catalog twice: for
    files whose home is this node, and for files whose home is another node (_Home).

    is_deep : whether all its subdirectories are filled too
    at : for each _Home, the catalog entry at which the search goes on
    """

    place: Place
    is_deep: bool
    at: list[int] = field(default_factory=lambda: [0, 0])

    def covers(self, place: Place) -> bool:
        """Whether `place` is this directory or, if `is_deep` is set, a directory below it. The
        files of `place` are filled in both cases."""
        source, directory = place
        if source != self.place[0]:
            return False
        above = self.place[1]
        return directory == above or (
            self.is_deep and (not above or directory.startswith(above + "/"))
        )


class Directories:
    """Finds the directories of which programs are likely to read every file. A directory is found
    once programs have read NAMES of its own files, or files below NAMES of its direct
    subdirectories."""

    def __init__(self) -> None:
        # The directories that were found so far; those that were found last come first.
        self.filled: list[_Filled] = []
        self._files: defaultdict[Place, set[bytes]] = defaultdict(set)
        self._below: defaultdict[Place, set[str]] = defaultdict(set)

    def note(self, place: Place, names: Iterable[bytes]) -> bool:
        """Records that programs have read these files of the directory `place` to their end.
        Returns whether `place`, or a directory above it, was added to `filled`."""
        if any(filled.covers(place) for filled in self.filled):
            return False
        self._files[place].update(names)
        begun = len(self._files[place]) >= NAMES
        if begun:
            self._begin(place, is_deep=False)
        source, above = place
        while above:
            above, name = os.path.split(above)
            self._below[source, above].add(name)
            if len(self._below[source, above]) >= NAMES:
                self._begin((source, above), is_deep=True)
                return True
        return begun

    def _begin(self, place: Place, *, is_deep: bool) -> None:
        begun = _Filled(place, is_deep)
        self.filled = [begun, *(old for old in self.filled if not begun.covers(old.place))]
        for names in (self._files, self._below) if is_deep else ():
            for inside in [other for other in names if begun.covers(other)]:
                del names[inside]
        self._files.pop(place, None)


class DirectoryPrefetch:
    """Orders fills in the directories that `Directories` finds. Runs in the daemon's loop, never
    blocks, and processes files in arrays instead of one by one.

    is_on : whether anything is prefetched
    unused : files that were prefetched and that no program has opened
    """

    def __init__(self, filler: Filler, *, is_on: bool) -> None:
        self.filler, self.shared, self.is_on = filler, filler.shared, is_on
        self.unused = UnusedPrefetch(self.shared)
        self._directories = Directories()
        # The files that `_find` has found in the directories to be filled, and whose fill is not
        # ordered yet: one array for each _Home.
        self._next: list[Ids] = [NO_IDS, NO_IDS]
        self._idle = IdleCores()
        self._ids = np.empty(QUEUE, dtype=np.uint64)
        self._full_until = self._opened_at = float("-inf")
        self._is_waiting = self._has_given_way = False
        # `ordered` : how many fills were ordered so far.
        # `waiting` : how many files are being filled, or are queued.
        self.ordered = self.waiting = 0
        self._ordered_bytes = 0.0
        # If `follow_opens` is set, clients report which files they open. If another part of the
        # daemon has set it before, it must never be cleared here.
        self._is_followed = bool(self.shared.control.follow_opens)
        self.shared.control.follow_reads = is_on
        if is_on and filler.nodes is None:
            filler.give_way, filler.beside = self.give_way, self.unused.ordered

    @property
    def is_awake(self) -> bool:
        """Whether the loop should iterate often. It should if files wait to be prefetched: because
        of the limit on unused files, or until a processor is idle for fetches from other nodes.
        When programs open prefetched copies, more files can be prefetched. But these opens do not
        wake the loop."""
        return self._is_waiting and time.monotonic() - self._opened_at < AWAKE_S

    @property
    def mean_bytes(self) -> float:
        """The mean size of the files whose fill was ordered so far."""
        return self._ordered_bytes / max(self.ordered, 1)

    # --- recognizing directories that programs read ---------------------------------------------

    def observe(self, opened: Ids, unmet: Ids) -> None:
        """Notes what programs have done since the last iteration.

        opened : (n,) files that programs have opened
        unmet : (m,) files that programs opened before the files were in the catalog. It is not
            known how much of them was read. Only the small ones are regarded as read to their end
        """
        if not self.is_on:
            return
        if len(opened):
            self._opened_at = time.monotonic()
            self.unused.note_opened(opened)
            self.filler.requests.try_again(self.unused.refused(opened))
        sizes = self.shared.catalog.entries["size"][unmet]
        read = np.concatenate([self.shared.take_read(), unmet[sizes <= lib.MONARCH_UNIT]])
        if not len(read):
            return
        self.unused.note_read(read)
        # A program hands over the descriptor of a small file that it has read, but perhaps later.
        # So these files are queued now, even without descriptors. Otherwise the other files of
        # their directory might take the room.
        small = self.shared.catalog.entries["size"][read] <= self.shared.control.handed_bytes
        self.filler.requests.want(read[small])
        begun = False
        looked_at = self.shared.catalog.by_directory(read[:: len(read) // LOOKS + 1])
        for place, names in looked_at.items():
            if self._directories.note(place, names):
                begun, newest = True, self._directories.filled[0]
                self.filler.scanner.read_through(*newest.place, is_deep=newest.is_deep)
        if begun:
            self._put_back()

    # --- filling the directories ----------------------------------------------------------------

    def step(self) -> bool:
        """Runs one iteration: orders fills of files in the directories that `Directories` has
        found, within the limit on unused files. Returns whether the next iteration should follow at
        once, because a part of the catalog is not searched yet."""
        self._is_waiting = False
        if not self.is_on:
            return False
        unsettled = self.unused.settle()
        queue = QUEUE - unsettled
        self.waiting = unsettled + (len(self._next[_Home.HERE]) if self._may_order() else 0)
        self.shared.control.follow_opens = self._is_followed or self.unused.files > 0
        if queue <= 0 or not self._may_order():
            return False
        home = _Home.HERE
        more = self._find(queue, home)
        if self.filler.nodes is not None and not (more or len(self._next[home])):
            more = self._find(queue, home := _Home.ELSEWHERE)
            if len(self._next[home]) and not self._may_fetch():
                self._is_waiting = True
                return False
        taken = self._take(queue, home)
        self._order(taken, home)
        self.ordered += len(taken)
        self._ordered_bytes += self.shared.catalog.entries["size"][taken].sum(dtype=np.float64)
        self.waiting = unsettled + len(taken) + len(self._next[_Home.HERE])
        return more

    def _may_fetch(self) -> bool:
        reads = self.filler.engine.pending(in_use=False, from_peers=False)
        return self._idle.has_one(time.monotonic()) and not reads

    def _take(self, most: int, home: _Home) -> Ids:
        """Returns an array (n,) of the next files that `_find` has found: at most `most` files, and
        no more than the limit on unused files allows. A file that is larger than this limit is
        skipped. It is filled when a program opens it."""
        words, sizes = self.shared.catalog.words, self.shared.catalog.entries["size"]
        first, rest = self._next[home][:most], self._next[home][most:]
        first = first[words[first] == State.ABSENT]
        room_bytes = self.unused.room_bytes
        first = first[sizes[first] < room_bytes + self.unused.bytes_]
        fit = int((np.cumsum(sizes[first], dtype=np.float64) < room_bytes).sum())
        self._next[home] = np.concatenate([first[fit:], rest])
        self._is_waiting = not fit and len(self._next[home]) > 0
        return np.asarray(first[:fit])

    def _may_order(self) -> bool:
        nodes, wanted = self.filler.nodes, self.filler.requests
        is_ready = nodes is None or nodes.is_ready
        has_room = not (self._has_given_way or wanted.has_put_off)
        return is_ready and has_room and time.monotonic() >= self._full_until

    def _order(self, ids: Ids, home: _Home) -> None:
        ids = ids[self.filler.policy.keeps(ids)]
        if not len(ids):
            return
        sizes = self.shared.catalog.entries["size"][ids]
        fits = self.filler.policy.tier_of(ids, sizes, self.filler.rooms()) != NOWHERE
        if not fits.any():
            # All files except the first one are put back. The first one may be too large for the
            # tiers, and would then block the others forever.
            self._next[home] = np.concatenate([ids[1:], self._next[home]])
            self._full_until = time.monotonic() + FULL_S
            return
        # Clients must report opens from now on, before the first copy is published. Otherwise the
        # first open of the copy might not be noticed.
        self.shared.control.follow_opens = True
        self.unused.order(ids[fits])
        self.filler.requests.fill_ahead(ids[fits])

    def _find(self, most: int, home: _Home) -> bool:
        """Examines further entries of the catalog until `_next[home]` contains `most` files, or
        until ENTRIES entries were examined. Returns whether ENTRIES entries were examined."""
        looks = ENTRIES
        for filled in self._directories.filled:
            while len(self._next[home]) < most and looks > 0:
                found, looked = self._look(filled, home, most - len(self._next[home]), looks)
                looks -= looked
                if not looked:
                    break
                self._next[home] = np.concatenate([self._next[home], found])
        return looks == 0

    def _look(self, filled: _Filled, home: _Home, most: int, looks: int) -> tuple[Ids, int]:
        """Returns an array (n,) of a directory's next files that have this home and can be
        prefetched. Also returns how many entries were examined.

        most, looks : the maximum numbers of files to return and of entries to examine
        """
        source, directory = filled.place[0], os.fsencode(filled.place[1])
        at = ffi.new("uint64_t *", filled.at[home])
        where = pointer(self._ids)
        catalog, clients, is_deep = self.shared.catalog.c, self.shared.clients, filled.is_deep
        n = lib.monarch_find_absent(
            catalog, clients, source, directory, len(directory), is_deep, at, looks, where, most
        )
        looked, filled.at[home] = int(at[0]) - filled.at[home], int(at[0])
        ids = self._ids[:n].copy()
        if self.filler.nodes is not None:
            is_elsewhere = self.shared.catalog.entries["flags"][ids] & OF_OTHERS != 0
            ids = ids[is_elsewhere == (home is _Home.ELSEWHERE)]
        return ids, looked

    def give_way(self, ids: Ids) -> Ids:
        """Makes room for some of the files `ids`, which programs use now and for which no tier has
        room. Drops prefetched copies that no program has used, from the end of the catalog. From
        then on, nothing more is prefetched, because the tiers have no room for it. Returns the
        files that will have room: those that had no room in an earlier use either. If nothing can
        be dropped, returns no files.

        At the first use of a file, the program may be in its first epoch, and may still use the
        other prefetched copies. A second use shows that it reads only a part of the files, again
        and again. It will not use the other copies, so they can be dropped.
        """
        again = self.unused.refuse(ids)
        unused = self.unused.copies()[0][::-1]
        if not len(again) or not len(unused):
            return NO_IDS
        sizes = self.shared.catalog.entries["size"]
        need_bytes = max(float(sizes[again].sum(dtype=np.float64)), GIVEN_BYTES)
        before = np.cumsum(sizes[unused], dtype=np.float64) - sizes[unused]
        unused = unused[before < need_bytes]
        self._has_given_way = True
        self.unused.drop(unused)
        self.filler.copies.forget(unused, State.ABSENT)
        return again

    # --- starting over --------------------------------------------------------------------------

    def _put_back(self) -> None:
        """Forgets the files that `_find` has found and whose fill is not ordered yet. So the files
        of a directory that was just added are filled first. `_find` will find the forgotten files
        again later."""
        for home, ids in enumerate(self._next):
            first = int(ids.min()) if len(ids) else lib.MONARCH_MAX_ENTRIES
            for filled in self._directories.filled:
                filled.at[home] = min(filled.at[home], first)
        self._next = [NO_IDS, NO_IDS]

    def look_again(self) -> None:
        """Restarts the search for files to prefetch at the catalog's first entry. Call this after a
        command was cancelled. Until then, the search skipped the files that the command had
        requested. These files are ABSENT again, and can be prefetched."""
        for filled in self._directories.filled:
            filled.at = [0, 0]
        self._next = [NO_IDS, NO_IDS]

    def clear(self) -> None:
        """Forgets the directories and the files that programs have read, so that only new reads
        start a prefetch. Call it after all copies were dropped."""
        self.unused.clear()
        self._directories, self._next = Directories(), [NO_IDS, NO_IDS]
        self._has_given_way = False

    def told(self) -> dict[str, int] | None:
        """Returns the status fields about copies that were prefetched and are unused; None if
        `is_on` is False."""
        if not self.is_on:
            return None
        ids, n_bytes = self.unused.copies()
        return {"unused_files": len(ids), "unused_bytes": n_bytes}
