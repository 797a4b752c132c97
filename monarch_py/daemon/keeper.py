"""Makes copies of a persistent tier durable: sync the tier, then commit the manifest, in batches.

One thread per tier owns the manifest; the daemon's loop only hands it rows.
"""

import logging
import os
import sqlite3
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.manifest import DamagedManifestError, Manifest, Row, damage_told
from monarch_py.native import lib
from monarch_py.tiers import Tier

__all__ = ["Keeper"]

log = logging.getLogger("monarch.keeper")

# Rows wait at most this long for their commit, so that one sync serves many copies [s].
BATCH_S = 1.0


class Keeper:
    """Manifest of one tier. Opens it (TierError) and loads what it claims.

    rows : (copies,) of manifest.ROW, until `validate` has taken them; must_check : see Manifest.
    """

    def __init__(self, tier: Tier, block_size_bytes: int) -> None:
        self.tier = tier
        try:
            self._open(block_size_bytes)
        except DamagedManifestError as error:
            log.warning("%s; the copies of this tier are made anew", error)
            for path in tier.root.glob("manifest.sqlite*"):
                path.unlink()
            self._open(block_size_bytes)
        self._lock = threading.Condition()
        self._add: list[Row] = []
        self._remove: list[int] = []
        self._ending = False
        self._trusted = True
        self.broken = False
        self._thread = threading.Thread(target=self._work, name="keeper", daemon=True)
        self._thread.start()

    def _open(self, block_size_bytes: int) -> None:
        path = self.tier.root / "manifest.sqlite"
        with damage_told(path):
            self._manifest = Manifest(path)
            if self._manifest.block_size != block_size_bytes:
                # Sums over other blocks say nothing about these.
                if self._manifest.block_size:
                    log.info(
                        "tier %s: block_size has changed; its copies are made anew", self.tier.root
                    )
                    rows = self._manifest.load()
                    self._manifest.change([], [int(n) for n in rows["copy"]])
                self._manifest.set_block_size(block_size_bytes)
            self.must_check = self._manifest.begin_use()
            self.rows: npt.NDArray[Any] = self._manifest.load()
            self.sources = dict(self._manifest.sources)

    def reconcile(self) -> None:
        """Drops debris (files without a row) and rows whose file is gone or beyond the quota."""
        listed = self.tier.listing()
        debris = ~np.isin(listed["number"], self.rows["copy"])
        for number in listed["number"][debris].tolist():
            self.tier.remove(number)
        gone = ~np.isin(self.rows["copy"], listed["number"])
        self.remove(self.rows["copy"][gone].tolist())
        rows = np.sort(self.rows[~gone], order="copy")
        rows["copy_ino"] = listed["inode"][np.searchsorted(listed["number"], rows["copy"])]
        over = np.cumsum(self.tier.rounded_all(rows["size"])) > self.tier.quota_for_copies()
        for number in rows["copy"][over].tolist():
            self.tier.remove(number)
        self.remove(rows["copy"][over].tolist())
        self.rows = rows[~over]
        self.tier.adopt(self.rows["size"])

    def add(self, rows: list[Row]) -> None:
        with self._lock:
            self._add += rows
            self._lock.notify()

    def remove(self, copies: list[int]) -> None:
        with self._lock:
            self._remove += copies
            self._lock.notify()

    def distrust(self) -> None:
        """Copies are left whose check has not ended: the next daemon checks all again."""
        self._trusted = False

    def waiting(self) -> int:
        with self._lock:
            return len(self._add) + len(self._remove)

    def _work(self) -> None:
        while True:
            with self._lock:
                while not (self._add or self._remove or self._ending):
                    self._lock.wait()
                if not self._ending:
                    self._lock.wait(BATCH_S)
                add, remove, ending = list(self._add), list(self._remove), self._ending
                if not (add or remove):
                    if ending:
                        return
                    continue
            self._commit(add, remove)
            with self._lock:
                self._add = self._add[len(add) :]
                self._remove = self._remove[len(remove) :]

    def _commit(self, add: list[Row], remove: list[int]) -> None:
        add, remove = list(add), list(remove)
        try:
            error = lib.monarch_syncfs(self.tier.fd) if add else 0
            if error:
                raise OSError(-error, os.strerror(-error))
            gone = set(remove)
            self._manifest.change([row for row in add if row.copy not in gone], remove)
        except (OSError, sqlite3.Error) as error:
            # The copies serve this session all the same; they are debris to the next.
            if not self.broken:
                log.warning("tier %s: copies are not kept: %s", self.tier.root, error)
            self.broken = True

    def end(self) -> None:
        """Commits what waits and notes a clean end."""
        with self._lock:
            self._ending = True
            self._lock.notify()
        self._thread.join()
        try:
            if not self._trusted:
                self._manifest.keep_unchecked()
            if not self.broken:
                self._manifest.end_use()
        except sqlite3.Error as error:
            log.warning("tier %s: the manifest could not be closed: %s", self.tier.root, error)
        self._manifest.close()
