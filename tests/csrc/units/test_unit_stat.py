"""Tests the calls that report a file's attributes: what the catalog answers, and what a descriptor
of a copy shows."""

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

from monarch_py.native import Reason, State

AT_FDCWD, NOFOLLOW = -100, 0x100
SECOND = 10**9
LSTAT, FSTAT, FSTATAT = 1, 2, 3
# A call's number is its index in NAMES. NAMES[n + OLD] is the name of call n in glibc before 2.33.
OLD = 4
NAMES = ("stat", "lstat", "fstat", "fstatat", "__xstat", "__lxstat", "__fxstat", "__fxstatat")
Attributes = tuple[int, ...]


def attributes(found: os.stat_result) -> Attributes:
    return (
        found.st_dev, found.st_ino, found.st_mode, found.st_nlink, found.st_uid, found.st_gid,
        found.st_size, found.st_blksize, found.st_blocks,
        found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns,
    )  # fmt: skip


class Stats:
    """A source with the file f, the link l to it, and the directory d. Their attributes were
    scanned. The mtime of f lies before 1970."""

    def __init__(self, lib: Any, place: Place, root: Path, tier: Path) -> None:
        self.lib, self.root = lib, root
        (root / "d").mkdir(parents=True)
        tier.mkdir(mode=0o700)
        self.file, self.link = root / "f", root / "l"
        self.file.write_bytes(b"x" * 1234)
        self.file.chmod(0o640)
        os.utime(self.file, ns=(5 * SECOND + 6, -3 * SECOND - 7))
        os.link(self.file, root / "d" / "other")
        self.link.symlink_to("f")
        self.scanned = attributes(self.file.stat())
        self.scanned_link = attributes(self.link.lstat())
        self.served = Served(lib, place, root, tier)

    def change(self) -> None:
        """Changes the file at the source. The catalog does not notice."""
        self.file.write_bytes(b"y" * 99)
        self.file.chmod(0o600)

    def call(
        self, call: int, path: Path | str = "", flags: int = 0, dir_fd: int = AT_FDCWD
    ) -> Attributes | int:
        """Returns the attributes, or -errno."""
        out = ffi.new("int64_t[]", 12)
        done = int(self.lib.stat_of(call, dir_fd, os.fsencode(path), flags, out))
        return tuple(int(value) for value in out) if done == 0 else done

    def hits(self) -> int:
        return sum(int(one.metadata_hits) for one in self.served.clients.stats)


@pytest.fixture
def stats(lib: Any, place: Place, tmp_path: Path) -> Iterator[Stats]:
    one = Stats(lib, place, tmp_path / "data", tmp_path / "tier")
    yield one
    one.served.end()


@pytest.mark.parametrize("call", [0, 1, 3, 4, 5, 7], ids=lambda call: NAMES[call])
def test_the_catalog_answers_for_a_path(stats: Stats, call: int) -> None:
    """The answers contain the attributes that the scan has found. The library does not contact the
    source."""
    stats.change()
    is_link = call % OLD == LSTAT
    assert stats.call(call, stats.file) == stats.scanned
    assert stats.call(call, stats.link) == (stats.scanned_link if is_link else stats.scanned)
    assert stats.hits() == 2
    if call % OLD == FSTATAT:
        assert stats.call(call, stats.link, NOFOLLOW) == stats.scanned_link
        fd = os.open(stats.root, os.O_RDONLY)
        assert stats.call(call, "f", 0, fd) == stats.scanned
        os.close(fd)
        assert stats.hits() == 4


@pytest.mark.parametrize("call", range(8), ids=NAMES)
def test_the_source_answers_for_what_has_changed(stats: Stats, call: int) -> None:
    stats.served.known.mark_changed(stats.file)
    stats.change()
    now = attributes(stats.file.stat())
    fd = os.open(stats.file, os.O_RDONLY)
    is_descriptor = call % OLD == FSTAT
    found = stats.call(call, stats.file, 0, fd if is_descriptor else AT_FDCWD)
    os.close(fd)
    assert found == now and stats.hits() == 0


