"""The readers' registry, their transcript, and functions that choose the files to read.

A reader is a function that takes the dataset's root and a Transcript. What it writes to the
transcript depends only on the dataset, so that two runs of a reader can be compared line by line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The attributes that must be the same with and without the library. st_atime_ns is left out because
# reading changes it. st_blksize is left out because it is only a hint from the file system.
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
    """Writes what one reader saw to standard output, as one JSON object per line."""

    def __init__(self, reader: str, root: Path) -> None:
        self._reader = reader
        self._root = root

    def line(self, what: str | os.PathLike[str], **fields: Any) -> None:
        """Writes a line about `what`, a name or a path. Paths are written relative to the
        dataset."""
        text = os.fspath(what)
        if text.startswith(f"{self._root}/"):
            text = os.path.relpath(text, self._root)
        # Flushed at once, because a forked child would write buffered lines a second time.
        record = {"reader": self._reader, "what": text, **fields}
        print(json.dumps(record, sort_keys=True), flush=True)

    def data(self, what: str | os.PathLike[str], data: bytes | memoryview, **fields: Any) -> None:
        """Writes a line about the bytes that were read from `what`."""
        self.line(what, size=len(data), sha256=digest(data), **fields)

    def attributes(self, what: str | os.PathLike[str], way: str, status: os.stat_result) -> None:
        """Writes a line about the attributes that `way` (the name of a call) returned for
        `what`."""
        seen = {name: getattr(status, name) for name in EXACT_ATTRIBUTES}
        self.line(what, way=way, **seen)

    def outcome(self, what: str, call: Callable[[], Any]) -> None:
        """Writes a line about how `call` ended: what it returned, or the error number it raised."""
        try:
            self.line(what, returned=call())
        except OSError as error:
            self.line(what, errno=error.errno, strerror=error.strerror)


Reader = Callable[[Path, Transcript], None]
READERS: dict[str, Reader] = {}


def reader(function: Reader) -> Reader:
    """Registers a reader under the name of its function."""
    return register(function.__name__, function)


def register(name: str, function: Reader) -> Reader:
    """Registers a reader under `name`. Raises ValueError if the name is taken."""
    if name in READERS:
        raise ValueError(f"two readers are called {name}")
    READERS[name] = function
    return function


def digest(data: bytes | memoryview) -> str:
    """Returns the SHA-256 of `data` in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def regular_files(root: Path) -> list[Path]:
    """Returns every regular file below `root`, without symbolic links, sorted by path."""
    found: list[Path] = []
    for folder, names, files in os.walk(root):
        names.sort()
        paths = (Path(folder) / name for name in files)
        found.extend(path for path in paths if not path.is_symlink())
    return sorted(found)


def mixed_files(root: Path) -> list[Path]:
    """Returns the files that the slower readers read, sorted: all files with unusual sizes and
    names, and a part of the other files."""
    chosen = [path for path in regular_files(root) if path.parent.name == "edge"]
    for pattern in ("images/*/*_00[13]*", "text/*1.txt", "small/d*/deep/deeper/*5", "raw/*"):
        chosen.extend(root.glob(pattern))
    return sorted(chosen)


def files_of(root: Path, *patterns: str) -> list[Path]:
    """Returns the files that match one of `patterns`, sorted. Raises FileNotFoundError if there is
    none: without files, a reader would report nothing in any run, and the comparison of its runs
    would succeed without testing anything."""
    found = sorted(path for pattern in patterns for path in root.glob(pattern))
    if not found:
        raise FileNotFoundError(f"no file of {root} matches {', '.join(patterns)}")
    return found
