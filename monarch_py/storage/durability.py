"""Makes the copies of a persistent tier durable: syncs the tier, then commits rows to the manifest.

The manifest is a database with one row per copy. For each tier, one thread commits rows in batches.
The daemon's loop only passes rows to this thread.
"""

import logging
import os
import sqlite3
import threading
import time
from contextlib import ExitStack, closing

import numpy as np

from monarch_py.arrays import Array
from monarch_py.native import lib
from monarch_py.storage.manifest import DamagedManifestError, Manifest, Row, damage_told
from monarch_py.storage.tiers import Tier, remove_any
from monarch_py.util.threads import described, note_failure
from monarch_py.util.units import counted

log = logging.getLogger("monarch.keeper")

# The time [s] for which a row waits for more rows, before all of them are committed together. One
# sync then serves many copies.
BATCH_S = 1.0
# A damaged manifest is kept under its old name with this suffix.
SET_ASIDE = ".damaged"


class Keeper:
    """The manifest of one tier and the thread that writes it.

    The constructor opens the manifest and loads its rows. It raises TierError if the manifest
    cannot be used, and RuntimeError if no thread can be started.

    rows : the manifest's rows, an array of dtype manifest.ROW; empty after `take_rows`
    must_check : whether copies must be checked before they are served (the result of
        `Manifest.begin_use`)
    broken : whether a commit has failed, so that the manifest lacks the rows of some copies
    """

    def __init__(self, tier: Tier, block_size_bytes: int) -> None:
        self.tier = tier
        self._why_no_rows = "its manifest is empty or gone"
        self._lock = threading.Condition()
        self._add: list[Row] = []
        self._remove: list[int] = []
        self._ending = False
        self._trusted = True
        self.broken = False
        self._thread = threading.Thread(target=self._work, name="keeper", daemon=True)
        # The thread is started before `_open` marks the manifest as in use. Otherwise, if no thread
        # could be started, the mark would stay, and the next daemon would have to check all copies.
        self._thread.start()
        with ExitStack() as undo:
            undo.callback(self._end_thread)
            try:
                self._manifest = self._open(block_size_bytes)
            except DamagedManifestError as error:
                self._set_aside(error)
                self._manifest = self._open(block_size_bytes)
            undo.pop_all()

    def _open(self, block_size_bytes: int) -> Manifest:
        path = self.tier.root / "manifest.sqlite"
        with damage_told(path), ExitStack() as undo:
            manifest = undo.enter_context(closing(Manifest(path)))
            if manifest.block_size != block_size_bytes:
                # Checksums over blocks of different sizes cannot be compared. So if the block size
                # has changed, all rows are removed.
                if manifest.block_size:
                    self._why_no_rows = "block_size has changed"
                    manifest.change([], [int(n) for n in manifest.load()["copy"]])
                manifest.set_block_size(block_size_bytes)
            self.must_check = manifest.begin_use()
            if self.must_check:
                manifest.check()
            self.rows: Array = manifest.load()
            self.sources = dict(manifest.sources)
            undo.pop_all()
        return manifest

    def _set_aside(self, error: DamagedManifestError) -> None:
        """Renames the damaged manifest, so that it can be examined later. Keeps only the latest
        one: a disk that damages files again and again must not fill up with damaged manifests."""
        path = self.tier.root / "manifest.sqlite"
        for file in tuple(path.parent.glob(path.name + "*")):
            if file.name.endswith(SET_ASIDE):
                continue
            kept = file.with_name(file.name + SET_ASIDE)
            remove_any(kept)
            file.rename(kept)
        self._why_no_rows = (
            f"its manifest was damaged ({error.why}) and is kept as {path}{SET_ASIDE}"
        )

    def reconcile(self) -> None:
        """Makes the tier and its manifest agree. Removes copies without a row, and rows without a
        copy. Removes a copy together with its row if the two do not match, or if the quota has no
        room for the copy. If copies were lost, stores a message in the Tier object
        (`note_lost`)."""
        listed = self.tier.listing()
        known = np.isin(listed["number"], self.rows["copy"])
        self.tier.remove_all(listed["number"][~known])
        gone = ~np.isin(self.rows["copy"], listed["number"])
        self.remove(self.rows["copy"][gone].tolist())
        rows = np.sort(self.rows[~gone], order="copy")
        found = listed[np.searchsorted(listed["number"], rows["copy"])]
        rows["copy_ino"] = found["inode"]
        wrong = ~found["is_sound"] | (found["size"] != rows["size"])
        self._drop(rows["copy"][wrong])
        self._tell(len(listed) - int(known.sum()), int(gone.sum()), int(wrong.sum()))
        rows = rows[~wrong]
        over = np.cumsum(self.tier.rounded_all(rows["size"])) > self.tier.quota_for_copies()
        self._drop(rows["copy"][over])
        self.rows = rows[~over]
        self.tier.adopt(self.rows["size"])

    def _tell(self, debris: int, gone: int, wrong: int) -> None:
        # A killed daemon may have removed copies, but not yet their rows. So a row without a copy
        # is a loss only if the last daemon ended cleanly.
        lost = wrong + (0 if self.must_check else gone)
        if debris and not len(self.rows):
            copies = f"its {counted(debris, 'copy')} {'is' if debris == 1 else 'are'}"
            what = f"{self._why_no_rows}, so {copies} removed and made again"
        elif lost:
            what = (
                f"{lost} of {len(self.rows)} copies do not match the manifest (missing, truncated"
                " or replaced) and are made again"
            )
        else:
            return
        self.tier.note_lost(what)

    def _drop(self, numbers: Array) -> None:
        """Removes copies and their rows."""
        self.tier.remove_all(numbers)
        self.remove(numbers.tolist())

    def take_rows(self) -> Array:
        """Returns `rows` and forgets them, because they are large and needed only once."""
        rows, self.rows = self.rows, self.rows[:0]
        return rows

    def add(self, rows: list[Row]) -> None:
        with self._lock:
            self._add += rows
            self._lock.notify()

    def remove(self, copies: list[int]) -> None:
        with self._lock:
            self._remove += copies
            self._lock.notify()

    def distrust(self) -> None:
        """Makes the next daemon check all copies. Call this method if this daemon ends before it
        has checked all copies that it had to check."""
        self._trusted = False

    def _work(self) -> None:
        while True:
            try:
                if not self._commit_next():
                    return
            except (OSError, sqlite3.Error) as error:
                self._fail(str(error))
            # The thread must continue after any error, such as a MemoryError. If it ended, no more
            # copies would be recorded, and nobody would notice.
            except Exception as error:
                note_failure(error)
                self._fail(described(error))
                with self._lock:
                    self._add.clear()
                time.sleep(BATCH_S)

    def _commit_next(self) -> bool:
        """Waits for rows and commits them; does not wait once `end` was called. Returns False if
        there are no rows left, so that the thread can end."""
        with self._lock:
            while not (self._add or self._remove or self._ending):
                self._lock.wait()
            if not self._ending:
                self._lock.wait(BATCH_S)
            add, self._add = self._add, []
            remove, self._remove = self._remove, []
            if not (add or remove):
                return False
        if self.tier.gone:
            return True
        error = lib.monarch_syncfs(self.tier.fd) if add else 0
        if error:
            raise OSError(-error, os.strerror(-error))
        gone = set(remove)
        self._manifest.change([row for row in add if row.copy not in gone], remove)
        return True

    def _fail(self, why: str) -> None:
        """Records that some rows could not be committed. This session still serves the copies that
        lack a row, but the next session removes them."""
        if not self.broken:
            self.tier.note_unrecorded(why)
        self.broken = True

    def _end_thread(self) -> None:
        """Ends the thread, after it has committed the waiting rows."""
        with self._lock:
            self._ending = True
            self._lock.notify()
        self._thread.join()

    def end(self) -> None:
        """Commits the waiting rows, and closes the manifest. Unless a commit has failed or the tier
        is gone, records a clean end in the manifest."""
        self._end_thread()
        try:
            if not self._trusted and not self.tier.gone:
                self._manifest.keep_unchecked()
            if not (self.broken or self.tier.gone):
                self._manifest.end_use()
        except sqlite3.Error as error:
            log.warning("tier %s: the manifest could not be closed: %s", self.tier.root, error)
        self._manifest.close()