@pytest.mark.parametrize(
    "case", ["uncached", "owner", "off", "switch", "switched", "version", "old", "bypass", "none"]
)
def test_the_source_answers_where_the_catalog_may_not(stats: Stats, case: str) -> None:
    """The catalog answers only in the case "none". In the other cases the catalog may not answer,
    so the source does. In the case "owner", for example, the process belongs to another user, who
    may have fewer rights than the daemon. In the case "version", the daemon is changing the
    entry."""
    control, entry = stats.served.control, stats.served.entry("f")
    stats.change()
    if case == "uncached":
        control.metadata_cached = 0
    elif case == "owner":
        control.owner += 1
    elif case == "off":
        control.off = 1
    elif case == "switched":
        # Monarch is off while a file with this path exists. The library looks for it once a second.
        control.switch_file[0] = bytes(stats.root)
        stats.lib.attach_forget_tick()
    elif case == "version":
        entry.version += 1
    elif case == "old":
        control.compared_ns, control.revalidate_ns = 1, SECOND
    elif case == "bypass":
        entry.word = State.BYPASS | Reason.CHANGED << 4

    def answers() -> dict[int, Any]:
        if case == "switch":
            stats.lib.attach_switch(stats.served.s, 1)
        found = {call: stats.call(call, stats.file) for call in (LSTAT, FSTATAT)}
        stats.lib.attach_switch(stats.served.s, 0)
        return found

    expected = stats.scanned if case == "none" else attributes(stats.file.stat())
    # Once a second, the library looks for switch files. It finds none, which undoes
    # `attach_switch`. If that happens between the calls, they are right the second time.
    tries = 2 if case == "switch" else 1
    assert dict.fromkeys((LSTAT, FSTATAT), expected) in [answers() for _ in range(tries)]


@pytest.mark.parametrize("call", range(8), ids=NAMES)
def test_an_error_is_the_kernels(stats: Stats, call: int) -> None:
    """Only the source can say that a file does not exist. So the catalog answers no call that
    fails."""
    expected = -errno.EBADF if call % OLD == FSTAT else -errno.ENOENT
    assert stats.call(call, stats.root / "none", 0, -1) == expected
    if call % OLD == FSTATAT:
        assert stats.call(call, stats.file, 0x40000) == -errno.EINVAL
        assert stats.call(call, "f", 0, 999) == -errno.EBADF
    assert stats.hits() == 0


@pytest.mark.parametrize("call", [FSTAT, FSTAT + OLD, FSTATAT, FSTATAT + OLD])
def test_a_descriptor_of_a_copy_shows_the_sources_file(stats: Stats, call: int) -> None:
    empty_path = 0x1000
    copy = stats.served.publish("f", b"x" * 1234)
    fd = os.open(copy, os.O_RDONLY)
    is_at = call % OLD == FSTATAT

    def found() -> Attributes | int:
        return stats.call(call, "", empty_path if is_at else 0, fd)

    assert found() == stats.scanned
    copy.unlink()
    assert found() == stats.scanned, "the daemon has removed the copy"
    os.close(fd)


def test_a_copy_that_is_removed_during_the_call_shows_the_sources_file(stats: Stats) -> None:
    """The daemon removes the copy right after the kernel's answer. So this answer still counts the
    copy's name as a link, although the copy has no name any more. The library must nevertheless
    report the attributes of the source's file."""
    for name in ("f", "d/other"):
        copy, entry = stats.served.publish(name, b"x" * 1234), stats.served.entry(name)
        fd = os.open(copy, os.O_RDONLY)
        entry.word = entry.word & ~15 | State.ABSENT
        assert stats.lib.stat_while_removed(fd, bytes(copy)) == stats.file.stat().st_ino
        assert not copy.exists()
        os.close(fd)


