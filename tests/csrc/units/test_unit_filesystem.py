"""Tests what statfs and similar calls return. Their answers from the catalog must be those that the
kernel and libc would give."""

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
from csrc.units.serving import SECOND, Served

FIELDS = ["type", "bsize", "blocks", "bfree", "bavail", "files", "ffree", "fsid", "namelen",
          "frsize", "flags"]  # fmt: skip


@pytest.mark.parametrize("path", ["/", "/proc", "/dev", "/dev/shm", "/sys", "/etc/passwd", "."])
def test_statvfs_is_told_as_libc_tells_it(lib: Any, path: str) -> None:
    """The library's answer equals libc's in every byte, including bytes that belong to no named
    field. Other processes may change the counts of blocks and files between the two calls, so the
    test tries again."""
    ours, libcs = ffi.new("char[200]"), ffi.new("char[200]")
    for _ in range(100):
        n = lib.filesystem_both(path.encode(), ours, libcs)
        assert n > 80
        both = [bytes(ffi.buffer(one, n)) for one in (ours, libcs)]
        if both[0] == both[1]:
            return
    assert both[0] == both[1]


def test_a_file_system_without_fragments_has_fragments_of_a_block(lib: Any) -> None:
    """If the kernel reports no size of a fragment, the library reports the size of a block. The
    kernel sets one flag to show that the other flags are valid. The library removes this flag from
    the answer, as libc does."""
    out = ffi.new("uint64_t[3]")
    for args, expected in (
        ((4096, 0, 0x1020), [4096, 4096, 0x1000]), ((4096, 512, 0xFFFF), [4096, 512, 0xFFDF]),
    ):  # fmt: skip
        lib.filesystem_odd(*args, out)
        assert list(out) == expected


@pytest.fixture
def served(lib: Any, place: Place, tmp_path: Path) -> Iterator[Served]:
    root, tier = tmp_path / "data", tmp_path / "tier"
    (root / "d").mkdir(parents=True)
    tier.mkdir(mode=0o700)
    (root / "f").write_text("content")
    (root / "d" / "g").write_text("content")
    one = Served(lib, place, root, tier)
    one.control.compared_ns = lib.shared_now()
    there = one.control.source[0].filesystem
    for i, field in enumerate(FIELDS):
        if field != "fsid":
            setattr(there, field, 1001 + i)
    there.fsid[0], there.fsid[1] = 77, 88
    yield one
    one.end()


def told(lib: Any, call: str, what: Any) -> list[int]:
    """Returns the fields of the answer in the order of struct statfs. For a statvfs call, returns
    only the fields that struct statfs has too."""
    out = ffi.new("char[200]")
    n = getattr(lib, f"filesystem_{call}")(what, out)
    if n < 0:
        return [n]
    data = bytes(ffi.buffer(out, n))
    if "statfs" in call:
        words = struct.unpack("7q2i3q", data[: 7 * 8 + 8 + 24])
        assert not any(data[7 * 8 + 8 + 24 :])
        return list(words)
    bsize, frsize, blocks, bfree, bavail, files, ffree, favail, fsid, flag, namemax = struct.unpack(
        "11Q", data[:88]
    )
    assert favail == ffree
    return [bsize, blocks, bfree, bavail, files, ffree, fsid & 2**32 - 1, fsid >> 32, namemax,
            frsize, flag]  # fmt: skip


WHOLE = [1001, 1002, 1003, 1004, 1005, 1006, 1007, 77, 88, 1009, 1010, 1011]
PARTS = [*WHOLE[1:11], 1011 & ~0x20]


def test_the_catalog_tells_of_the_sources_file_system(lib: Any, served: Served) -> None:
    """For a path that the catalog knows, and for a descriptor of a copy, the library takes the
    attributes of the file system from the catalog."""
    path = bytes(served.root / "f")
    assert told(lib, "statfs", path) == WHOLE
    assert told(lib, "statvfs", path) == PARTS
    assert told(lib, "statfs", bytes(served.root / "d" / "g")) == WHOLE
    copy = served.publish("f", b"content")
    root = served.id("")
    assert lib.metadata_look_and_list(served.s, root, bytes(served.root)), "the root's listing"
    with copy.open("rb") as file:
        assert told(lib, "fstatfs", file.fileno()) == WHOLE
        assert told(lib, "fstatvfs", file.fileno()) == PARTS
    assert told(lib, "statvfs", bytes(served.root / "none"))[0] == -2  # ENOENT
    real = os.statvfs(served.root)
    assert told(lib, "statvfs", bytes(served.tier))[0] == real.f_bsize


@pytest.mark.parametrize("case", ["unknown", "stale", "mounts", "changed", "uncached", "user"])
def test_the_kernel_tells_what_the_catalog_cannot(lib: Any, served: Served, case: str) -> None:
    path, control = bytes(served.root / "f"), served.control
    assert told(lib, "statfs", path) == WHOLE
    if case == "unknown":
        control.source[0].filesystem.bsize = 0
    elif case == "stale":
        control.compared_ns = lib.shared_now() - 1001 * SECOND
    elif case == "mounts":
        control.mounts = 1
        lib.filesystem_mounts_anew(served.s)
    elif case == "changed":
        served.known.mark_changed(served.root / "f")
    elif case == "uncached":
        control.metadata_cached = 0
    else:
        control.owner += 1
    real = os.statvfs(served.root)
    found = told(lib, "statfs", path)
    assert found != WHOLE and found[1] == real.f_bsize
    control.owner = os.geteuid()


def test_a_copy_has_the_handle_of_its_file(lib: Any, served: Served) -> None:
    """The handle of a copy's descriptor, and of that descriptor's name in /proc, is the handle of
    the source's file. Other files keep their own handles, if their file system supports handles."""
    source, copy = served.root / "f", served.publish("f", b"content")
    empty, follow = 0x1000, 0x400  # AT_EMPTY_PATH, AT_SYMLINK_FOLLOW

    def handle(path: Any, dir_fd: int = -100, flags: int = 0) -> bytes | int:
        out = ffi.new("char[200]")
        n = lib.filesystem_handle(dir_fd, path, flags, out)
        return bytes(ffi.buffer(out, n)) if n >= 0 else int(n)

    expected = handle(bytes(source))
    other = handle(bytes(copy))
    assert expected != other or isinstance(expected, int)
    for path, result in ((copy, expected), (source, expected), (served.root / "d" / "g", None)):
        fd = os.open(path, os.O_RDONLY)
        found = result if result is not None else handle(bytes(path))
        assert handle(b"", fd, empty) == found
        assert handle(f"/proc/self/fd/{fd}".encode(), -100, follow) == found
        if isinstance(found, bytes):
            assert handle(f"/proc/self/fd/{fd}".encode()) != found, "the link itself"
        lib.backing_close(fd)
        os.close(fd)
    fd = os.open(served.root, os.O_RDONLY)
    assert handle(b"d/g", fd) == handle(bytes(served.root / "d" / "g"))
    os.close(fd)
    assert handle(ffi.NULL) == -errno.EFAULT
    assert handle(bytes(served.root / "none")) == -errno.ENOENT
