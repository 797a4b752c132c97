"""The manifest of a persistent tier: an SQLite table of its complete copies, on the tier itself.

A row is written only after the tier was synced, so a copy with a row is on the disk. It may still
be damaged if the last daemon was killed or the machine was rebooted. Each copy is then checked
before it is served.
"""

import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import Array
from monarch_py.errors import TierError
from monarch_py.native import path_hash
from monarch_py.util.processes import boot_id

VERSION = 1
# SQLite's integers are signed. `number & MASK` turns a signed number into the unsigned number with
# the same 64 bits. The function `signed` does the reverse.
MASK = (1 << 64) - 1

# One row, as `Validator` (daemon/scan/scanner.py) reads it. hash: XXH3-64 of the path alone,
# without the source's number. source: a number in Manifest.sources. copy_ino: the inode number of
# the copy itself, which is not in the manifest; `Keeper.reconcile` takes it from the directory.
ROW = np.dtype(
    [
        ("hash", "u8"),
        ("copy", "u8"),
        ("size", "u8"),
        ("ino", "u8"),
        ("mtime_ns", "i8"),
        ("ctime_ns", "i8"),
        ("sum", "u8"),
        ("source", "u4"),
        ("copy_ino", "u8"),
    ]
)

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sources (id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS copies (
    copy INTEGER PRIMARY KEY,      -- number, which is its file's name in hexadecimal
    source INTEGER NOT NULL REFERENCES sources (id),
    path BLOB NOT NULL,            -- relative to the source
    path_hash INTEGER NOT NULL,    -- XXH3-64, as a signed number
    size INTEGER NOT NULL,         -- bytes
    ino INTEGER NOT NULL,          -- of the source file, like the two times
    mtime_ns INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    sum INTEGER NOT NULL,          -- XXH3-64 of the block sums
    block_size INTEGER NOT NULL,
    blocks BLOB NOT NULL           -- XXH3-64 of every block, 8 bytes each, little-endian
);
"""


def signed(value: int) -> int:
    """Returns the signed number with the same 64 bits as `value`, because SQLite's integers are
    signed."""
    return value - (1 << 64) if value >= 1 << 63 else value


@dataclass(frozen=True, slots=True)
class Row:
    """One complete copy, ready to be recorded."""

    copy: int
    source: str
    path: bytes
    size: int
    ino: int
    mtime_ns: int
    ctime_ns: int
    sum: int
    block_size: int
    blocks: bytes

    def values(self, source: int) -> tuple[Any, ...]:
        of_source = self.size, self.ino, self.mtime_ns, self.ctime_ns
        numbers = path_hash(self.path), *of_source, self.sum
        first, last = (self.copy, source, self.path), (self.block_size, self.blocks)
        return *first, *map(signed, numbers), *last


# SQLite's messages for errors after which the manifest may still be intact. In these cases, another
# process uses the manifest, memory is short, or the disk has failed. Any other error counts as
# damage to the file's content. Messages are compared, because Python before version 3.11 does not
# provide SQLite's error codes.
NOT_THE_FILE = (
    "access permission denied",
    "attempt to write a readonly database",
    "database is locked",
    "database or disk is full",
    "database table is locked",
    "disk I/O error",
    "out of memory",
    "unable to open database file",
)
HINT = (
    "`monarch start` sets it aside and makes the copies again; `monarch clear` removes the copies"
)


class DamagedManifestError(TierError):
    """The manifest's file cannot be used as a manifest, and trying again cannot help.

    why : what is wrong with the file, without its path
    """

    def __init__(self, path: Path, why: object) -> None:
        super().__init__(f"{path}: the manifest is damaged ({why}); {HINT}")
        self.why = str(why)


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Inside a `with` statement, turns SQLite's errors and errors from malformed rows into
    TierError or DamagedManifestError. `path` is the manifest's path."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if str(error) in NOT_THE_FILE:
            raise TierError(f"{path}: the manifest cannot be used ({error})") from error
        raise DamagedManifestError(path, error) from error
    except (sqlite3.DatabaseError, TypeError, ValueError, OverflowError) as error:
        raise DamagedManifestError(path, error) from error


def refuse_other_files(path: Path) -> None:
    """Raises DamagedManifestError if the manifest or its journal is not a regular file, or cannot
    be read and written. SQLite itself would follow a symbolic link, and report a directory or a
    FIFO as a disk error. It opens the journal by its name, so the journal is checked too."""
    for file in (path, path.with_name(path.name + "-journal")):
        try:
            mode = file.lstat().st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(mode):
            raise DamagedManifestError(path, f"{file.name} is not a regular file")
        if not os.access(file, os.R_OK | os.W_OK):
            raise DamagedManifestError(path, f"{file.name} cannot be read and written")


class Manifest:
    """The manifest of one tier. Only one thread may use it at a time.

    The constructor and the methods that read rows raise TierError if the file cannot be used now,
    and DamagedManifestError if trying again cannot help.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sources: dict[str, int] = {}
        refuse_other_files(path)
        with damage_told(path):
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            # DELETE: SQLite keeps the journal in one file beside the manifest. FULL: a commit waits
            # until the data is on the disk.
            self._db.execute("PRAGMA journal_mode = DELETE")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(SCHEMA)
            version = int(self._meta("version") or VERSION)
            if version > VERSION:
                raise TierError(
                    f"{path}: its format is version {version}, but this Monarch knows only"
                    f" {VERSION}; use a newer Monarch, or remove the copies with `monarch clear`"
                )
            if version < 1:
                raise ValueError(f"version {version}")
            self._set_meta("version", str(VERSION))
            for number, source in self._db.execute("SELECT id, path FROM sources"):
                self.sources[source] = number

    def _meta(self, key: str) -> str:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else ""

    def _set_meta(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    @property
    def block_size(self) -> int:
        """The block size [bytes] with which the checksums of all rows were computed; 0 if it was
        not set yet."""
        return int(self._meta("block_size") or 0)

    def set_block_size(self, value: int) -> None:
        self._set_meta("block_size", str(value))

    def check(self) -> None:
        """Checks every page of the database. Otherwise, a damaged page might go unnoticed until
        SQLite writes to it. Raises DamagedManifestError if a page is damaged."""
        with damage_told(self.path):
            found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise DamagedManifestError(self.path, " ".join(found.split()))

    def begin_use(self) -> bool:
        """Records that a daemon uses the manifest from now on. Returns whether copies must be
        checked before they are served. This is so if the last daemon did not end cleanly, or if the
        machine was rebooted after its start."""
        must_check = self._meta("clean") != "1" or self._meta("boot") != boot_id()
        self._set_meta("boot", boot_id())
        self._set_meta("clean", "0")
        return must_check

    def end_use(self) -> None:
        """Records that the daemon has ended cleanly. The tier must have been synced before."""
        self._set_meta("clean", "1")

    def keep_unchecked(self) -> None:
        """Records that some copies were not checked, so that the next daemon must check all copies
        (`begin_use`)."""
        self._set_meta("boot", "")

    def load(self) -> Array:
        """Returns all rows, as an array of dtype ROW."""
        query = "SELECT path_hash, copy, size, ino, mtime_ns, ctime_ns, sum, source FROM copies"
        with damage_told(self.path):
            # Use a generator. If a list of a million tuples were freed, Python would not return its
            # memory to the kernel.
            rows = (
                (h & MASK, c, z, i & MASK, m, t, s & MASK, o, 0)
                for h, c, z, i, m, t, s, o in self._db.execute(query)
            )
            return np.fromiter(rows, dtype=ROW)

    def source_number(self, path: str) -> int:
        if path not in self.sources:
            done = self._db.execute("INSERT INTO sources (path) VALUES (?)", (path,))
            assert done.lastrowid is not None
            self.sources[path] = done.lastrowid
        return self.sources[path]

    def change(self, add: Iterable[Row], remove: Iterable[int]) -> None:
        """Adds and removes rows in one transaction.

        add : rows of copies that are on the disk
        remove : the numbers of the copies whose rows are removed
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            rows = [row.values(self.source_number(row.source)) for row in add]
            self._db.executemany(
                "INSERT OR REPLACE INTO copies VALUES (?,?,?,?,?,?,?,?,?,?,?)", rows
            )
            self._db.executemany("DELETE FROM copies WHERE copy = ?", [(c,) for c in remove])
            self._db.execute("COMMIT")
        except sqlite3.Error:
            # After some errors, such as a full disk, SQLite has already ended the transaction.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self.sources = dict(self._db.execute("SELECT path, id FROM sources").fetchall())
            raise

    def all_copies(self) -> list[tuple[int, str, bytes, int, int, bytes]]:
        """Returns (copy, source, path, size, checksum, checksums of the blocks) for every row,
        sorted by the number of the copy."""
        with damage_told(self.path):
            return [
                (copy, source, path, size, total & MASK, blocks)
                for copy, source, path, size, total, blocks in self._db.execute(
                    "SELECT copy, sources.path, copies.path, size, sum, blocks FROM copies"
                    " JOIN sources ON sources.id = copies.source ORDER BY copy"
                )
            ]

    def close(self) -> None:
        self._db.close()
