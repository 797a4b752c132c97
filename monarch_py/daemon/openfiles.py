"""Finds which processes have files of a source open, and whether the source or a copy serves them.

All file descriptors and mappings of this user's processes are examined (/proc/PID/fd and
/proc/PID/maps). Only /proc and the kernel's caches are read, because a file system may hang. The
catalog's index of copies shows to which file a copy belongs.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.daemon.segments import Shared
from monarch_py.ipc import word
from monarch_py.native import State, ffi, lib
from monarch_py.util.processes import own_processes

# One open file, as (process, device, inode number). The process is a dict of `pid`, `command` and
# `fd`; `fd` is None for a mapping.
Opened = tuple[dict[str, Any], int, int]
# Matches the line of /proc/PID/fdinfo/FD that contains the descriptor's open(2) flags in octal.
_FLAGS = re.compile(rb"^flags:\s*([0-7]+)", re.MULTILINE)
# How much of /proc/PID/fdinfo/FD is read [bytes]. The flags are near its beginning. For some kinds
# of descriptors, long lines follow them.
_FDINFO_BYTES = 4096


def _regular_files(
    process: Path, is_meant: Callable[[str], bool] = lambda _: True
) -> Iterator[tuple[int, Any]]:
    """Yields (descriptor, file) for each regular file that a process has open. `file` is a struct
    monarch_open_file. It is valid only until the next pair is yielded.

    is_meant : a function that takes the path /proc/PID/fdinfo/FD of a descriptor. Returns whether
        the descriptor is to be examined
    """
    # Path objects would take three times as long as these strings. At the daemon's start, this
    # function runs for every process of the user.
    home = str(process)
    try:
        names = os.listdir(f"{home}/fd")
    except OSError:
        return
    file = ffi.new("struct monarch_open_file *")
    for name in names:
        try:
            is_due = is_meant(f"{home}/fdinfo/{name}")
        except OSError:  # the descriptor is closed by now
            continue
        if is_due and lib.monarch_find_open_file(f"{home}/fd/{name}".encode(), file):
            yield int(name), file


def _may_write(fdinfo: str) -> bool:
    """Whether the descriptor is open for writing."""
    file = os.open(fdinfo, os.O_RDONLY | os.O_CLOEXEC)
    try:
        flags = _FLAGS.search(os.read(file, _FDINFO_BYTES))
    finally:
        os.close(file)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _mappings(process: Path) -> Iterator[tuple[int, int]]:
    """Yields (device, inode) of every file that the process has mapped, once for each file."""
    try:
        lines = (process / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return
    seen = set()
    for line in lines:
        _, _, _, device, inode, *_ = line.split(None, 5)
        major, minor = device.split(":")
        key = (os.makedev(int(major, 16), int(minor, 16)), int(inode))
        if key[1] and key not in seen:
            seen.add(key)
            yield key


class _Finder:
    """Finds the catalog entry of an open file, which is identified by (device, inode). Determines
    whether the open file is the source's own file or a copy."""

    def __init__(self, shared: Shared, staging: int) -> None:
        self.shared, self.staging = shared, staging
        control = shared.control
        self.tiers = [
            (i, int(control.tier[i].dev)) for i in range(control.tiers) if control.tier[i].usable
        ]
        self.sources = [(i, int(control.source[i].dev)) for i in range(control.sources)]
        # The catalog's index of copies lacks short-lived copies. These are the copies in the
        # staging area, and this daemon's copies in tiers with eviction. This dict maps (tier
        # number, inode number) of each short-lived copy to the file's entry.
        catalog = shared.catalog
        evicting = int(catalog.c.evicting)
        come_and_go = [n for n, _ in self.tiers if n == staging or evicting >> n & 1]
        words, inodes = catalog.words, catalog.entries["copy_ino"]
        here = np.isin(word.tier(words), come_and_go) & (word.state(words) == State.PRESENT)
        found = np.flatnonzero(here)
        keys = zip(word.tier(words[found]).tolist(), inodes[found].tolist(), strict=True)
        self._coming_and_going = dict(zip(keys, found.tolist(), strict=True))

    def find(self, device: int, inode: int) -> dict[str, Any] | None:
        catalog = self.shared.catalog
        for number, tier_device in self.tiers:
            if tier_device == device:
                name = "staging" if number == self.staging else f"tier {number}"
                entry = self._coming_and_going.get((number, inode), -1)
                if entry < 0 and number != self.staging:
                    entry = catalog.find_copy(number, inode)
                if entry >= 0:
                    return self._describe(entry, name)
        for number, source_device in self.sources:
            if source_device == device:
                entry = catalog.find_inode(number, inode)
                if entry >= 0 and catalog.entries["kind"][entry] == 0:
                    return self._describe(entry, "source")
        return None

    def _describe(self, entry: int, served_by: str) -> dict[str, Any]:
        source = self.shared.control.source[int(self.shared.catalog.entries["source"][entry])]
        root = os.fsdecode(ffi.string(source.path))
        return {"path": f"{root}/{self.shared.catalog.path(entry)}", "served_by": served_by}


def all_opened() -> list[Opened]:
    """Returns the open files of all processes of this user."""
    found: list[Opened] = []
    for process in own_processes():
        try:
            command = os.fsdecode((process / "comm").read_bytes()).removesuffix("\n")
        except OSError:
            continue
        about = {"pid": int(process.name), "command": command}
        for fd, file in _regular_files(process):
            found.append(({**about, "fd": fd}, int(file.dev), int(file.ino)))
        found += [({**about, "fd": None}, *mapped) for mapped in _mappings(process)]
    return found


def open_files(shared: Shared, staging: int, opened: Iterable[Opened]) -> list[dict[str, Any]]:
    """Returns one dict for each open file that is in the catalog or is a copy of such a file.

    staging : the tier number of the staging area
    """
    finder = _Finder(shared, staging)
    return [{**who, **found} for who, *file in opened if (found := finder.find(*file))]


def writers(devices: set[int]) -> Iterator[tuple[int, int]]:
    """Yields (device, inode) of files on these devices that a process of this user has open for
    writing.

    The preload library does not see all writes to these files. For example, a process may have
    opened a file before the session began. So the daemon marks these files as changed.
    """
    for process in own_processes():
        for _, file in _regular_files(process, _may_write):
            # A file without a link was removed from its source. Its inode number may later belong
            # to a new file, which must not be taken for a file that is open for writing.
            if int(file.dev) in devices and file.links:
                yield int(file.dev), int(file.ino)
