"""How a scan walks a tree. The threads of a scan divide the directories among themselves, and even
the names of a single large directory."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.mounts import Mounts

from monarch_py.arrays import ENTRY, pointer
from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc import word
from monarch_py.native import Kind, Reason, State, ffi, lib
from monarch_py.scan.walk import Walk

LATENCY_S = 0.01
FILES = 400
SCAN_H = Path(__file__).resolve().parents[2] / "csrc" / "scan" / "scan.h"
# The number of names that a thread takes at a time.
(PORTION,) = map(int, re.findall(r"^#define PORTION (\d+)$", SCAN_H.read_text(), re.M))


def scan(
    root: Path, threads: int, **parts: Any
) -> tuple[dict[str, int], dict[str, int], list[float]]:
    """Scans a tree. Returns the inode of each reported path, the number of names in each listed
    directory, and for each batch of entries the time from the start to its arrival [s]."""
    inodes: dict[str, int] = {}
    listed: dict[str, int] = {}
    times: list[float] = []
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    started = time.monotonic()
    walk = Walk(fd, 0, threads, 0, ffi.new("uint32_t *"), **parts)
    try:
        while not walk.is_finished:
            batch = walk.take()
            if batch is None:
                time.sleep(0.001)
                continue
            times.append(time.monotonic() - started)
            for entry in batch.entries:
                raw = ffi.buffer(batch.pool + int(entry["path"]), int(entry["path_len"]))[:]
                inodes[os.fsdecode(raw)] = int(entry["ino"])
                if entry["kind"] == Kind.DIR and entry["sum"]:
                    listed[os.fsdecode(raw)] = int(entry["sum"]) - 1
        assert walk.errors() == (0, 0)
    finally:
        walk.close()
        os.close(fd)
    return inodes, listed, times


def test_threads_share_the_names_of_one_directory(slow_factory: Callable[..., SlowSource]) -> None:
    slow = slow_factory()
    for number in range(FILES):
        (slow.backing / f"f{number:04d}").touch()
    slow.latency(getattr=LATENCY_S)
    inodes, listed, times = scan(slow.mountpoint, threads=16)
    # One thread alone takes FILES * LATENCY_S = 4 s.
    assert times[-1] < FILES * LATENCY_S / 4
    # The daemon gets the first files long before the last ones.
    assert times[0] < times[-1] / 2
    assert listed == {"": FILES}
    assert {p for p in inodes if p} == {f"f{number:04d}" for number in range(FILES)}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of many sizes, which no test changes."""
    rng = np.random.default_rng(1)
    root = tmp_path_factory.mktemp("shapes")
    # The threads take the names of a directory in portions of PORTION names. Most directories have
    # about 1, 2 or 16 portions. The last directory has far more names than may be queued.
    around = [times * PORTION + more for times in (1, 2, 16) for more in (-1, 0, 1)]
    for number, files in enumerate([0, 1, *around, 5000]):
        directory = root / f"d{number}" / ("deep" if number % 2 else "")
        directory.mkdir(parents=True)
        for i in range(files):
            (directory / ("n" * int(rng.integers(1, 240)) + f"-{i}")).touch()
    return root


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_every_name_is_reported_once_whatever_the_shape(shapes: Path, threads: int) -> None:
    inodes, listed, _ = scan(shapes, threads)
    expected, directories = {"": shapes.stat().st_ino}, {"": len(os.listdir(shapes))}
    for directory, below, names in os.walk(shapes):
        for name in (*below, *names):
            path = os.path.join(directory, name)
            expected[os.path.relpath(path, shapes)] = os.stat(path).st_ino
        for name in below:
            path = os.path.join(directory, name)
            directories[os.path.relpath(path, shapes)] = len(os.listdir(path))
    assert inodes == expected
    assert listed == directories


