"""Tests the calls that ask whether a name exists or where a path leads: which of them the library
answers from the catalog, and how."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place
from csrc.units.serving import Served

AT_FDCWD, NOFOLLOW, EACCESS, EMPTY_PATH = -100, 0x100, 0x200, 0x1000
F, R, W, X = os.F_OK, os.R_OK, os.W_OK, os.X_OK
NAMES = ("access", "eaccess", "euidaccess", "faccessat")
ACCESS, FACCESSAT = 0, 3
READLINK = ("readlink", "readlinkat", "__readlink_chk", "__readlinkat_chk")
REALPATH = ("realpath", "realpath without a buffer", "canonicalize_file_name", "__realpath_chk")
PATH_MAX = 4096
# The errors of the functions that look.c puts in place of libc's functions.
LIBC, FORTIFIED = -errno.ENOTTY, -errno.EOVERFLOW


class Looks:
    """A source with the directory d and the files d/f and d/g. Only d/f has a copy. The link d/l
    leads to f, the link d/none leads nowhere, and the link to_d leads to d."""

    def __init__(self, lib: Any, place: Place, root: Path, tier: Path) -> None:
        self.lib, self.root = lib, root
        (root / "d").mkdir(parents=True)
        tier.mkdir(mode=0o700)
        (root / "d/f").write_bytes(b"f")
        (root / "d/g").write_bytes(b"g")
        (root / "d/l").symlink_to("f")
        (root / "d/none").symlink_to("nowhere")
        (root / "to_d").symlink_to("d")
        self.served = Served(lib, place, root, tier)
        self.served.publish("d/f", b"f")

    def list(self) -> None:
        """Lists the directories, as a program does. For a moment afterwards, the library knows that
        the directories have not changed since the scan."""
        for path in (self.root, self.root / "d"):
            assert self.lib.listing_close(self.lib.listing_open(bytes(path))) == 0

    def access(self, call: int, name: str, mode: int = F, flags: int = 0) -> int:
        self.list()
        path = os.fsencode(self.root / name)
        return int(self.lib.look_access(call, AT_FDCWD, path, mode, flags))

    def link(
        self, call: int, name: str, n: int = 100, size: int = 100, dir_fd: int = AT_FDCWD
    ) -> bytes | int:
        target = ffi.new("char[]", b"#" * 200)
        path = os.fsencode(name if dir_fd >= 0 else self.root / name)
        done = int(self.lib.look_link(call, dir_fd, path, target, n, size))
        if done < 0:
            return done
        found = bytes(ffi.buffer(target))
        assert found[done:] == b"#" * (200 - done) + b"\0", "only the target is written"
        return found[:done]

    def real(self, call: int, name: str, size: int = PATH_MAX) -> str | int:
        out = ffi.new("char[]", PATH_MAX)
        done = int(self.lib.look_real(call, os.fsencode(f"{self.root}/{name}"), size, out))
        if done:
            return done
        found = os.fsdecode(ffi.string(out))
        assert found.startswith(str(self.root))
        return found[len(str(self.root)) :]


@pytest.fixture
def looks(lib: Any, place: Place, tmp_path: Path) -> Iterator[Looks]:
    one = Looks(lib, place, tmp_path / "data", tmp_path / "tier")
    lib.look_replace(1)
    yield one
    lib.look_replace(0)
    one.served.end()


@pytest.mark.parametrize("call", range(len(NAMES)), ids=NAMES)
def test_what_exists_is_known(looks: Looks, call: int) -> None:
    """The library itself answers for names that exist. Only libc can say that a name does not
    exist."""
    for name in ("", "d", "d/f", "d/g", "d/l", "to_d", "to_d/f", "d/../d/g"):
        assert looks.access(call, name) == 0, name
    assert looks.access(call, "d/none") == looks.access(call, "d/other") == LIBC


@pytest.mark.parametrize("call", range(len(NAMES)), ids=NAMES)
def test_only_what_the_daemon_could_do_is_certainly_allowed(looks: Looks, call: int) -> None:
    """The daemon has copied d/f, so it may certainly read this file. It has scanned d, so it may
    certainly list d and look up names in d. Nothing shows that it may write to a file or execute
    one."""
    for name, mode in (
        ("d/f", R), ("d/l", R), ("d", R), ("d", X), ("d", R | X), ("to_d", X),
    ):  # fmt: skip
        assert looks.access(call, name, mode) == 0, (name, mode)
    for name, mode in (
        ("d/g", R), ("d/f", W), ("d/f", X), ("d/f", R | W), ("d/f", R | X), ("d", W),
        ("d", R | W), ("d", R | W | X), ("d", X | W),
    ):  # fmt: skip
        assert looks.access(call, name, mode) == LIBC, (name, mode)
    looks.served.entry("d/f").word &= ~15
    assert looks.access(call, "d/f", R) == LIBC and looks.access(call, "d/f") == 0


def test_a_directory_without_names_shows_no_right_to_look_names_up(
    lib: Any, place: Place, tmp_path: Path
) -> None:
    (tmp_path / "data/d").mkdir(parents=True)
    (tmp_path / "tier").mkdir(mode=0o700)
    served = Served(lib, place, tmp_path / "data", tmp_path / "tier")
    path = bytes(tmp_path / "data/d")
    lib.look_replace(1)
    try:
        for mode, found in ((R, 0), (X, LIBC), (R | X, LIBC)):
            assert lib.listing_close(lib.listing_open(path)) == 0
            assert lib.look_access(ACCESS, AT_FDCWD, path, mode, 0) == found
    finally:
        lib.look_replace(0)
        served.end()


def test_libc_decides_about_unknown_modes_and_flags(looks: Looks) -> None:
    for call in range(len(NAMES)):
        assert looks.access(call, "d/f", 8) == looks.access(call, "d/f", R | 16) == LIBC
    for name, flags, found in (
        ("d/f", EACCESS, 0), ("d/none", NOFOLLOW, 0), ("d/none", NOFOLLOW | EACCESS, 0),
        ("d/none", EACCESS, LIBC), ("d/f", EMPTY_PATH, LIBC), ("d/f", 0x40000, LIBC),
    ):  # fmt: skip
        assert looks.access(FACCESSAT, name, F, flags) == found


def test_a_process_of_another_user_asks_libc(looks: Looks) -> None:
    """The library passes the call to libc, because a process of another user may have fewer rights
    than the daemon."""
    looks.served.control.owner += 1
    for call in range(len(NAMES)):
        assert looks.access(call, "d/f") == LIBC
    assert looks.access(FACCESSAT, "d/f", F, EACCESS) == LIBC


@pytest.mark.parametrize("call", range(len(READLINK)), ids=READLINK)
def test_a_link_is_read_from_the_catalog(looks: Looks, call: int) -> None:
    """If a target is too long for the buffer, the library cuts off its end, as the kernel does."""
    assert looks.link(call, "d/l") == b"f" and looks.link(call, "d/none") == b"nowhere"
    assert looks.link(call, "to_d/none") == b"nowhere"
    for n in (1, 6, 7, 8):
        assert looks.link(call, "d/none", n) == b"nowhere"[:n]
    assert looks.link(call, "d/f") == -errno.EINVAL
    looks.list()
    assert looks.link(call, "d") == -errno.EINVAL
    assert looks.link(call, "d/other") == looks.link(call, "d/l", 0) == LIBC
    path = bytes(looks.root / "d/l")
    assert looks.lib.look_link(call, AT_FDCWD, path, ffi.NULL, 9, 9) == LIBC
    if call % 2:
        fd = os.open(looks.root / "d", os.O_RDONLY)
        assert looks.link(call, "l", dir_fd=fd) == b"f"
        assert looks.link(call, "other", dir_fd=fd) == LIBC
        os.close(fd)


@pytest.mark.parametrize("call", [2, 3], ids=READLINK[2:])
def test_a_program_that_asks_for_more_than_its_buffer_is_left_to_libc(
    looks: Looks, call: int
) -> None:
    """A call may state a length that exceeds its buffer. The library leaves this call to libc,
    which terminates the program."""
    for n, size in ((100, 99), (1, 0), (2, 1)):
        assert looks.link(call, "d/l", n, size) == FORTIFIED
    for n, size in ((100, 100), (99, 100), (1, 1)):
        assert looks.link(call, "d/l", n, size) == b"f"


@pytest.mark.parametrize("call", range(len(REALPATH)), ids=REALPATH)
def test_a_real_path_is_found_in_the_catalog(looks: Looks, call: int) -> None:
    for name, real in (
        ("d/f", "/d/f"), ("d/l", "/d/f"), ("to_d/l", "/d/f"), ("d/../d/./g", "/d/g"),
        ("d", "/d"), ("to_d", "/d"), ("to_d/", "/d"), ("", ""), (".", ""), ("d/..", ""),
    ):  # fmt: skip
        assert looks.real(call, name) == real, name
    for name in ("d/none", "d/other", "other/f"):
        assert looks.real(call, name) == LIBC


def test_a_buffer_for_a_real_path_must_be_large_enough(looks: Looks) -> None:
    """If the buffer has fewer than PATH_MAX bytes, the library leaves the call to libc, whose
    fortified realpath then terminates the program."""
    assert looks.real(3, "d/f", PATH_MAX - 1) == FORTIFIED
    assert looks.real(3, "d/f", PATH_MAX) == "/d/f"


@pytest.mark.parametrize("case", ["off", "uncached", "changed", "gone"])
def test_libc_answers_where_the_catalog_may_not(looks: Looks, case: str) -> None:
    if case == "off":
        looks.served.control.off = 1
    elif case == "uncached":
        looks.served.control.metadata_cached = 0
    elif case == "changed":
        for name in ("d/f", "d/l", "d"):
            looks.served.known.mark_changed(looks.root / name)
    else:
        for name in ("d/f", "d/l"):
            looks.served.entry(name).version += 1
    for call in range(4):
        assert (
            looks.access(call, "d/f")
            == looks.link(call, "d/l")
            == looks.real(call, "d/f")
            == (LIBC)
        )
    if case == "changed":
        assert looks.access(ACCESS, "d") == looks.real(0, "d") == LIBC
