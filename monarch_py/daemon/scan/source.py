"""One configured source: which directories are listed, and which of its files are excluded."""

import logging
import os
from collections import deque
from typing import Any

import numpy as np

from monarch_py.arrays import Array, Bools
from monarch_py.config.patterns import PathFilter
from monarch_py.config.schema import Config, SourceConfig
from monarch_py.native import Kind
from monarch_py.scan.record import Listed, RecordedScan, Scan
from monarch_py.scan.walk import Batch, Walk

log = logging.getLogger("monarch.scanner")

# A `Source` remembers the last WANTS directories whose files programs read (`is_read` in
# `Source.ask_for`). WANTS in csrc/scan/scan.h has the same value.
WANTS = 16


class Parts:
    """The directories of a source that are to be listed, each of them once. Paths are relative to
    the source's root."""

    def __init__(self) -> None:
        self._flat: set[str] = set()
        self._deep: set[str] = set()  # directories to be listed with all their subdirectories
        self._left: list[tuple[str, bool]] = []

    def __len__(self) -> int:
        return len(self._left)

    def add(self, directory: str, *, is_deep: bool) -> bool:
        """Adds a directory to those that are to be listed. Returns False and adds nothing if the
        listing was requested before: with the same arguments, or with `is_deep` for the directory
        or one above it.

        is_deep : whether all its subdirectories are to be listed too
        """
        if self._covers(directory) or (not is_deep and directory in self._flat):
            return False
        (self._deep if is_deep else self._flat).add(directory)
        self._left.append((directory, is_deep))
        return True

    def _covers(self, directory: str) -> bool:
        """Whether the directory, or one above it, was added with all its subdirectories."""
        while directory and directory not in self._deep:
            directory = os.path.dirname(directory)
        return directory in self._deep

    def take(self) -> tuple[list[str], bool]:
        """Removes the directories for the next walk from those that are to be listed. Returns them
        in the order in which they were added, and whether the walk includes their
        subdirectories."""
        is_deep = self._left[0][1]
        taken = [directory for directory, deep in self._left if deep == is_deep]
        if is_deep:
            taken = [part for part in taken if not part or not self._covers(os.path.dirname(part))]
        rest = [part for part in self._left if part[1] != is_deep]
        # If a directory is listed with all its subdirectories, the directories below it need no
        # walk of their own.
        self._left = [part for part in rest if part[1] or not self._covers(part[0])]
        return taken, is_deep


class Source:
    """One source: the file descriptor of its root directory, its filter of files, and its scan.

    recorded : the result of the scan that one node has made for all nodes; None if this node scans
        the source itself
    is_lazy : whether directories are listed only on request
    """

    def __init__(
        self, number: int, config: SourceConfig, recorded: Listed | None, *, is_lazy: bool
    ) -> None:
        self.number = number
        self.config = config
        self._recorded = recorded
        self.up_ino = 0  # the inode number of the root's ".."; 0 until the root was listed
        self.filter = PathFilter(config.include, config.exclude)
        self.fd = os.open(config.real_path, os.O_RDONLY | os.O_DIRECTORY)
        self.scan: Scan | None = None
        # `is_whole` : whether all files of the source are known now.
        # `becomes_whole` : whether all files will be known once the current scan has ended.
        self.is_whole = self.becomes_whole = False
        # The number of names that could not be read, and the error of the first such name.
        self.errors, self.error = 0, ""
        self.scan_seconds = 0.0
        self.found = 0  # how many entries the scans of this source have found
        self._parts = Parts()
        self._read: deque[tuple[str, bool]] = deque(maxlen=WANTS)
        if recorded is not None or not is_lazy:
            self.ask_for("", is_deep=True)

    @property
    def is_asked(self) -> bool:
        """Whether there are requested directories that no scan has begun to list."""
        return len(self._parts) > 0

    @property
    def scanned(self) -> bool:
        """Whether all requested listings are complete."""
        return self.scan is None and not self.is_asked

    @property
    def is_read(self) -> bool:
        """Whether programs have read any directory of the source (see `ask_for`)."""
        return len(self._read) > 0

    def ask_for(self, directory: str, *, is_deep: bool, is_read: bool = False) -> bool:
        """Requests the listing of a directory, whose path is relative to the root. If this listing
        was requested before, returns False, and the directory is not listed again.

        is_deep : whether all its subdirectories are listed too
        is_read : whether programs read files in the directory; it is then listed before others
        """
        if is_read:
            self._read.append((directory, is_deep))
            if self.scan is not None:
                self.scan.want(directory, is_deep=is_deep)
        return self._parts.add(directory, is_deep=is_deep)

    def begin(
        self, config: Config, doorbell: Any, known: tuple[Any, Any, int], allowed: tuple[int, int]
    ) -> bool:
        """Starts listing the requested directories. If the root cannot be opened, logs a warning
        and returns False. Files of this source that the catalog lacks then get no copies."""
        directories, is_deep = self._parts.take()
        self.becomes_whole = is_deep and "" in directories
        # The record is large and is used only once, so its reference is dropped here.
        recorded, self._recorded = self._recorded, None
        try:
            if recorded is not None:
                self.scan = RecordedScan(self.number, recorded)
            else:
                self.scan = Walk(
                    self.fd,
                    self.number,
                    config.scan_threads,
                    config.scan_ops_per_s or 0,
                    doorbell,
                    directories=None if self.becomes_whole else directories,
                    is_deep=is_deep,
                    known=known,
                    allowed=allowed,
                )
        except OSError as error:
            path = self.config.path
            log.warning(
                "%s cannot be scanned, so files that the catalog lacks get no copies: %s",
                path,
                error,
            )
            self._count_errors(1, str(error.strerror or error))
            return False
        for directory, below in self._read:
            self.scan.want(directory, is_deep=below)
        return True

    def take_batch(self) -> Batch | None:
        """Returns the next batch of scan results, or None if there is none yet."""
        batch = self.scan.take() if self.scan is not None else None
        if batch is not None:
            self.found += len(batch.entries)
        return batch

    def end(self, scan: Scan) -> None:
        errors, error = scan.errors()
        if errors:
            why = os.strerror(error)
            log.warning("%s: %d names cannot be read: %s", self.config.path, errors, why)
            self._count_errors(errors, why)
        self.scan_seconds += scan.seconds
        self.up_ino = scan.up_ino or self.up_ino
        scan.close()
        self.scan = None
        # A scan that has found nothing, not even the root, has failed: its threads could not be
        # started.
        self.is_whole |= self.becomes_whole and self.found > 0

    def _count_errors(self, errors: int, why: str) -> None:
        self.errors += errors
        self.error = self.error or why

    @property
    def takes_all(self) -> bool:
        """Whether the configuration excludes none of the source's files."""
        sizes_fit = self.config.min_size_bytes <= 1 and self.config.max_size_bytes is None
        return sizes_fit and self.filter.trivial

    def excluded(self, entries: Array, paths: Any) -> Bools:
        """Returns an array (n,): for each entry, whether it is a file that the configuration
        excludes.

        paths : a function that returns the path of an entry
        """
        sizes, config = entries["size"], self.config
        out: Bools = sizes < config.min_size_bytes
        if config.max_size_bytes is not None:
            out |= sizes > config.max_size_bytes
        if not self.filter.trivial:
            for i in np.flatnonzero((entries["kind"] == Kind.FILE) & ~out):
                out[i] = not self.filter.matches(paths(entries[i]))
        out &= entries["kind"] == Kind.FILE
        return out
