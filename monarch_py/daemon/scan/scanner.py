"""Adds files to the catalog: the files that scans find, and those that clients open.

Also finds the copies of these files from earlier sessions, which the tiers' manifests list.
"""

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import ENTRY, Array, Ids, pointer
from monarch_py.config.schema import Config
from monarch_py.daemon.scan.source import Source
from monarch_py.daemon.scan.unlisted import Path, UnlistedFiles
from monarch_py.daemon.segments import Shared
from monarch_py.ipc import word
from monarch_py.native import Kind, Reason, State, ffi, lib
from monarch_py.scan.record import Listed, Scan, Scanned
from monarch_py.scan.walk import ALL_NAMES
from monarch_py.storage.opening import OpenTiers

log = logging.getLogger("monarch.scanner")

# At most this many batches are processed in one iteration of the daemon's loop, so that requested
# files do not wait for a long scan.
BATCHES_A_TURN = 8
# Once programs have opened this many files in a directory, the directory is listed before others.
# It does not matter how much of each file is read. With `scan: lazy`, only these directories are
# listed, and those that a command or a plan requests.
NAMES = 4
# Between two iterations, the engine may add many opened files to the catalog. At most this many of
# them are examined, to count the opens in each directory.
LOOKS = 64
# While many of the files that the scan finds have copies of earlier sessions, the scan runs without
# a limit. The limit returns once the files without such a copy outnumber the files with one by more
# than MISSES.
MISSES = 256
# This long after the end of a scan [s], the catalog's memory is reduced to what it needs. This
# takes 5 ms of processor time for 20,000 files. The scan often ends together with the first epoch.
# Because of the delay, the work does not fall into a short second epoch.
FIT_AFTER_S = 5.0
# Opens are counted for at most this many directories. When a further directory is to be counted,
# all counts are reset.
MOST_COUNTED = 65536


# A file that was examined at the source: its source, its new catalog entry (1,), the memory that
# contains its path, and how many directories programs had renamed before the examination.
Seen = tuple[Source, Array, Any, int]
# Copies of earlier sessions that match their files, all in one tier: the files' entries, the
# copies' rows of the manifest, and the tier's number.
Adopted = tuple[Ids, Array, int]


class Validator:
    """Matches the rows of one tier's manifest with the files that the scan finds."""

    def __init__(
        self, tier_number: int, rows: Array, known: dict[str, int], sources: list[Source]
    ) -> None:
        """Prepares the rows of one tier's manifest for `match`.

        known : the manifest's rows identify a source by a number; this maps the source's path to it
        """
        self.tier_number = tier_number
        here = {str(source.config.real_path): source.number for source in sources}
        numbers = {n: here.get(path, -1) for path, n in known.items()}
        owner = np.array([numbers.get(int(n), -1) for n in rows["source"]], dtype=np.int64)
        self.foreign = rows[owner < 0]
        self.rows, owner = rows[owner >= 0], owner[owner >= 0]
        mixes = np.array(
            [lib.monarch_path_hash(s.number, b"", 0) for s in sources], dtype=np.uint64
        )
        empty = np.uint64(lib.monarch_xxh3_of(b"", 0))
        self.hashes = self.rows["hash"] ^ mixes[owner] ^ empty
        order = np.argsort(self.hashes, kind="stable")
        self.rows, self.hashes = self.rows[order], self.hashes[order]
        self.matched = np.zeros(len(self.rows), dtype=bool)
        self.left = len(self.rows)  # the number of manifest rows that have matched no file yet

    def match(self, entries: Array) -> tuple[npt.NDArray[np.intp], Array]:
        """Returns which of these entries have a copy in the tier, as indices into `entries`. Also
        returns the manifest's rows of these copies."""
        none = np.zeros(0, dtype=np.intp)
        if not len(self.rows):
            return none, self.rows[:0]
        # If a file has two copies, the newer copy is used. A daemon that ends before it has removed
        # a file's older copy leaves two copies behind.
        at = np.maximum(np.searchsorted(self.hashes, entries["hash"], side="right") - 1, 0)
        rows = self.rows[at]
        same = (self.hashes[at] == entries["hash"]) & (entries["kind"] == Kind.FILE)
        same &= ~self.matched[at]
        for field in ("size", "ino", "mtime_ns", "ctime_ns"):
            same &= rows[field] == entries[field]
        found = np.flatnonzero(same)
        self.matched[at[found]] = True
        self.left -= len(found)
        return found, rows[found]

    def rest(self) -> Array:
        """Returns the manifest's rows that have matched no file, because their files are gone or
        were replaced."""
        return self.rows[~self.matched]


