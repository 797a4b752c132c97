"""Tests in which cases the library replaces a program's descriptor of a source's file by a
descriptor of the copy. Also tests that lock calls wait until the replacement is over."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place, open_descriptors
from csrc.units.serving import Served

from monarch_py.native import State

OFFSET, SHARED, PINNED = 1, 2, 4
SLOTS = 16
NUMBER = 700  # a descriptor number that nothing else in this process uses


class Descriptors:
    """A source with the files f and g, of which f has a copy."""

    def __init__(self, lib: Any, place: Place, root: Path, tier: Path) -> None:
        self.lib, self.path = lib, root / "f"
        root.mkdir()
        tier.mkdir(mode=0o700)
        self.path.write_bytes(b"source")
        (root / "g").write_bytes(b"g")
        self.served = Served(lib, place, root, tier)
        self.s, self.id, self.entry = self.served.s, self.served.id("f"), self.served.entry("f")
        self.copy = self.served.publish("f", b"copied")
        lib.track_number(self.s, 0, 1)

    def open(self, flags: int = 0, path: Path | None = None) -> int:
        """Opens the file at the source, and tracks the descriptor as a descriptor of f, even if
        `path` is another file."""
        fd = os.open(path or self.path, os.O_RDONLY | flags)
        os.dup2(fd, NUMBER, inheritable=not flags & os.O_CLOEXEC)
        os.close(fd)
        self.lib.track_track(self.s, NUMBER, self.id, 0)
        return NUMBER

    def promote(
        self, fd: int, *, word: int | None = None, version: int = 0, inode: int = 0
    ) -> bool:
        """Tries to replace the descriptor. Returns whether it was replaced. Also checks the file to
        which the descriptor then refers: the copy if it was replaced, otherwise the same file as
        before.

        word : the descriptor's word as the caller found it; None: as it is now
        version, inode : the version and the inode that the caller found in the entry exceed the
            present ones by these numbers
        """
        before, inode_before = open_descriptors(), os.fstat(fd).st_ino
        tracked = self.lib.track_word(fd) if word is None else word
        done = self.lib.promote_promote(self.s, self.id, fd, tracked, version, inode)
        assert done >= 0, "the replacement was not announced"
        assert open_descriptors() == before
        assert os.fstat(fd).st_ino == (self.copy.stat().st_ino if done else inode_before)
        return bool(done)

    def free_slots(self) -> int:
        """Returns how many slots were free. Afterwards, all slots are in use."""
        return sum(self.lib.promote_begin(1, i) >= 0 for i in range(SLOTS))

    def promotions(self) -> int:
        return sum(int(one.promotions) for one in self.served.clients.stats)


@pytest.fixture
def descriptors(lib: Any, place: Place, tmp_path: Path) -> Iterator[Descriptors]:
    lib.track_forget()
    lib.backing_forget()
    lib.locked_forget()
    lib.promote_forget()
    one = Descriptors(lib, place, tmp_path / "data", tmp_path / "tier")
    yield one
    one.served.end()
    if os.path.exists(f"/proc/self/fd/{NUMBER}"):
        os.close(NUMBER)
    lib.track_forget()
    lib.locked_forget()
    lib.promote_forget()


@pytest.mark.parametrize("flags", [0, os.O_CLOEXEC, os.O_NONBLOCK, os.O_NOFOLLOW])
def test_a_descriptor_is_replaced_by_one_of_the_copy(descriptors: Descriptors, flags: int) -> None:
    """After the replacement, the descriptor refers to the copy and keeps its flags. The library no
    longer tracks it."""
    fd = descriptors.open(flags)
    status, inherited = fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETFD)
    assert descriptors.promote(fd) and descriptors.promotions() == 1
    assert descriptors.lib.descriptors_fcntl(fd, fcntl.F_GETFL, 0) == status
    assert fcntl.fcntl(fd, fcntl.F_GETFD) == inherited
    assert descriptors.lib.track_word(fd) == 0 and os.read(fd, 10) == b"copied"
    assert descriptors.free_slots() == SLOTS


@pytest.mark.parametrize("flag", [OFFSET, SHARED, PINNED])
def test_a_descriptor_that_may_be_used_otherwise_stays(descriptors: Descriptors, flag: int) -> None:
    fd = descriptors.open()
    word = descriptors.lib.track_word(fd) | flag
    descriptors.lib.track_set(fd, word)
    assert not descriptors.promote(fd) and descriptors.lib.track_word(fd) == word


@pytest.mark.parametrize(
    "case", ["state", "offset", "other word", "untracked", "process", "no copy"]
)
def test_a_descriptor_stays_as_it_was(descriptors: Descriptors, case: str) -> None:
    """In each case, the descriptor is not replaced, but the library may try again later."""
    fd, lib = descriptors.open(), descriptors.lib
    given = int(lib.track_word(fd))
    if case == "state":
        descriptors.entry.word = descriptors.entry.word & ~15 | State.FILLING
    elif case == "offset":
        os.lseek(fd, 1, os.SEEK_SET)
    elif case == "other word":
        given += 1 << 9
    elif case == "untracked":
        lib.track_set(fd, 0)
    elif case == "process":
        lib.track_belongs(os.getppid(), 0)
    elif case == "no copy":
        descriptors.copy.rename(descriptors.copy.with_name("away"))
    word = lib.track_word(fd)
    assert not descriptors.promote(fd, word=given)
    lib.track_belongs(os.getpid(), 1)
    assert lib.track_word(fd) == word and descriptors.promotions() == 0


@pytest.mark.parametrize("case", ["version", "inode", "file", "locks", "slots"])
def test_a_descriptor_that_cannot_be_replaced_is_not_tried_again(
    descriptors: Descriptors, case: str
) -> None:
    """In each case, the descriptor is not replaced, and the library never tries again. The cases:
    the entry describes another version or another inode by now; another thread has opened another
    file on the descriptor's number; the process has locks on the file; no slot is free."""
    lib = descriptors.lib
    fd = descriptors.open(path=descriptors.path.with_name("g") if case == "file" else None)
    word = lib.track_word(fd)
    if case == "locks":
        lib.locked_note(fd)
    elif case == "slots":
        for i in range(SLOTS):
            assert lib.promote_begin(1, i) == i
    assert not descriptors.promote(fd, version=2 * (case == "version"), inode=case == "inode")
    assert lib.track_word(fd) == word | SHARED and descriptors.promotions() == 0
    assert descriptors.free_slots() == (0 if case == "slots" else SLOTS)