@pytest.mark.parametrize("change", ["mode", "time", "size", "replaced"])
def test_a_descriptor_shows_the_version_that_was_opened(stats: Stats, change: str) -> None:
    """A file at the source changes while a descriptor of its copy is open. If only the mode has
    changed, fstat of the descriptor returns the new mode and the new ctime. If the mtime has
    changed too, fstat returns the new mode, but the times of the version that was opened. If the
    size has changed or the file was replaced, fstat returns nothing new."""
    copy, scanned = stats.served.publish("f", b"x" * 1234), stats.scanned
    fd = os.open(copy, os.O_RDONLY)
    stats.served.known.mark_changed(stats.file)
    stats.file.chmod(0o604)
    if change == "time":
        os.utime(stats.file, ns=(1, 2))
    elif change == "size":
        stats.file.write_bytes(b"y")
    elif change == "replaced":
        stats.file.unlink()
        stats.file.write_bytes(b"x" * 1234)
        stats.file.chmod(0o604)
    now = stats.file.stat()
    expected = list(scanned)
    if change in ("mode", "time"):
        expected[2] = now.st_mode
    if change == "mode":
        expected[11] = now.st_ctime_ns
    assert stats.call(FSTAT, "", 0, fd) == tuple(expected)
    os.close(fd)


@pytest.mark.parametrize("call", range(4), ids=NAMES[OLD:])
def test_another_layout_of_the_attributes_is_libcs_task(stats: Stats, call: int) -> None:
    """The calls of older programs name the layout of struct stat by a version. libc refuses a
    version that it does not know. If libc lacks these calls, it has only one layout, so the library
    accepts any version."""
    fd = os.open(stats.file, os.O_RDONLY)
    size = stats.file.stat().st_size
    for version, known in ((1, True), (0, True), (2, False), (99, False), (-1, False)):
        found = [
            stats.lib.stat_of_version(call, version, fd, bytes(stats.file), lacks)
            for lacks in (0, 1)
        ]
        assert found == [size if known else -errno.EINVAL, size], version
    os.close(fd)


@pytest.mark.parametrize("call", range(8), ids=NAMES)
def test_a_path_is_learned_from_the_kernels_answer(stats: Stats, call: int) -> None:
    """The library learns nothing from a call that fails, from a call that the catalog answers, from
    a path that is relative to a descriptor, or from the name of a copy's descriptor."""
    outside = stats.root.parent
    by_path = call % OLD != FSTAT
    fd = os.open(outside, os.O_RDONLY)
    copy = os.open(stats.served.publish("f", b"x" * 1234), os.O_RDONLY)
    stats.lib.stat_learnt()
    assert stats.call(call, outside, 0, fd if not by_path else AT_FDCWD) != -1
    assert stats.lib.stat_learnt() == by_path
    assert isinstance(stats.call(call, outside / "none", 0, -1), int)
    assert stats.lib.stat_learnt() == 0
    if call % OLD != LSTAT:
        assert stats.call(call, f"/proc/self/fd/{copy}", 0, copy) == stats.scanned
        assert stats.lib.stat_learnt() == 0
    if by_path:
        assert stats.call(call, stats.file) == stats.scanned
        assert stats.lib.stat_learnt() == 0
    if call % OLD == FSTATAT:
        stats.call(call, ".", 0, fd)
        assert stats.lib.stat_learnt() == 0
        stats.call(call, outside, 0, fd)
        assert stats.lib.stat_learnt() == 1
    os.close(fd)
    os.close(copy)


def test_without_a_daemon_every_file_is_the_kernels(stats: Stats) -> None:
    """Without a daemon, the library returns the kernel's answer even for a file with the mode that
    copies have."""
    stats.file.chmod(0o400)
    fd = os.open(stats.file, os.O_RDONLY)
    stats.lib.attach_set_current(ffi.NULL)
    found = stats.call(FSTAT, "", 0, fd)
    stats.lib.attach_set_current(stats.served.s)
    assert found == attributes(os.fstat(fd))
    os.close(fd)
