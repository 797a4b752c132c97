"""Tests what the interposed functions pass to the kernel. There is no session."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi, load

AT_FDCWD = -100
SAME = 2**32 - 1  # -1: leaves the user or the group as it is


@pytest.fixture(scope="module")
def lib() -> Any:
    ffi.cdef("""
        int chown(const char *, unsigned, unsigned);
        int lchown(const char *, unsigned, unsigned);
        int fchown(int, unsigned, unsigned);
        int fchownat(int, const char *, unsigned, unsigned, int);
        int fchmodat(int, const char *, unsigned, int);
    """)
    return load()


@pytest.mark.parametrize("call", ["chown", "lchown", "fchown", "fchownat"])
def test_an_owner_is_an_owner_and_a_group_a_group(lib: Any, tmp_path: Path, call: str) -> None:
    """If the call sets only the group, the file keeps its owner. If the call sets only the owner,
    the file keeps its group."""
    path = tmp_path / "f"
    path.touch()
    is_root = os.geteuid() == 0
    with path.open("rb") as file:
        begin = {"fchown": (file.fileno(),), "fchownat": (AT_FDCWD, os.fsencode(path))}
        end = (0,) if call == "fchownat" else ()
        first = begin.get(call, (os.fsencode(path),))
        group = 4321 if is_root else os.getegid()
        user = 1234 if is_root else os.geteuid()
        owner = path.stat().st_uid
        assert getattr(lib, call)(*first, SAME, group, *end) == 0
        assert (path.stat().st_uid, path.stat().st_gid) == (owner, group)
        assert getattr(lib, call)(*first, user, SAME, *end) == 0
        assert (path.stat().st_uid, path.stat().st_gid) == (user, group)


def test_a_mode_is_a_mode(lib: Any, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    assert lib.fchmodat(AT_FDCWD, os.fsencode(path), 0o640, 0) == 0
    assert path.stat().st_mode & 0o7777 == 0o640


def test_locks_are_read_as_they_were_taken(lib: Any, tmp_path: Path) -> None:
    """The library finds the type, start and length of each POSIX lock of a descriptor. It does not
    find locks made by flock."""
    path = tmp_path / "f"
    path.touch()
    ranges = [
        (fcntl.F_RDLCK, 0, 1),
        (fcntl.F_WRLCK, 10, 90),
        (fcntl.F_RDLCK, 200, 2**40),
        (fcntl.F_WRLCK, 2**41, 0),
    ]
    with path.open("r+b") as file, path.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        for kind, start, n in ranges:
            lock = struct.pack("hhqqi", kind, os.SEEK_SET, start, n, 0)
            fcntl.fcntl(file, fcntl.F_SETLK, lock)
        out = ffi.new("int64_t[]", 3 * 128)
        n = lib.locked_ranges(file.fileno(), out)
        found = [tuple(out[3 * i : 3 * i + 3]) for i in range(n)]
        assert sorted(found, key=lambda one: one[1]) == ranges
        assert lib.locked_ranges(other.fileno(), out) == 0
        fcntl.flock(file, fcntl.LOCK_SH)
        assert lib.locked_ranges(file.fileno(), out) == len(ranges)
