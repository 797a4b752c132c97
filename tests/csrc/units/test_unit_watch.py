"""Tests inotify watches. Once a program watches a file for reads, nobody gets the file's copy any
more, so that the program is notified of all reads."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place
from csrc.units.serving import Served

ACCESS, MODIFY, CLOSE_WRITE, CLOSE_NOWRITE, OPEN = 1, 2, 8, 0x10, 0x20
READS = (ACCESS, OPEN, CLOSE_NOWRITE)
DONT_FOLLOW = 0x2000000
FILES = ("f", "other", "d/g", "d/h", "d/e/i")


class Watches:
    """A source with files in several directories, and two links that lead to f and d."""

    def __init__(self, lib: Any, place: Place, root: Path, tier: Path) -> None:
        self.lib, self.root = lib, root
        tier.mkdir(mode=0o700)
        for name in FILES:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        (root / "to_f").symlink_to("f")
        (root / "to_d").symlink_to("d")
        self.served = Served(lib, place, root, tier)
        self.fd = ctypes.CDLL(None).inotify_init1(os.O_CLOEXEC)
        assert self.fd >= 0

    def watch(self, path: Path, mask: int) -> set[str]:
        """Watches the path. Returns the files that the library has recorded as changed since the
        last call, that is, the files whose copies nobody gets any more."""
        assert self.lib.watch_add(self.fd, bytes(path), mask) >= 0
        found = {name for name in FILES if self._is_changed(self.root / name)}
        for filter_ in (self.served.clients.changed, self.served.clients.changed_coarse):
            for i in range(len(filter_)):
                filter_[i] = 0
        return found

    def _is_changed(self, path: Path) -> bool:
        found = path.stat()
        return bool(self.lib.watch_is_changed(self.served.s, found.st_dev, found.st_ino))


@pytest.fixture
def watches(lib: Any, place: Place, tmp_path: Path) -> Iterator[Watches]:
    one = Watches(lib, place, tmp_path / "data", tmp_path / "tier")
    yield one
    os.close(one.fd)
    one.served.end()


@pytest.mark.parametrize("mask", [*READS, OPEN | MODIFY])
def test_what_is_watched_for_reads_gets_no_copy(watches: Watches, mask: int) -> None:
    """A watch of a directory covers the files in the directory, but not the files in its
    subdirectories."""
    root = watches.root
    assert watches.watch(root / "f", mask) == {"f"}
    assert watches.watch(root / "d", mask) == {"d/g", "d/h"}
    assert watches.watch(root / "d/e", mask) == {"d/e/i"}
    assert watches.watch(root, mask) == {"f", "other"}
    assert watches.watch(root / "to_f", mask) == {"f"}
    assert watches.watch(root / "to_d", mask) == {"d/g", "d/h"}
    assert watches.watch(root / "to_f", mask | DONT_FOLLOW) == set()
    assert watches.watch(root / "to_d", mask | DONT_FOLLOW) == set()
    assert watches.watch(root.parent, mask) == set()


def test_a_watch_for_changes_needs_no_reads(watches: Watches) -> None:
    """If a program watches a file only for changes, the file keeps its copy, because a write
    changes the source's file in any case."""
    for mask in (MODIFY, CLOSE_WRITE, MODIFY | CLOSE_WRITE):
        for path in (watches.root / "f", watches.root / "d"):
            assert watches.watch(path, mask) == set()


def test_a_watch_that_fails_is_the_kernels_error(watches: Watches) -> None:
    for path, error in ((bytes(watches.root / "none"), errno.ENOENT), (ffi.NULL, errno.EFAULT)):
        for mask in (OPEN, MODIFY):
            assert watches.lib.watch_add(watches.fd, path, mask) == -error
    assert watches.lib.watch_add(watches.fd, bytes(watches.root / "f"), 0) == -errno.EINVAL


def test_a_file_on_another_device_is_nobodys_copy(watches: Watches) -> None:
    """A file on another device may have the inode number of a file of the source. So the library
    compares the device too."""
    watches.served.control.source[0].dev += 1
    assert (
        watches.watch(watches.root / "f", OPEN) == watches.watch(watches.root / "d", OPEN) == set()
    )


def test_a_process_without_the_segments_tells_the_daemon(watches: Watches) -> None:
    """The process sends the daemon a message about the watched file, or about the whole tree below
    the watched directory."""
    path = watches.root / "f"
    path.write_bytes(b"x" * 77)
    watches.lib.attach_set_lacks_room(1)
    watches.lib.autostart_leave(ffi.NULL)
    try:
        for told, mask in ((path, OPEN), (watches.root / "d", ACCESS)):
            watches.watch(told, mask)
            is_tree = told != path
            expected = f"told {told.stat().st_size}{' tree' * is_tree}"
            assert ffi.string(watches.lib.watch_told()) == expected.encode()
            watches.watch(told, MODIFY)
            assert ffi.string(watches.lib.watch_told()) == b""
    finally:
        watches.lib.autostart_leave(watches.served.s)
        watches.lib.attach_set_lacks_room(0)
