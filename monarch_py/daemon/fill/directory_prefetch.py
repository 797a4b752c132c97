"""`prefetch: auto`: fills what lies beside the files that programs read, before they open it.

Where nodes share, each node first fills the files whose home it is. Other nodes' files are near
once their homes have them: they are fetched while a processor is idle, so that no program is slower
for them.
"""

import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from monarch_py.daemon.copies.idle import IdleCores
from monarch_py.daemon.fill.filler import Filler
from monarch_py.daemon.fill.unused import UnusedPrefetch
from monarch_py.native import NO_IDS, Ids, State, ffi, lib, pointer
from monarch_py.policies.placement import NOWHERE

# A directory is filled once NAMES of its files were read to their end. All below it is filled once
# files in NAMES of its subdirectories were.
NAMES = 4
# At most this many of the files read to their end between two turns are looked at: a few are enough
# to know a directory by.
LOOKS = 64
# Files that wait for their turn or are being filled, at most.
QUEUE = 4096
# Entries of the catalog that are looked at in one turn at most.
ENTRIES = 65536
# Copies give way for at least this much at once, so that it is not done for every file [bytes].
GIVEN_BYTES = 16 << 20
# When no tier has room, the tiers are asked again after this time [s].
FULL_S = 1.0
# For this long after an open, programs may soon use more of what was filled ahead [s].
AWAKE_S = 2.0

# The flag of an entry whose home is another node.
OF_OTHERS = int(lib.MONARCH_OF_OTHERS)
# The number of a source, and a directory relative to it, "" for its root.
Place = tuple[int, str]


class _Home(IntEnum):
    """Whose files: those of this node, which are all files where nodes do not share, or those of
    others."""

    HERE = 0
    ELSEWHERE = 1


@dataclass(slots=True)
class _Filled:
    """A directory that is filled.

    is_deep : with what lies below it;  at : by home, the first entry of the catalog that is still
    to be looked at
    """

    place: Place
    is_deep: bool
    at: list[int] = field(default_factory=lambda: [0, 0])

    def covers(self, place: Place) -> bool:
        """Whether files of this directory are filled with it."""
        source, directory = place
        if source != self.place[0]:
            return False
        above = self.place[1]
        return directory == above or (
            self.is_deep and (not above or directory.startswith(above + "/"))
        )