class Scanner:
    """Drives the scans of all sources, one after the other, in the daemon's loop.

    told : the record of the scan that one node has made for all nodes; None if this daemon scans
        the sources itself
    """

    def __init__(
        self, config: Config, shared: Shared, open_tiers: OpenTiers, told: Scanned | None
    ) -> None:
        # `began` is the time at which the scan began, as a value of time.monotonic() [s].
        record, self.began = told or (None, time.monotonic())
        self._began_ns = time.time_ns()
        self.config, self.shared = config, shared
        self.tiers, self.keepers = open_tiers.tiers, open_tiers.keepers
        self.memory_room = open_tiers.memory_room
        is_lazy = config.scan == "lazy" and record is None
        listed: Sequence[Listed | None] = record or [None] * len(config.sources)
        self.sources = [
            Source(i, source, listed[i], is_lazy=is_lazy) for i, source in enumerate(config.sources)
        ]
        self._adopted: list[Adopted] = []
        # How many files were compared with the manifests, and how many of them had a copy.
        self._compared = self._matched = 0
        self.validators = [
            Validator(i, keeper.take_rows(), keeper.sources, self.sources)
            for i, keeper in self.keepers.items()
        ]
        # For each tier, the manifest's rows of copies from earlier sessions that are to be dropped.
        # Foreign copies belong to datasets that are not configured. Stale copies belong to files
        # that are gone or were replaced. Only the complete scan shows which copies are stale.
        self.foreign = {v.tier_number: v.foreign for v in self.validators}
        self.stale: dict[int, Array] = {}
        self._is_in_a_hurry = False  # whether a plan or a command waits for requested listings
        self._allowed = ALL_NAMES  # how many names the scan may examine, see `allow`
        self._known = 0  # the number of entries that `note_met` or `_insert` has handled
        self.has_more = False  # whether work is left, so that the loop must not sleep
        self.full = False  # whether shared memory has no room for more entries
        self._stuck: dict[int, int] = {}
        self._current: Source | None = None
        self._fit_at_s = math.inf  # when the catalog is shrunk, as a value of time.monotonic() [s]
        # For each directory: how often programs have opened files in it that were not in the
        # catalog.
        self._opened: Counter[Path] = Counter()
        # For each directory: the number of its subdirectories whose listing was requested because
        # programs read files in them.
        self._asked: Counter[Path] = Counter()
        self._unlisted = UnlistedFiles(self.look, shared.ring)
        # Files that were perhaps renamed after the scan had examined them.
        self._doubtful = UnlistedFiles(self.look, shared.ring)

    @property
    def scanned(self) -> bool:
        """Whether all requested listings are complete. Unless the scan is lazy, the listings of all
        directories are requested."""
        return all(source.scanned for source in self.sources)

    @property
    def is_settled(self) -> bool:
        """Whether the scan has ended and `_fit` has reduced the catalog's memory to what it needs.
        Until then, the catalog may need more memory: for new entries, or for a second segment to
        which `_fit` copies the entries."""
        return self.scanned and self._fit_at_s == math.inf

    @property
    def is_whole(self) -> bool:
        """Whether all files of all sources are known."""
        return all(source.is_whole for source in self.sources)

    @property
    def met_by_engine(self) -> int:
        """A bit mask of the sources whose files the engine may add to the catalog on its own, when
        programs hand over descriptors. There are three conditions. The configuration excludes none
        of the source's files. No tier can have copies from an earlier session. Shared memory has
        room for more entries."""
        if self.full or any(len(validator.rows) for validator in self.validators):
            return 0
        return sum(1 << source.number for source in self.sources if source.takes_all)

    def add(self, config: Config) -> Source:
        """Adds a source while the daemon runs: the last source in the list of `config`. Raises
        OSError if the source's root cannot be opened."""
        number, is_lazy = len(self.sources), config.scan == "lazy"
        source = Source(number, config.sources[number], None, is_lazy=is_lazy)
        self.config = config
        self.sources.append(source)
        for tier, rows in self.foreign.items():
            found = Validator(tier, rows, self.keepers[tier].sources, self.sources)
            self.foreign[tier] = found.foreign
            self.validators.append(found)
        self.shared.control.scanned = 0
        self.has_more = True
        return source

    def ask_for(self, number: int, directory: str, *, is_deep: bool, is_read: bool = True) -> None:
        """Requests the listing of a directory of a source, unless it was requested before.

        is_deep : whether all its subdirectories are listed too
        is_read : whether programs read the directory. If so, it is listed before others. Once
            programs have read NAMES subdirectories of one directory, that directory is listed too,
            with everything below it
        """
        if number >= len(self.sources) or directory.startswith("/"):
            return
        source = self.sources[number]
        if not source.ask_for(directory, is_deep=is_deep, is_read=is_read):
            return
        self.has_more = True
        if is_read and directory:
            above = number, os.path.dirname(directory)
            if self._reaches_names(self._asked, above):
                self.ask_for(*above, is_deep=True)

    def read_through(self, number: int, directory: str, *, is_deep: bool) -> None:
        """Requests the listing of a directory whose files programs read one after the other. With
        `is_deep`, requests the listings of all its subdirectories too. With `scan: lazy`, a call
        with `is_deep` does nothing: `ask_for` itself requests all subdirectories once programs have
        read NAMES of them."""
        if not is_deep or self.config.scan == "full":
            self.ask_for(number, directory, is_deep=is_deep)

    @property
    def finds_copies(self) -> bool:
        """Whether the scan is likely to find more files that have copies of earlier sessions. If
        so, it should not be slowed down. Each such copy saves a read of the source, but only after
        the scan has found its file."""
        left = any(validator.left for validator in self.validators)
        return left and self._compared <= 2 * self._matched + MISSES

    def hurry(self) -> None:
        """Notes that a plan or a command waits for the requested listings."""
        self._is_in_a_hurry = True

    @property
    def is_in_a_hurry(self) -> bool:
        self._is_in_a_hurry &= not self.scanned
        return self._is_in_a_hurry

    def ask_for_all(self) -> None:
        self.hurry()
        for source in self.sources:
            self.ask_for(source.number, "", is_deep=True, is_read=False)

    def has_unmet(self, tier_number: int) -> bool:
        """Whether a tier may have copies of earlier sessions that are not processed yet. Such a
        copy's file may not be scanned yet, may belong to a dataset that is not configured
        (`take_foreign`), or may be gone or replaced (`take_stale`)."""
        left = self.foreign.get(tier_number, ()), self.stale.get(tier_number, ())
        return not self.is_whole or any(map(len, left))

    @property
    def found(self) -> int:
        """The number of entries that scans have found so far."""
        return sum(source.found for source in self.sources)

    def allow(self, wanted: int, more_others: int) -> None:
        """Sets how many names the scan may examine, with the arguments of `Walk.allow`. There is
        one exception, because sources are scanned one after the other. Programs may read a source
        that waits for its scan, but not the source that is being scanned. The present scan then
        gets no limit, and soon makes way for the next one."""
        current = self._current
        is_in_the_way = (
            current is not None
            and not current.is_read
            and any(source.is_read for source in self.sources if source.is_asked)
        )
        self._allowed = ALL_NAMES if is_in_the_way else (wanted, more_others)
        if current is not None and current.scan is not None:
            current.scan.allow(*self._allowed)

    def note_met(self) -> None:
        """Counts, for each directory, the files that the engine has added to the catalog since the
        last iteration. Programs have opened each of them. Of more than LOOKS files, only a sample
        is counted."""
        met = range(self._known, len(self.shared.catalog))
        self._known = met.stop
        # Opens are counted to choose which directories are listed first. Once all directories are
        # listed, there is nothing to choose.
        if not self.is_whole:
            looked_at = np.array(met[:: len(met) // LOOKS + 1], dtype=np.uint64)
            for place, names in self.shared.catalog.by_directory(looked_at).items():
                self._note_opened(*place, len(names))

    # --- the scan -----------------------------------------------------------------------------

    def take_foreign(self) -> dict[int, Array]:
        """Returns and forgets the foreign copies: for each tier number, their rows (n,) of the
        manifest. Foreign copies belong to datasets that are not configured."""
        foreign, self.foreign = self.foreign, {}
        return foreign

    def take_stale(self) -> dict[int, Array]:
        """Returns and forgets the stale copies: for each tier number, their rows (n,) of the
        manifest. The file of a stale copy is gone or was replaced."""
        stale, self.stale = self.stale, {}
        return stale

    def take_adopted(self) -> list[Adopted]:
        """Returns the copies of earlier sessions that have been matched with their files since the
        last call."""
        adopted, self._adopted = self._adopted, []
        return adopted

    def step(self) -> None:
        """Runs one iteration."""
        self.note_met()
        self._take_doubtful()
        self.has_more = False
        for _ in range(BATCHES_A_TURN):
            source = self._source_to_scan()
            if source is None or source.scan is None:
                break
            batch = source.take_batch()
            if batch is not None:
                self._insert(source, batch.entries, batch.pool, batch.renames)
            elif source.scan.is_finished:
                self._end(source, source.scan)
            else:
                break  # the scan's threads wake the loop when they have found more
        else:
            self.has_more = True
        if time.monotonic() >= self._fit_at_s:
            self._fit()
        meets_all = self._current is not None and self._current.becomes_whole
        # `scan_meets_all` tells clients that they need not report opened files that the scan has
        # not found yet. With `on_demand`, they must, because the daemon fills only files that
        # clients have opened.
        needs_messages = self.config.prefetch == "on_demand"
        self.shared.control.scan_meets_all = meets_all and not needs_messages

    def _source_to_scan(self) -> Source | None:
        if self._current is None:
            self._current = next((s for s in self.sources if s.is_asked), None)
            if self._current is not None:
                bell = ffi.addressof(self.shared.clients, "doorbell")
                known = self.shared.catalog.writer, self.shared.clients, self._began_ns
                if not self._current.begin(self.config, bell, known, self._allowed):
                    self._current = None
        return self._current

    def _end(self, source: Source, scan: Scan) -> None:
        was_whole = self.is_whole
        source.end(scan)
        self._current = None
        if self.is_whole and not was_whole:
            self._finish()

    def _finish(self) -> None:
        self._fit_at_s = time.monotonic() + FIT_AFTER_S
        for found in self.validators:
            left = self.stale.get(found.tier_number, found.rows[:0])
            self.stale[found.tier_number] = np.concatenate([left, found.rest()])
        self.validators = []
        self.shared.control.scanned = 1

    def _fit(self) -> None:
        self._fit_at_s = math.inf
        try:
            self.shared.catalog.fit()
        except OSError as error:
            log.info("the catalog cannot be shrunk, and so keeps unneeded memory: %s", error)

    def _insert(self, source: Source, entries: Array, pool: Any, renames: int) -> None:
        """Adds new files to the catalog, and finds their copies from earlier sessions. Files that
        the configuration excludes get the state BYPASS. If a directory was renamed after the files
        were examined, their paths may be wrong. Then all of the files get the state BYPASS, and are
        looked up again.

        pool : the C array that contains the paths of the files
        renames : how many directories had been renamed before the files were examined
        """
        catalog = self.shared.catalog
        if self.full:
            return
        before = len(catalog)

        def path(entry: Any) -> str:
            return os.fsdecode(ffi.buffer(pool + int(entry["path"]), int(entry["path_len"]))[:])

        out = source.excluded(entries, path) & (entries["word"] == 0)
        entries["word"][out] = word.make(State.BYPASS, Reason.EXCLUDED)
        try:
            catalog.add(entries, pool)
        except OSError as error:
            self.full = True
            log.warning(
                "shared memory is full (%s): the catalog has room for only %d names, and the source"
                " serves all other files; make /dev/shm larger, or set MONARCH_SHM to a larger file"
                " system",
                error,
                len(catalog),
            )
            return
        self._known = len(catalog)
        new = np.arange(before, self._known, dtype=np.uint64)
        if int(self.shared.clients.renames) != renames:
            absent = new[catalog.states(new) == State.ABSENT]
            catalog.set_state(absent, State.BYPASS, Reason.CHANGED)
            self._doubtful.add((source.number, catalog.path(entry)) for entry in absent)
        self._validate(new[catalog.states(new) == State.ABSENT])

    def _take_doubtful(self) -> None:
        """Processes the files that were looked up again. Each file that was found at its path again
        gets the state ABSENT."""
        catalog = self.shared.catalog
        for path, (_, found, _, renames) in self._doubtful.take_answers():
            entry = self.find(*path)
            if int(self.shared.clients.renames) != renames:
                self._doubtful.add([path])
            elif entry >= 0 and catalog.entries["ino"][entry] == found["ino"][0]:
                ids = np.array([entry], dtype=np.uint64)
                catalog.set_state(ids, State.ABSENT)
                self._validate(ids)
        self._doubtful.ask(is_scanned=True)

    def _validate(self, ids: Ids) -> None:
        if self.validators:
            self._compared += int((self.shared.catalog.entries["kind"][ids] == Kind.FILE).sum())
        for validator in self.validators:
            if not len(ids):
                break
            at, rows = validator.match(self.shared.catalog.entries[ids])
            if len(at):
                self._adopted.append((ids[at], rows, validator.tier_number))
                self._matched += len(at)
                ids = np.delete(ids, at)

    # --- single files ------------------------------------------------------------------------

    def take_hints(self) -> Ids:
        """Processes the files that were not in the catalog when clients opened them. If such a file
        is worth a copy, a thread looks it up at the source. Returns the entries of the files that
        are in the catalog by now, so that they can be filled."""
        self.note_met()
        told = self.shared.scan_hints(self._stuck)
        for number, opened in told:
            self._note_opened(number, os.path.dirname(opened))
        self._unlisted.add(path for path, is_read in told.items() if is_read)
        wanted = self._unlisted.take_met(self.find, is_scanned=self.scanned)
        for path, seen in self._unlisted.take_answers():
            entry = self.find(*path)
            if entry < 0:
                entry = self.meet(seen)
            if entry >= 0:
                wanted.append(entry)
        self._unlisted.ask(is_scanned=self.scanned)
        return np.array(wanted, dtype=np.uint64)

    def find(self, number: int, path: str) -> int:
        return self.shared.catalog.find(number, path) if number < len(self.sources) else -1

    def look(self, number: int, path: str) -> Seen | None:
        """Examines one file at the source. Returns None if there is no file at the path. May take
        long. Any thread may call this method, because it does not use the catalog."""
        if number >= len(self.sources) or not path or path.startswith("/"):
            return None
        renames = int(self.shared.clients.renames)
        source = self.sources[number]
        full = source.config.real_path / path
        # Only the canonical path is accepted, which the scan would use too. If a symbolic link
        # leads to a file, the file has its entry under its canonical path.
        try:
            if os.path.realpath(full) != str(full):
                return None
        except OSError:  # the link was removed while it was resolved
            return None
        raw = os.fsencode(path)
        entries = np.zeros(1, dtype=ENTRY)
        pool = ffi.new("char[]", len(raw) + 1)
        ffi.memmove(pool, raw, len(raw))
        if self.stat_entry(source, raw, entries) != 0 or entries["kind"][0] != Kind.FILE:
            return None
        entries["path_len"] = len(raw)
        return source, entries, pool, renames

    def meet(self, seen: Seen) -> int:
        """Adds a new file to the catalog. Returns the file's entry, or -1 if it was not added."""
        known = len(self.shared.catalog)
        self._insert(*seen)
        return known if len(self.shared.catalog) > known else -1

    def meet_read(self, source: Source, entries: Array, pool: Any, renames: int) -> Ids:
        """Processes files that programs have read. Adds those that are not in the catalog yet, as
        `_insert` does. Returns the entries of those that are in the catalog now.

        pool : the C array that contains the paths of the files
        """
        paths = [os.fsdecode(ffi.string(pool + int(offset))) for offset in entries["path"].tolist()]
        for path in paths:
            self._note_opened(source.number, os.path.dirname(path))
        self._insert(source, entries, pool, renames)
        found = [self.find(source.number, path) for path in paths]
        return np.array([entry for entry in found if entry >= 0], dtype=np.uint64)

    def _note_opened(self, number: int, directory: str, files: int = 1) -> None:
        """Records that programs have opened files of a directory before these files were in the
        catalog. Once there have been NAMES such files, requests the directory's listing.

        files : how many more such files there are
        """
        if not self.is_whole and self._reaches_names(self._opened, (number, directory), files):
            self.ask_for(number, directory, is_deep=False)

    @staticmethod
    def _reaches_names(counted: Counter[Path], place: Path, more: int = 1) -> bool:
        """Adds `more` to a directory's count. Returns whether the count has reached NAMES now, but
        had not reached it before."""
        if len(counted) == MOST_COUNTED:
            counted.clear()
        counted[place] += more
        return counted[place] - more < NAMES <= counted[place]

    @staticmethod
    def stat_entry(source: Source, path: bytes, entry: Array) -> int:
        """Writes a file's attributes to entry[0]; returns 0 or -errno."""
        target, e = ffi.new("char[]", 4096), pointer(entry)
        return int(lib.monarch_stat_entry(source.fd, source.number, path, e, target, 4096))

    def close(self, limit_s: float) -> int:
        """Ends the scan's threads. Returns how many threads did not end within limit_s."""
        self._unlisted.close()
        self._doubtful.close()
        left = 0
        for source in self.sources:
            if source.scan is not None:  # at most one source is being scanned
                left += source.scan.close(limit_s)
        return left
