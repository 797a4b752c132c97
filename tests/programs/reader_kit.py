"""What the readers share: their registry, their transcript, and their choice of files.

A reader is a function of the dataset's root and of a Transcript. What it writes there depends on
the dataset alone, so that two runs of one reader can be compared line by line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The attributes that a program can tell two files apart by. Not st_atime_ns (reading changes it)
# and not st_blksize (a hint of the file system, not of the file).
EXACT_ATTRIBUTES = (
    "st_dev",
    "st_ino",
    "st_mode",
    "st_nlink",
    "st_uid",
    "st_gid",
    "st_size",
    "st_blocks",
    "st_mtime_ns",
    "st_ctime_ns",
)


class Transcript:
    """Writes what one reader saw to standard output, one JSON object a line."""

    def __init__(self, reader: str, root: Path) -> None:
        self._reader = reader
        self._root = root

    def line(self, what: str | os.PathLike[str], **fields: Any) -> None:
        """One line about `what`, a name or a path; paths are shown relative to the dataset."""
        text = os.fspath(what)
        if text.startswith(f"{self._root}/"):
            text = os.path.relpath(text, self._root)
        # Flushed at once: a forked child would write what is still in the buffer a second time.
        record = {"reader": self._reader, "what": text, **fields}
        print(json.dumps(record, sort_keys=True), flush=True)

    def data(self, what: str | os.PathLike[str], data: bytes | memoryview, **fields: Any) -> None:
        """One line about the bytes that were read from `what`."""
        self.line(what, size=len(data), sha256=digest(data), **fields)

    def attributes(self, what: str | os.PathLike[str], way: str, status: os.stat_result) -> None:
        """One line about the attributes that `way` (the name of a call) gave for `what`."""
        seen = {name: getattr(status, name) for name in EXACT_ATTRIBUTES}
        self.line(what, way=way, **seen)

    def outcome(self, what: str, call: Callable[[], Any]) -> None:
        """One line about how `call` ended: what it returned, or the error number it raised."""
        try:
            self.line(what, returned=call())
        except OSError as error:
            self.line(what, errno=error.errno, strerror=error.strerror)


Reader = Callable[[Path, Transcript], None]
READERS: dict[str, Reader] = {}


def reader(function: Reader) -> Reader:
    """Register a reader under the name of its function."""
    return register(function.__name__, function)


def register(name: str, function: Reader) -> Reader:
    """Register a reader under `name`; raises ValueError if the name is taken."""
    if name in READERS:
        raise ValueError(f"two readers are called {name}")
    READERS[name] = function
    return function


def digest(data: bytes | memoryview) -> str:
    """The SHA-256 of `data` in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def regular_files(root: Path) -> list[Path]:
    """Every regular file below `root`, no symbolic links, sorted by path."""
    found: list[Path] = []
    for folder, names, files in os.walk(root):
        names.sort()
        paths = (Path(folder) / name for name in files)
        found.extend(path for path in paths if not path.is_symlink())
    return sorted(found)


def mixed_files(root: Path) -> list[Path]:
    """A part of the dataset that has every size and every odd name, for the slower readers."""
    chosen = [path for path in regular_files(root) if path.parent.name == "edge"]
    for pattern in ("images/*/*_00[13]*", "text/*1.txt", "small/d*/deep/deeper/*5", "raw/*"):
        chosen.extend(root.glob(pattern))
    return sorted(chosen)


def files_of(root: Path, *patterns: str) -> list[Path]:
    """The files that match one of `patterns`, sorted; raises FileNotFoundError if none does.

    A reader that finds nothing to read would agree with every other run, so it fails instead.
    """
    found = sorted(path for pattern in patterns for path in root.glob(pattern))
    if not found:
        raise FileNotFoundError(f"no file of {root} matches {', '.join(patterns)}")
    return found
