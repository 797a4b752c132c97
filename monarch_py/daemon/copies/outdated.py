"""Finds and drops copies of files that have changed at the source, when a command asks for it."""

import logging
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import ENTRY, Array, Bools, Ids, Uints, pointer
from monarch_py.daemon.copies.copies import Copies
from monarch_py.daemon.scan.scanner import Scanner
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.native import Kind, Reason, State, lib

log = logging.getLogger("monarch.outdated")

# One call of `Outdated.look` compares entries with the source for at most this time [ns]. `monarch
# warm` repeats its command for the remaining entries.
LIMIT_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of comparing entries with the source.

    ids : (n,) the catalog entries that were compared
    words : (n,) the entries' words (state, tier and copy number) before the comparison
    found : (n,) the results, of enum monarch_compared
    fresh : (n,) of dtype ENTRY, the present attributes of files that have changed
    """

    ids: Ids
    words: Uints
    found: npt.NDArray[np.uint8]
    fresh: Array


class Outdated:
    """Compares catalog entries with the source, and drops the copies of files that have changed.
    Any thread may call `look`. Call all other methods only between two iterations of the daemon's
    loop."""

    def __init__(self, scanner: Scanner, copies: Copies) -> None:
        self.scanner, self.copies, self.shared = scanner, copies, scanner.shared
        # Changed files whose old copy is still being removed. Maps a file's entry to the number of
        # the old copy, and to the new attributes. After the removal, the attributes are written to
        # the entry.
        self._fresh: dict[int, tuple[int, Array]] = {}

    def look(self, catalog: CatalogReader, ids: Ids) -> Compared:
        """Compares the entries `ids`, which are files and directories, with the source, one after
        another. Stops after LIMIT_NS, but compares at least one entry. Returns the result for the
        entries that were compared."""
        words = catalog.words[ids].copy()
        found, fresh = np.zeros(len(ids), dtype=np.uint8), np.zeros(len(ids), dtype=ENTRY)
        roots = pointer(np.array([source.fd for source in self.scanner.sources]), np.int32)
        config = self.scanner.config
        limits = config.scan_threads, config.scan_ops_per_s or 0, LIMIT_NS
        told = pointer(found), pointer(fresh)
        n = lib.monarch_compare(catalog.c, roots, len(ids), pointer(ids), *limits, *told)
        return Compared(ids[:n], words[:n], found[:n], fresh[:n])

    def drop(self, compared: Compared) -> tuple[Ids, Ids]:
        """Drops the copies of files that have changed or are gone. Returns two arrays: the files
        that are ABSENT now and can be filled again, and the directories whose listing has
        changed."""
        catalog = self.shared.catalog
        kinds, states = catalog.entries["kind"][compared.ids], word.state(compared.words)
        directories = compared.ids[(kinds == Kind.DIR) & (compared.found != lib.MONARCH_SAME)]
        is_left = (states == State.BYPASS) & (word.reason(compared.words) == Reason.CHANGED)
        meant = (kinds == Kind.FILE) & (is_left | (states == State.PRESENT))
        meant &= is_left | (compared.found != lib.MONARCH_SAME)
        # Entries whose words have changed since the comparison are skipped, because another part of
        # the daemon has handled them meanwhile.
        meant &= catalog.words[compared.ids] == compared.words
        usable = meant & (compared.found != lib.MONARCH_GONE) & ~self._marked(compared)
        present = states == State.PRESENT
        lost = compared.ids[meant & ~usable & present]
        self.copies.forget(lost, State.BYPASS, Reason.CHANGED)
        self.copies.forget(compared.ids[usable & present], State.ABSENT)
        again, words = compared.ids[usable & is_left], compared.words[usable & is_left]
        catalog.set_words(again, word.make(State.ABSENT, 0, word.tier(words), word.copy(words)))
        for i in np.flatnonzero(usable & (compared.found == lib.MONARCH_REPLACED)).tolist():
            copy = int(word.copy(compared.words[i]))
            self._fresh[int(compared.ids[i])] = copy, compared.fresh[i : i + 1].copy()
        self.step()
        return compared.ids[usable], directories

    def _marked(self, compared: Compared) -> Bools:
        """Returns an array (n,): for each file, whether a client has changed it at the source in
        this session. Such a file gets no copy until the session ends."""
        is_replaced = compared.found == lib.MONARCH_REPLACED
        entries = self.shared.catalog.entries[compared.ids]
        inodes = np.where(is_replaced, compared.fresh["ino"], entries["ino"])
        control, clients = self.shared.control, self.shared.clients
        devices = [int(control.source[i].dev) for i in range(control.sources)]
        asked = zip(entries["source"].tolist(), inodes.tolist(), strict=True)
        marked = (lib.monarch_is_changed(clients, devices[source], ino) for source, ino in asked)
        return np.fromiter(marked, dtype=bool, count=len(inodes))

    def step(self) -> None:
        """Runs one iteration: updates the attributes of those entries whose old copy has been
        removed by now."""
        if not self._fresh:
            return
        catalog = self.shared.catalog
        ids = np.fromiter(self._fresh, dtype=np.uint64, count=len(self._fresh))
        for entry, copy in zip(ids.tolist(), word.copy(catalog.words[ids]).tolist(), strict=True):
            old, fresh = self._fresh[entry]
            if copy and copy == old:
                continue  # the old copy is being removed
            del self._fresh[entry]
            # If the entry already has another copy number, a new fill is in progress. That fill
            # updates the attributes.
            if not copy:
                self.copies.renew(entry, fresh)