def test_a_lock_waits_until_descriptors_of_the_file_are_closed(descriptors: Descriptors) -> None:
    """The lock call gives up after 5 s, because a close may take long: the kernel may have to
    contact a file system's server. The lock call does not wait for closings of other files, nor for
    closings that were under way in the parent process when it forked this process."""
    lib, fd = descriptors.lib, descriptors.open()
    found = descriptors.path.stat()
    for i in range(3):
        assert lib.promote_begin(found.st_dev, 1000 + i) == i
    assert lib.promote_keep_locks(fd) and lib.promote_rounds() == 0
    assert lib.promote_begin(found.st_dev, found.st_ino) == 3
    lib.promote_ends_in(3)
    assert lib.promote_keep_locks(fd) and lib.promote_rounds() == 3
    assert lib.promote_begin(found.st_dev, found.st_ino) == 3
    lib.promote_ends_in(0)
    assert not lib.promote_keep_locks(fd) and lib.promote_rounds() in (5, 6)
    lib.promote_ends_in(0)
    lib.promote_inherit(3)
    assert lib.promote_keep_locks(fd) and lib.promote_rounds() == 0
    assert lib.promote_begin(found.st_dev, found.st_ino) == 3, "the slot is free"
    lib.promote_end(1)
    assert lib.promote_begin(1, 1) == 1
    assert [lib.promote_begin(1, i) for i in range(4, SLOTS + 2)] == [*range(4, SLOTS), -1, -1]


def test_a_file_on_which_there_may_be_locks_is_noted(descriptors: Descriptors) -> None:
    """Only locks on regular files are noted, and only if there is a daemon."""
    lib, fd = descriptors.lib, descriptors.open()
    found = descriptors.path.stat()
    ends, directory = os.pipe(), os.open(descriptors.path.parent, os.O_RDONLY)
    for other in (*ends, directory, 999):
        assert lib.promote_keep_locks(other)
    at = descriptors.path.parent.stat()
    assert not lib.locked_has(at.st_dev, at.st_ino)
    lib.attach_set_current(ffi.NULL)
    assert lib.promote_keep_locks(fd) and not lib.locked_has(found.st_dev, found.st_ino)
    lib.attach_set_current(descriptors.s)
    assert lib.promote_keep_locks(fd) and lib.locked_has(found.st_dev, found.st_ino)
    assert lib.promote_kept() == fd
    for one in (*ends, directory):
        os.close(one)


@pytest.mark.parametrize("case", ["same", "size", "time", "other", "untracked"])
def test_after_a_lock_the_file_is_compared_with_the_catalog(
    descriptors: Descriptors, case: str
) -> None:
    """The previous holder of the lock may have changed the file. If so, nobody gets the file's copy
    any more."""
    other = descriptors.path.with_name("g")
    fd = descriptors.open(path=other if case == "other" else None)
    if case == "size":
        descriptors.path.write_bytes(b"longer than before")
    elif case == "time":
        os.utime(descriptors.path, ns=(1, 2))
    elif case == "untracked":
        descriptors.path.write_bytes(b"longer than before")
        descriptors.lib.track_set(fd, 0)
    descriptors.lib.promote_compare(fd)
    changed = []
    for path in (descriptors.path, other):
        at = path.stat()
        changed.append(bool(descriptors.lib.watch_is_changed(descriptors.s, at.st_dev, at.st_ino)))
    assert changed == [case in ("size", "time"), False]


def test_a_descriptor_is_recognized_by_device_inode_and_kind(descriptors: Descriptors) -> None:
    lib, s, number = descriptors.lib, descriptors.s, descriptors.id
    fd = descriptors.open()
    assert lib.promote_is_still(s, number, fd)
    for by in (-1, 1):
        descriptors.entry.ino += by
        assert not lib.promote_is_still(s, number, fd)
        descriptors.entry.ino -= by
        descriptors.served.control.source[0].dev += by
        assert not lib.promote_is_still(s, number, fd)
        descriptors.served.control.source[0].dev -= by
    directory = os.open(descriptors.path.parent, os.O_RDONLY)
    descriptors.entry.ino = os.fstat(directory).st_ino
    assert not lib.promote_is_still(s, number, directory)
    assert not lib.promote_is_still(s, number, 999)
    os.close(directory)