MANY = 50
NAMES = [
    f"d{number:02d}/{below}{i}"
    for number in range(40)
    for below in ("", "deep/")
    for i in range(MANY // 2)
]
NAMES += [f"e/f/{above}/{i}" for above in "gh" for i in range(MANY)]


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of NAMES, which no test changes."""
    root = tmp_path_factory.mktemp("named")
    for directory in parents(NAMES):
        (root / directory).mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (root / name).touch()
    return root


@pytest.mark.parametrize(("directory", "is_deep"), [("d", False), ("e/f/g", False), ("d", True)])
def test_what_is_wanted_comes_first(named: Path, directory: str, is_deep: bool) -> None:
    """The names in a wanted directory come before nearly all others.

    The value "d" of `directory` stands for the first directory d.. that os.listdir returns for the
    root. If no directory is wanted, the walk comes to this one after all other directories d..,
    because it always takes the directory that it has found most recently."""
    root, names, many = named, NAMES, MANY
    last, forgotten, other, *_ = (name for name in os.listdir(root) if name.startswith("d"))
    directory = last if directory == "d" else directory
    fd = os.open(root, os.O_RDONLY)
    walk = Walk(fd, 0, 1, 5000, ffi.new("uint32_t *"))
    # The walk remembers only the last 16 wanted directories, and more than 16 follow this one.
    walk.want(forgotten, is_deep=False)
    for i in range(20):
        walk.want(f"gone{i}", is_deep=False)
    walk.want(directory, is_deep=is_deep)
    walk.want(other, is_deep=False)
    walk.want("", is_deep=True)
    order = []
    try:
        while not walk.is_finished:
            if (batch := walk.take()) is None:
                continue
            for entry in batch.entries:
                raw = ffi.buffer(batch.pool + int(entry["path"]), int(entry["path_len"]))[:]
                order.append(os.fsdecode(raw))
    finally:
        walk.close()
        os.close(fd)
    assert sorted(set(order)) == sorted({"", *map(str, parents(names)), *names})
    wanted = [
        name
        for name in names
        if name.startswith(directory + "/")
        and (is_deep or name.count("/") == directory.count("/") + 1)
    ]
    # Only these names may come before the last wanted name: the other wanted names, the names in
    # the root and in the directories on the path to `directory`, and up to 3 * MANY names in other
    # directories that the walk had already begun.
    most = 42 + len(wanted) + 3 * many
    assert max(map(order.index, wanted)) <= most
    assert order.index(f"{forgotten}/0") > len(order) / 2
    # With is_deep, the subdirectories of `directory` are wanted too. So the scan reaches them
    # before it reaches the subdirectories of `other`.
    if is_deep:
        assert order.index(f"{directory}/deep/0") < order.index(f"{other}/deep/0")


def parents(names: list[str]) -> set[Path]:
    return {parent for name in names for parent in Path(name).parents if parent.name}


@pytest.mark.parametrize("is_deep", [False, True])
def test_parts_of_a_tree(tmp_path: Path, is_deep: bool) -> None:
    """A scan of named directories reports only these directories. A named directory that does not
    exist is passed over."""
    root = tmp_path / "root"
    for name in ("a/x/f1", "a/f2", "b/f3", "b/y/z/f4", "c/f5"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    inodes, listed, _ = scan(root, 2, directories=["a", "b/y", "gone"], is_deep=is_deep)
    names = ["a", "a/x", "a/f2", "b/y", "b/y/z", *(["a/x/f1", "b/y/z/f4"] if is_deep else [])]
    assert inodes == {name: (root / name).stat().st_ino for name in names}
    assert listed == {}  # only a scan of the whole tree reports listings


def test_a_link_that_cannot_be_read_is_an_error() -> None:
    """If a link cannot be read, monarch_stat_entry returns the error. The test uses a link in the
    /proc directory of a process that has ended, because the kernel refuses to read that link."""
    process = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    try:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        root = os.open(f"/proc/{process}", os.O_RDONLY | os.O_DIRECTORY)
        try:
            assert os.lstat("exe", dir_fd=root).st_ino
            target = ffi.new("char[4096]")
            looked = lib.monarch_stat_entry(
                root, 0, b"exe", pointer(np.zeros(1, dtype=ENTRY)), target, len(target)
            )
            assert looked == -errno.ENOENT
        finally:
            os.close(root)
    finally:
        os.waitpid(process, 0)


def plant_kinds(top: Path) -> list[str]:
    """Makes a file of each kind, with different times, and returns their names."""
    (top / "file").write_bytes(b"x" * 5000)
    os.truncate(top / "file", 1 << 20)
    (top / "hard").hardlink_to(top / "file")
    (top / "file").chmod(0o4751)
    (top / "empty").touch()
    (top / "directory").mkdir(mode=0o1770)
    (top / "directory/below").mkdir()
    (top / "link").symlink_to("directory/below")
    os.mkfifo(top / "fifo", 0o600)
    names = ["file", "hard", "empty", "directory", "directory/below", "link", "fifo"]
    for number, name in enumerate(names):
        # The access time is after 1970, and the modification time before 1970.
        times = 10**18 + number, -(10**18) - 2 * number
        os.utime(top / name, ns=times, follow_symlinks=False)
        if os.geteuid() == 0:
            os.chown(top / name, 1000 + number, 2000 + number, follow_symlinks=False)
    return names


def look(root: Path, name: str) -> Any:
    """Examines one file as the scan does. Returns the entry that the scan makes for it."""
    entry, target = np.zeros(1, dtype=ENTRY), ffi.new("char[4096]")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert lib.monarch_stat_entry(fd, 2, name.encode(), pointer(entry), target, 4096) == 0
    finally:
        os.close(fd)
    if entry["kind"] == Kind.LINK:
        assert ffi.string(target).decode() == os.readlink(root / name)
    return entry[0]


def test_a_look_at_a_file_finds_its_attributes(tmp_path: Path) -> None:
    kinds = {stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.DIR, stat.S_IFLNK: Kind.LINK}
    for name in plant_kinds(tmp_path):
        right = (tmp_path / name).lstat()
        found = look(tmp_path, name)
        for field in ("ino", "size", "blocks", "mode", "uid", "gid", "nlink"):
            assert found[field] == getattr(right, f"st_{field}"), (name, field)
        for field in ("atime_ns", "mtime_ns", "ctime_ns"):
            assert found[field] == getattr(right, f"st_{field}"), (name, field)
        assert found["blksize"] * 512 == right.st_blksize
        assert found["kind"] == kinds.get(stat.S_IFMT(right.st_mode), Kind.OTHER)
        assert (found["source"], found["word"]) == (2, 0)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("year_s", [-9_000_000_001, 9_000_000_001])
def test_a_time_that_no_entry_can_hold_leaves_the_file_to_its_source(
    mounts: Mounts, which: int, year_s: int
) -> None:
    root = mounts.tmpfs("root", 1 << 20)
    (root / "file").touch()
    times = [0, 0]
    times[which] = year_s
    os.utime(root / "file", (times[0], times[1]))
    assert (root / "file").stat()[stat.ST_ATIME + which] == year_s
    assert look(root, "file")["word"] == word.make(State.BYPASS, Reason.UNSUPPORTED)


# The scan skips the first path, a mount point. Every other path is an error, because it does not
# name a directory in the source.
PARTS = ["under", "link", "link/deep", "..", "in/../../other", "/"]


def test_a_part_that_lies_elsewhere(mounts: Mounts) -> None:
    """Files below the mount point of another file system, or behind a link, are not listed."""
    root = mounts.tmpfs("root", 1 << 20)
    for name in ("in", "under"):
        (root / name).mkdir()
        (root / name / "f").touch()
    (root / "link").symlink_to("in")
    (root / "in" / "deep").mkdir()
    mounts.cover(root / "under")
    fd = os.open(root, os.O_RDONLY)
    walk = Walk(fd, 0, 2, 0, ffi.new("uint32_t *"), directories=PARTS)
    try:
        found = [walk.take()]
        while not walk.is_finished:
            found.append(walk.take())
        assert not any(found)
        errors, first = walk.errors()
        assert errors == len(PARTS) - 1
        assert first in (errno.ELOOP, errno.ENOTDIR, errno.EXDEV)
    finally:
        walk.close()
        os.close(fd)
