"""Tests the interposed calls on descriptors: they update the library's tables, and return what the
kernel returns."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import Made, ffi

CLOEXEC = 4  # CLOSE_RANGE_CLOEXEC
OFFSET, SHARED = 1, 2
LOW, BEHIND, HIGH = 400, 500, 900  # numbers that no other descriptor of this process has
WORD = 8 << 32


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


def is_inherited(fd: int) -> bool:
    return not fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


@dataclass
class Table:
    """Opens descriptors with numbers that nothing else in this process uses."""

    lib: Any
    path: Path
    made: list[int] = field(default_factory=list)

    def open(self, number: int, flags: int = os.O_RDONLY) -> int:
        fd = os.open(self.path, flags)
        os.dup2(fd, number, inheritable=True)
        os.close(fd)
        self.made.append(number)
        return number

    def pair(self, number: int, behind: int) -> None:
        """Opens a descriptor of the program. Gives it a backing descriptor with the number
        `behind`."""
        self.open(number)
        os.dup2(number, behind, inheritable=True)
        self.made.append(behind)
        assert self.lib.backing_note(number, behind, -1)

    def track(self, fd: int, flags: int = 0) -> int:
        self.lib.track_set(fd, WORD | flags)
        return fd

    def call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.lib, f"descriptors_{name}")(*arguments))


@pytest.fixture(params=[False, True], ids=["whole", "lacking"])
def table(lib: Any, session: Made, tmp_path: Path, request: Any) -> Iterator[Table]:
    """Runs each test twice: with a libc that has all calls, and with an older libc that lacks
    some."""
    (tmp_path / "f").write_bytes(bytes(range(100)))
    lib.track_forget()
    lib.backing_forget()
    lib.track_number(session.s, 0, 1)
    lib.descriptors_lack(request.param)
    one = Table(lib, tmp_path / "f")
    yield one
    lib.descriptors_lack(0)
    for fd in {*one.made, *range(HIGH, HIGH + 9)}:
        lib.backing_close(fd)
        if is_open(fd):
            os.close(fd)
    lib.track_forget()
    assert lib.backing_count() == 0


def test_a_descriptor_behind_another_is_none_of_the_programs(table: Table) -> None:
    table.pair(LOW, BEHIND)
    assert table.call("close", BEHIND) == -errno.EBADF
    assert is_open(BEHIND) and table.lib.backing_number(LOW) == BEHIND
    assert table.call("close", LOW) == 0
    assert not is_open(BEHIND) and not is_open(LOW)
    assert table.call("close", BEHIND) == -errno.EBADF
    fd = table.track(table.open(LOW))
    assert table.call("close", fd) == 0
    assert table.lib.track_word(fd) == 0 and not is_open(fd)


@pytest.mark.parametrize("flags", [0, CLOEXEC])
def test_a_range_is_closed_as_by_the_kernel(table: Table, flags: int) -> None:
    """close_range does what the kernel does, with one exception. A backing descriptor in the range
    stays open, and keeps its close-on-exec flag, if the descriptor that it backs is outside the
    range."""
    for i in range(3):
        table.pair(LOW + i, BEHIND + i)
    for i in range(4):
        table.open(HIGH + i)
    assert table.call("close_range", LOW + 1, LOW, flags) == -errno.EINVAL
    assert table.call("close_range", LOW, HIGH, 64) == -errno.EINVAL
    numbers = [*range(LOW, LOW + 3), *range(BEHIND, BEHIND + 3), *range(HIGH, HIGH + 4)]
    assert all(is_open(fd) and is_inherited(fd) for fd in numbers)
    table.track(HIGH)
    table.track(HIGH + 1)
    assert table.call("close_range", LOW + 2, HIGH, flags) == 0
    gone = {LOW + 2, BEHIND + 2, HIGH}
    if flags:
        assert {fd for fd in numbers if not is_inherited(fd)} == gone
        assert table.lib.backing_count() == 3 and table.lib.track_word(HIGH) == WORD
    else:
        assert {fd for fd in numbers if not is_open(fd)} == gone
        assert table.lib.backing_count() == 2 and table.lib.track_word(HIGH) == 0
    assert table.lib.track_word(HIGH + 1) == WORD


@pytest.mark.parametrize("has_pairs", [False, True])
def test_all_from_a_number_on_are_closed(table: Table, has_pairs: bool) -> None:
    if has_pairs:
        table.pair(LOW, HIGH + 1)
        table.pair(HIGH + 4, HIGH + 3)
    for fd in (HIGH - 1, HIGH, HIGH + 2):
        table.open(fd)
        table.track(fd)
    table.lib.descriptors_closefrom(HIGH)
    assert [is_open(fd) for fd in (HIGH - 1, HIGH, HIGH + 2, HIGH + 3, HIGH + 4)] == [True, *[
        False] * 4]  # fmt: skip
    assert is_open(HIGH + 1) == has_pairs, "it stands behind one that stays"
    words = [table.lib.track_word(fd) for fd in (HIGH - 1, HIGH, HIGH + 2)]
    assert words == [WORD, 0, 0]


@pytest.mark.parametrize("how", ["dup", "dup2", "dup3", "F_DUPFD", "F_DUPFD_CLOEXEC"])
def test_a_duplicate_is_tracked_and_shares_its_offset(table: Table, how: str) -> None:
    """A duplicate may get a number for which the table has a word of another file. The duplicate's
    word then replaces that word. If the call fails, the word of the original descriptor stays,
    apart from a flag which says that the descriptor may be shared."""
    fd, fresh = table.track(table.open(LOW)), table.track(table.open(HIGH + 1), 77 << 32)
    calls: dict[str, tuple[Any, ...]] = {
        "dup": ("dup", fd), "dup2": ("dup2", fd, fresh), "dup3": ("dup3", fd, fresh, os.O_CLOEXEC),
        "F_DUPFD": ("fcntl", fd, fcntl.F_DUPFD, HIGH + 2),
        "F_DUPFD_CLOEXEC": ("fcntl", fd, fcntl.F_DUPFD_CLOEXEC, HIGH + 2),
    }  # fmt: skip
    made = table.call(*calls[how])
    assert made == fresh if how in ("dup2", "dup3") else made >= 0
    table.made.append(made)
    assert os.path.sameopenfile(fd, made)
    assert is_inherited(made) == ("CLOEXEC" not in how and how != "dup3")
    words = [int(table.lib.track_word(one)) for one in (fd, made)]
    assert words[0] == WORD | SHARED
    assert words[1] & ~(0x7FFFFF << 9) == WORD | SHARED
    table.lib.track_set(made, 0)
    assert table.call("dup2", fd, fd) == fd and table.lib.track_word(fd) == WORD | SHARED
    for failing in (("dup", 399), ("dup2", 399, made), ("dup2", fd, -1), ("dup3", fd, fd, 0)):
        assert table.call(*failing) < 0


def test_a_call_that_uses_the_offset_says_so(table: Table) -> None:
    """A descriptor whose own offset was used is never replaced by a descriptor of the copy. A
    descriptor may be replaced if all its reads have explicit offsets."""
    fd, content = LOW, bytes(range(100))
    out = os.open(table.path.with_name("out"), os.O_RDWR | os.O_CREAT)
    ends = os.pipe()
    at = ffi.new("int64_t *")
    for name, args, own in (
        ("sendfile", (out, fd, None, 10), 1), ("sendfile", (out, fd, at, 10), 0),
        ("splice", (fd, None, ends[1], 10), 1), ("splice", (fd, at, ends[1], 10), 0),
        ("copy_file_range", (fd, None, out, None, 10, 0), 1),
        ("copy_file_range", (fd, at, out, None, 10, 0), 0),
        ("lseek", (fd, 30, os.SEEK_SET), 1), ("lseek", (fd, 0, os.SEEK_CUR), 1),
    ):  # fmt: skip
        table.track(table.open(fd))
        os.lseek(fd, 20, os.SEEK_SET)
        at[0] = 50
        result = table.call(name, *[ffi.NULL if arg is None else arg for arg in args])
        assert table.lib.track_word(fd) == WORD | own * OFFSET, name
        if name == "lseek":
            assert result == (30 if args[1] else 20)
            continue
        assert result == 10
        begin = 20 if own else 50
        if name == "splice":
            assert os.read(ends[0], 100) == content[begin : begin + 10]
        else:
            end = os.lseek(out, 0, os.SEEK_CUR)
            assert os.pread(out, 10, end - 10) == content[begin : begin + 10]
        assert os.lseek(fd, 0, os.SEEK_CUR) == (30 if own else 20) and at[0] == 60 - 10 * own
    table.track(table.open(fd))
    assert table.call("stream", fd) == 1
    assert table.lib.track_word(fd) == 0 and not is_open(fd), "the stream closes it"
    assert table.call("copy_file_range", out, ffi.NULL, out, ffi.NULL, 10, 1) == -errno.EINVAL
    assert table.call("sendfile", out, HIGH, ffi.NULL, 10) == -errno.EBADF
    assert table.call("lseek", HIGH, 0, 0) == -errno.EBADF
    for one in (out, *ends):
        os.close(one)


def test_a_flag_of_a_descriptor_is_set_as_told(table: Table) -> None:
    """A flag that the program sets on its descriptor is also set on the backing descriptor."""
    table.pair(LOW, BEHIND)
    table.track(LOW)
    for flag in (fcntl.FD_CLOEXEC, 0):
        assert table.call("fcntl", LOW, fcntl.F_SETFD, flag) == 0
        assert table.call("fcntl", LOW, fcntl.F_GETFD, 0) == flag
        assert [is_inherited(fd) for fd in (LOW, BEHIND)] == [not flag] * 2
        assert table.lib.track_word(LOW) == WORD
    assert table.call("fcntl", HIGH, fcntl.F_SETFD, 0) == -errno.EBADF
    flags = table.call("fcntl", LOW, fcntl.F_GETFL, 0)
    assert flags == fcntl.fcntl(LOW, fcntl.F_GETFL)


@pytest.mark.parametrize("is_lacking", [False, True])
def test_an_exchange_of_names_needs_no_new_libc(
    lib: Any, session: Made, tmp_path: Path, is_lacking: bool
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("1")
    other.write_text("2")
    lib.names_lack_renameat2(is_lacking)
    dir_fd = os.open(tmp_path, os.O_RDONLY)
    try:
        exchange, keep = 2, 1
        assert lib.names_renameat2(dir_fd, b"one", -100, bytes(other), exchange) == 0
        assert (one.read_text(), other.read_text()) == ("2", "1")
        assert lib.names_renameat2(-100, bytes(one), dir_fd, b"other", keep) == -errno.EEXIST
        assert lib.names_renameat2(-100, bytes(one), dir_fd, b"new", keep) == 0
        assert (tmp_path / "new").read_text() == "2" and not one.exists()
    finally:
        lib.names_lack_renameat2(0)
        os.close(dir_fd)
