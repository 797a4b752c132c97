"""Tests statx: which answers come from the catalog, and what a descriptor of a copy shows."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place
from csrc.units.serving import Served

AT_FDCWD = -100
NOFOLLOW, NO_AUTOMOUNT, EMPTY_PATH = 0x100, 0x800, 0x1000
FORCE_SYNC, DONT_SYNC = 0x2000, 0x4000
SIZE, BASIC, BTIME, MOUNT = 0x200, 0x7FF, 0x800, 0x1000
# Bits of statx's mask for fields that the catalog lacks. Newer kernels define some of these bits.
# RESERVED is one that no kernel will ever define.
UNKNOWN = [1 << bit for bit in range(12, 32)]
RESERVED = 1 << 31


class Stats:
    """A source with the file f and the link l to it. The daemon has scanned their attributes.
    `change` gives f another size and mode, which the catalog does not know."""

    def __init__(self, lib: Any, place: Place, root: Path, tier: Path) -> None:
        self.lib, self.file, self.link = lib, root / "f", root / "l"
        root.mkdir()
        tier.mkdir(mode=0o700)
        self.file.write_bytes(b"x" * 1234)
        self.file.chmod(0o640)
        self.link.symlink_to("f")
        os.utime(self.file, ns=(5, 1_500_000_000_123_456_789))
        masks = (BASIC, BASIC | BTIME, SIZE, BTIME)
        self.scanned = {mask: self.kernel(self.file, mask) for mask in masks}
        self.scanned_link = self.kernel(self.link, BASIC, NOFOLLOW)
        self.served = Served(lib, place, root, tier)
        filesystem = self.served.control.source[0].filesystem
        for which, mask in enumerate((BASIC, BASIC | BTIME)):
            filesystem.statx_mask[which] = field(self.scanned[mask], "I", 0)
        for name, at in (("attributes_mask", 56), ("mount", 144)):
            setattr(filesystem, name, field(self.scanned[BASIC], "Q", at))

    def change(self) -> None:
        self.file.write_bytes(b"y" * 99)
        self.file.chmod(0o600)

    def kernel(
        self, path: Path | str, mask: int, flags: int = 0, dir_fd: int = AT_FDCWD
    ) -> bytes | int:
        out = ffi.new("char[]", int(self.lib.statx_size()))
        done = int(self.lib.statx_of_kernel(dir_fd, os.fsencode(path), flags, mask, out))
        return bytes(ffi.buffer(out)) if done == 0 else done

    def call(
        self,
        path: Path | str,
        mask: int,
        flags: int = 0,
        dir_fd: int = AT_FDCWD,
        lacks: bool = False,
    ) -> bytes | int:
        """Returns the structure that statx fills in, or -errno. lacks: whether libc has no
        statx."""
        out = ffi.new("char[]", int(self.lib.statx_size()))
        done = int(self.lib.statx_of(dir_fd, os.fsencode(path), flags, mask, lacks, out))
        return bytes(ffi.buffer(out)) if done == 0 else done

    def hits(self) -> int:
        return sum(int(one.metadata_hits) for one in self.served.clients.stats)


def field(found: bytes | int, kind: str, at: int) -> int:
    """Returns the field of struct statx that begins at byte `at`."""
    assert isinstance(found, bytes)
    return int(struct.unpack_from(kind, found, at)[0])


@pytest.fixture
def stats(lib: Any, place: Place, tmp_path: Path) -> Iterator[Stats]:
    one = Stats(lib, place, tmp_path / "data", tmp_path / "tier")
    yield one
    one.served.end()


def test_the_catalog_answers_as_the_kernel_did(stats: Stats) -> None:
    """All fields have the values that the kernel returned at the time of the scan. The birth time
    is filled in only if it was requested."""
    stats.change()
    for mask in (BASIC, BASIC | BTIME):
        assert stats.call(stats.file, mask) == stats.scanned[mask]
        assert stats.call(stats.link, mask) == stats.scanned[mask]
    assert stats.call(stats.link, BASIC, NOFOLLOW) == stats.scanned_link
    for flags in (NO_AUTOMOUNT, DONT_SYNC, EMPTY_PATH, NO_AUTOMOUNT | DONT_SYNC | EMPTY_PATH):
        assert stats.call(stats.file, BASIC, flags) == stats.scanned[BASIC]
    assert stats.call(stats.file, SIZE) == stats.scanned[BASIC], "further fields do no harm"
    assert stats.call(stats.file, BTIME) == stats.scanned[BASIC | BTIME]
    assert stats.hits() == 11


def test_the_mount_is_filled_in_if_the_kernel_has_it(stats: Stats) -> None:
    filesystem = stats.served.control.source[0].filesystem
    filesystem.mount = 77
    for has_mount in (True, False):
        mask = int(filesystem.statx_mask[0]) & ~MOUNT | MOUNT * has_mount
        filesystem.statx_mask[0] = mask
        found = stats.call(stats.file, BASIC)
        assert field(found, "I", 0) == mask and field(found, "Q", 144) == 77 * has_mount


@pytest.mark.parametrize("lacks", [False, True], ids=["whole", "lacking"])
def test_the_kernel_answers_what_the_catalog_cannot(stats: Stats, lacks: bool) -> None:
    """The kernel answers requests for fields that the catalog does not have, requests for fresh
    attributes, and calls that fail."""
    stats.change()
    for mask in UNKNOWN:
        for more in (0, BASIC):
            expected = stats.kernel(stats.file, mask | more)
            assert stats.call(stats.file, mask | more, lacks=lacks) == expected, hex(mask)
    assert stats.call(stats.file, BASIC | RESERVED) == -errno.EINVAL
    assert stats.call(stats.file, BASIC, FORCE_SYNC, lacks=lacks) == stats.kernel(stats.file, BASIC)
    for flags in (1, FORCE_SYNC | DONT_SYNC):
        assert stats.call(stats.file, BASIC, flags, lacks=lacks) == -errno.EINVAL
    assert stats.call(stats.file.with_name("none"), BASIC, lacks=lacks) == -errno.ENOENT
    assert stats.lib.statx_of(AT_FDCWD, bytes(stats.file), 0, BASIC, lacks, ffi.NULL) == (
        -errno.EFAULT
    )
    assert stats.hits() == 0


@pytest.mark.parametrize("case", ["attributes", "mask", "mounts", "version", "changed"])
def test_the_kernel_answers_where_the_catalog_may_not(stats: Stats, case: str) -> None:
    """In each case, the kernel answers, because the catalog may not. In the case "attributes", for
    example, the file has attributes such as `immutable`, whose values the catalog does not have. In
    the case "mounts", this process may see the source on another mount than the daemon does."""
    stats.change()
    if case == "attributes":
        stats.served.entry("f").flags |= 1
    elif case == "mask":
        stats.served.control.source[0].filesystem.statx_mask[0] = 0
    elif case == "mounts":
        stats.served.control.mounts = 1
        stats.lib.statx_forget_mounts(stats.served.s)
    elif case == "version":
        stats.served.entry("f").version += 1
    else:
        stats.served.known.mark_changed(stats.file)
    assert stats.call(stats.file, BASIC) == stats.kernel(stats.file, BASIC)


@pytest.mark.parametrize("mask", [BASIC, BASIC | BTIME, SIZE, BTIME])
def test_a_descriptor_of_a_copy_shows_the_sources_file(stats: Stats, mask: int) -> None:
    copy = stats.served.publish("f", b"x" * 1234)
    fd = os.open(copy, os.O_RDONLY)
    expected = stats.scanned[BASIC | mask & BTIME]
    assert stats.call("", mask, EMPTY_PATH, fd) == expected
    copy.unlink()
    assert stats.call("", mask, EMPTY_PATH, fd) == expected, "the daemon has removed the copy"
    os.close(fd)


@pytest.mark.parametrize("case", ["field", "attributes", "mask", "mounts"])
def test_a_field_that_the_catalog_lacks_comes_from_the_source(stats: Stats, case: str) -> None:
    """The library asks the kernel about the source's file, because the copy has other values. If
    the source's file was replaced or removed, the library returns the catalog's fields."""
    fd = os.open(stats.served.publish("f", b"x" * 1234), os.O_RDONLY)
    mask = BASIC | (UNKNOWN[2] if case == "field" else 0)
    if case == "attributes":
        stats.served.entry("f").flags |= 1
    elif case == "mask":
        stats.served.control.source[0].filesystem.statx_mask[0] = 0
    elif case == "mounts":
        stats.served.control.mounts = 1
        stats.lib.statx_forget_mounts(stats.served.s)
    stats.file.chmod(0o604)
    now = stats.kernel(stats.file, mask)
    assert stats.call("", mask, EMPTY_PATH, fd) == now
    held = stats.file.rename(stats.file.with_name("held"))  # no new file can get this inode number
    stats.file.write_bytes(b"z")
    found = stats.call("", mask, EMPTY_PATH, fd)
    assert field(found, "Q", 32) == field(stats.scanned[BASIC], "Q", 32) == held.stat().st_ino
    assert field(found, "Q", 40) == 1234 and field(found, "H", 28) & 0o7777 == 0o640
    stats.file.unlink()
    assert stats.call("", mask, EMPTY_PATH, fd) == found
    os.close(fd)