class Directories:
    """The directories that programs read through, found from the files that they read."""

    def __init__(self) -> None:
        self.filled: list[_Filled] = []  # the newest first
        self._files: defaultdict[Place, set[str]] = defaultdict(set)
        self._below: defaultdict[Place, set[str]] = defaultdict(set)

    def note(self, source: int, path: str) -> bool:
        """Notes a file that was read to its end. Returns whether one more directory is filled from
        now on."""
        above, name = os.path.split(path)
        if any(filled.covers((source, above)) for filled in self.filled):
            return False
        self._files[source, above].add(name)
        begun = len(self._files[source, above]) >= NAMES
        if begun:
            self._begin((source, above), is_deep=False)
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
    """Runs in turns of the daemon's loop; never waits, and does nothing for each single file.

    is_on : whether it does anything;  unused : files that it has had filled and nobody has opened
    """

    def __init__(self, filler: Filler, *, is_on: bool) -> None:
        self.filler, self.shared, self.is_on = filler, filler.shared, is_on
        self.unused = UnusedPrefetch(self.shared)
        self._directories = Directories()
        # Files of these directories whose turn has not come, by home.
        self._next: list[Ids] = [NO_IDS, NO_IDS]
        self._idle = IdleCores()
        self._ids = np.empty(QUEUE, dtype=np.uint64)
        self._full_until = self._opened_at = float("-inf")
        self._is_waiting = self._has_given_way = False
        # Files that were ordered so far; files that are being filled, or may be as soon as there is
        # time.
        self.ordered = self.waiting = 0
        self._is_followed = bool(self.shared.control.follow_opens)  # others have it on
        self.shared.control.follow_reads = is_on
        if is_on and filler.nodes is None:
            filler.give_way, filler.beside = self.give_way, self.unused.ordered

    @property
    def is_awake(self) -> bool:
        """Whether the loop should turn often: more is filled once programs have used what is there,
        and their opens of copies do not ring."""
        return self._is_waiting and time.monotonic() - self._opened_at < AWAKE_S

    # --- what programs read ---------------------------------------------------------------------

    def observe(self, opened: Ids, unmet: Ids) -> None:
        """Takes note of what programs have done since the last turn.

        opened : (n,) files that they have opened;  unmet : (m,) files that they had opened before
        the catalog knew them. Nobody has seen how these were read; small ones are taken to be read
        to their end
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
        # Descriptors of small files may still be on their way. Such a file is wanted here as well,
        # so that it has room before the files beside it.
        small = self.shared.catalog.entries["size"][read] <= self.shared.control.handed_bytes
        self.filler.requests.want(read[small])
        begun = False
        for entry in read[:: len(read) // LOOKS + 1].tolist():
            source = int(self.shared.catalog.entries["source"][entry])
            if self._directories.note(source, self.shared.catalog.path(entry)):
                begun, newest = True, self._directories.filled[0]
                self.filler.scanner.read_through(*newest.place, is_deep=newest.is_deep)
        if begun:
            self._put_back()

    # --- what is filled -------------------------------------------------------------------------

    def step(self) -> bool:
        """Orders what lies beside what programs read, as much as may lie there unused. Returns
        whether there is more to look at at once."""
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
        self.waiting = unsettled + len(taken) + len(self._next[_Home.HERE])
        return more

    def _may_fetch(self) -> bool:
        reads = self.filler.engine.pending(in_use=False, from_peers=False)
        return self._idle.has_one(time.monotonic()) and not reads

    def _take(self, most: int, home: _Home) -> Ids:
        """The next (n,) of the files that were found, as far as they may lie there unused. A file
        that is larger than all that may lie there is passed over: its own open fills it."""
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
            # All but the first go back: a large file does not keep those behind it waiting for
            # ever.
            self._next[home] = np.concatenate([ids[1:], self._next[home]])
            self._full_until = time.monotonic() + FULL_S
            return
        # Set before a copy is there, so that its first open is heard of.
        self.shared.control.follow_opens = True
        self.unused.order(ids[fits])
        self.filler.requests.fill_ahead(ids[fits])

    def _find(self, most: int, home: _Home) -> bool:
        """Goes on through the catalog until `most` files are found whose turn comes next. Returns
        whether more of the catalog is to be looked at."""
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
        """The next (n,) files of one directory, and how many entries were looked at."""
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
        """Drops copies that nobody has used, the last ones of the catalog first, for (n,) files
        that programs use and that have no room. Returns the files for which it did. From then on
        nothing more is filled ahead: the tiers have no room for it.

        A file gets this room when it is used for the second time. A program that reads all files,
        each once an epoch, comes to those that were filled ahead too; one that reads a part comes
        back to it.
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

    # --- once more ------------------------------------------------------------------------------

    def _put_back(self) -> None:
        """Puts files back that were found: another directory has its turn first."""
        for home, ids in enumerate(self._next):
            first = int(ids.min()) if len(ids) else lib.MONARCH_MAX_ENTRIES
            for filled in self._directories.filled:
                filled.at[home] = min(filled.at[home], first)
        self._next = [NO_IDS, NO_IDS]

    def look_again(self) -> None:
        """Starts again at the first entry of every directory. Files that were passed over because a
        command had asked for them are ABSENT again now that the command has taken this back, and
        can be filled ahead."""
        for filled in self._directories.filled:
            filled.at = [0, 0]
        self._next = [NO_IDS, NO_IDS]

    def clear(self) -> None:
        """Begins anew after every copy was dropped: only what programs read from now on counts."""
        self.unused.clear()
        self._directories, self._next = Directories(), [NO_IDS, NO_IDS]
        self._has_given_way = False

    def told(self) -> dict[str, int] | None:
        """For `status`: copies that were filled ahead and not used. None where none are."""
        if not self.is_on:
            return None
        ids, n_bytes = self.unused.copies()
        return {"unused_files": len(ids), "unused_bytes": n_bytes}
