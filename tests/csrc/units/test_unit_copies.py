"""Tests calls on a descriptor of a copy: locks, flags, holes and ioctl requests. The calls must
have the same results as on a descriptor of the source's file."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place, is_open, without_stdin
from csrc.units.serving import Served

KIB = 1024
SIZE = 1024 * KIB
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
SET = {"F_SETLK": fcntl.F_SETLK, "F_SETLKW": fcntl.F_SETLKW, "F_OFD_SETLK": F_OFD_SETLK,
       "F_OFD_SETLKW": F_OFD_SETLKW}  # fmt: skip
GET = {"F_GETLK": fcntl.F_GETLK, "F_OFD_GETLK": F_OFD_GETLK}


class Copied:
    """A descriptor of the copy of the file f. Both files are sparse, and have their data at
    different places: f only from 64 KiB to 68 KiB, the copy only in its first 4 KiB."""

    def __init__(self, lib: Any, served: Served) -> None:
        self.lib, self.source = lib, served.root / "f"
        self.path = served.publish("f", b"")
        self.path.chmod(0o600)
        os.truncate(self.path, SIZE)
        with self.path.open("r+b") as file:
            file.write(b"c" * 4 * KIB)
        self.path.chmod(0o400)
        self.made: list[int] = []
        self.fd = self.open()

    def open(self, flags: int = os.O_NOFOLLOW) -> int:
        self.made.append(os.open(self.path, os.O_RDONLY | flags))
        return self.made[-1]

    def close(self) -> None:
        for fd in self.made:
            self.lib.descriptors_close(fd)


@pytest.fixture
def copied(lib: Any, place: Place, tmp_path: Path) -> Iterator[Copied]:
    root, tier = tmp_path / "data", tmp_path / "tier"
    root.mkdir()
    tier.mkdir(mode=0o700)
    with (root / "f").open("wb") as file:
        file.truncate(SIZE)
        file.seek(64 * KIB)
        file.write(b"s" * 4 * KIB)
    lib.track_forget()
    lib.backing_forget()
    served = Served(lib, place, root, tier)
    one = Copied(lib, served)
    yield one
    one.close()
    assert lib.backing_count() == 0
    lib.track_forget()
    served.end()


def lock(kind: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)


@pytest.mark.parametrize("command", SET)
def test_a_lock_on_a_copy_excludes_others_at_the_source(copied: Copied, command: str) -> None:
    """A lock that is set through the copy's descriptor excludes programs without the library, which
    lock the source's file."""
    asked = ffi.new("char[]", lock(fcntl.F_RDLCK))
    at = int(ffi.cast("intptr_t", asked))
    with copied.source.open("r+b") as other:
        assert copied.lib.descriptors_fcntl(copied.fd, SET[command], at) == 0
        with pytest.raises(BlockingIOError):
            fcntl.fcntl(other, F_OFD_SETLK, lock(fcntl.F_WRLCK))
        ffi.buffer(asked)[:32] = lock(fcntl.F_UNLCK)
        assert copied.lib.descriptors_fcntl(copied.fd, SET[command], at) == 0
        fcntl.fcntl(other, F_OFD_SETLK, lock(fcntl.F_WRLCK))


def test_a_lock_is_taken_at_the_source_though_descriptor_0_is_free(copied: Copied) -> None:
    """A lock is set at the source even if the descriptor that the library opens for this purpose
    gets the number 0. Afterwards descriptor 0 is closed."""
    asked = ffi.new("char[]", lock(fcntl.F_RDLCK))
    with copied.source.open("r+b") as other:
        with without_stdin():
            assert copied.lib.descriptors_fcntl(
                copied.fd, fcntl.F_SETLK, int(ffi.cast("intptr_t", asked))
            ) == 0  # fmt: skip
            assert not is_open(0)
        with pytest.raises(BlockingIOError):
            fcntl.fcntl(other, F_OFD_SETLK, lock(fcntl.F_WRLCK))


@pytest.mark.parametrize("command", GET)
def test_a_lock_at_the_source_is_seen_on_the_copy(copied: Copied, command: str) -> None:
    asked = ffi.new("char[]", lock(fcntl.F_RDLCK))
    with copied.source.open("r+b") as other:
        fcntl.fcntl(other, F_OFD_SETLK, lock(fcntl.F_WRLCK))
        at = int(ffi.cast("intptr_t", asked))
        assert copied.lib.descriptors_fcntl(copied.fd, GET[command], at) == 0
        assert struct.unpack("h", bytes(ffi.buffer(asked))[:2]) == (fcntl.F_WRLCK,)


def test_the_flags_of_a_descriptor_are_those_of_the_programs_open(copied: Copied) -> None:
    """The library opens copies with O_NOFOLLOW, and hides this flag from the program. If the
    program has passed O_NOFOLLOW itself, the library adds O_DSYNC to record that."""
    common = fcntl.fcntl(copied.fd, fcntl.F_GETFL) & ~os.O_NOFOLLOW
    for flags, shown in (
        (os.O_NOFOLLOW, 0), (os.O_NOFOLLOW | os.O_DSYNC, os.O_NOFOLLOW),
        (os.O_NOFOLLOW | os.O_NONBLOCK, os.O_NONBLOCK),
    ):  # fmt: skip
        fd = copied.open(flags)
        assert copied.lib.descriptors_fcntl(fd, fcntl.F_GETFL, 0) == common | shown
    other = os.open(copied.source, os.O_RDONLY | os.O_NOFOLLOW)
    assert copied.lib.descriptors_fcntl(other, fcntl.F_GETFL, 0) & os.O_NOFOLLOW
    os.close(other)
    assert copied.lib.descriptors_fcntl(other, fcntl.F_GETFL, 0) == -errno.EBADF


@pytest.mark.parametrize("whence", [os.SEEK_DATA, os.SEEK_HOLE])
def test_holes_are_where_the_source_has_them(copied: Copied, whence: int) -> None:
    """An lseek with SEEK_DATA or SEEK_HOLE sets the offset of the copy's descriptor to the position
    in the source's file. If the call fails, the offset stays, and errno is that of the same call on
    the source's file."""
    with copied.source.open("rb") as source:
        for offset in (0, 1, 4 * KIB, 64 * KIB, 66 * KIB, 68 * KIB, SIZE - 1, SIZE, SIZE + 1):
            copied.lib.descriptors_lseek(copied.fd, 7, os.SEEK_SET)
            try:
                expected = at = os.lseek(source.fileno(), offset, whence)
            except OSError as error:
                assert error.errno
                expected, at = -error.errno, 7
            assert copied.lib.descriptors_lseek(copied.fd, offset, whence) == expected, offset
            assert os.lseek(copied.fd, 0, os.SEEK_CUR) == at, offset
    assert expected == -errno.ENXIO


def test_without_a_free_descriptor_nothing_is_changed_on_the_copy(copied: Copied) -> None:
    """A request that changes the inode needs a descriptor of the source's file. If none can be
    opened, the request must fail instead of changing the copy."""
    free = os.dup(0)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        assert copied.lib.ioctl_set_flags(copied.fd, 0) == -errno.EMFILE
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert copied.lib.ioctl_set_flags(copied.fd, 0) != -errno.EMFILE


FS_IOC_SETFLAGS, FS_IOC_GETFLAGS = 0x40086602, 0x80086601
FS_IOC_SETVERSION, FS_IOC_GETVERSION = 0x40087602, 0x80087601
FS_IOC_FSSETXATTR, FS_IOC_FSGETXATTR = 0x401C5820, 0x801C581F
FS_IOC_FIEMAP, FIBMAP, FIGETBSZ, FIONREAD = 0xC020660B, 1, 2, 0x541B


@pytest.mark.parametrize(
    ("request_", "is_of_source"),
    [(FS_IOC_SETFLAGS, 1), (FS_IOC_GETFLAGS, 1), (FS_IOC_SETVERSION, 1), (FS_IOC_GETVERSION, 1),
     (FS_IOC_FSSETXATTR, 1), (FS_IOC_FSGETXATTR, 1), (FS_IOC_FIEMAP, 1), (FIBMAP, 1), (FIGETBSZ, 1),
     (FIONREAD, 0), (FIBMAP + 2, 0), (0, 0)],
)  # fmt: skip
def test_requests_about_the_file_go_to_the_source(
    lib: Any, request_: int, is_of_source: int
) -> None:
    assert lib.ioctl_is_of_source(request_) == is_of_source


class Copying:
    """Calls copy_file_range to copy from the copy's descriptor. The kernel refuses the first calls
    with the errors that are passed to `copy`."""

    def __init__(self, copied: Copied) -> None:
        self.copied = copied
        self.out = os.open(copied.source.with_name("out"), os.O_RDWR | os.O_CREAT)

    def copy(
        self, fd: int, to: int, n: int, *refused: int, at: Any = ffi.NULL
    ) -> tuple[int, list[int]]:
        """Returns the result, and the descriptors from which the kernel was asked to copy."""
        first, second = (*refused, 0, 0)[:2]
        out = ffi.new("int[]", 3)
        done = self.copied.lib.descriptors_copy_refused(fd, at, to, n, first, second, out)
        return int(done), [one for one in out if one >= 0]

    def behind(self) -> int:
        return int(self.copied.lib.backing_number(self.copied.fd))

    def content(self) -> bytes:
        return os.pread(self.out, SIZE, 0)


@pytest.fixture
def copying(copied: Copied) -> Iterator[Copying]:
    one = Copying(copied)
    yield one
    os.close(one.out)


def test_a_copy_on_another_file_system_is_copied_at_the_source(copying: Copying) -> None:
    """The kernel refuses copy_file_range between file systems. The program does not know that the
    copy is on another file system, so the library repeats the call with the source's file. The
    offset of the program's descriptor moves by the number of copied bytes."""
    fd = copying.copied.fd
    os.lseek(fd, 64 * KIB, os.SEEK_SET)
    done, asked = copying.copy(fd, copying.out, 8 * KIB, errno.EXDEV)
    assert (done, asked) == (8 * KIB, [fd, copying.behind()])
    assert copying.content() == b"s" * 4 * KIB + bytes(4 * KIB), "the source's bytes"
    assert os.lseek(fd, 0, os.SEEK_CUR) == 72 * KIB
    at = ffi.new("int64_t *", 66 * KIB)
    done, asked = copying.copy(fd, copying.out, 2 * KIB, errno.EXDEV, at=at)
    assert (done, asked) == (2 * KIB, [fd, copying.behind()])
    assert copying.content()[8 * KIB :] == b"s" * 2 * KIB
    assert (os.lseek(fd, 0, os.SEEK_CUR), at[0]) == (72 * KIB, 68 * KIB)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EINVAL, errno.EOPNOTSUPP])
def test_any_other_refusal_is_the_programs(copying: Copying, error: int) -> None:
    fd = copying.copied.fd
    assert copying.copy(fd, copying.out, KIB, error) == (-error, [fd])
    assert copying.behind() == -1
    assert copying.copy(fd, copying.out, KIB, errno.EXDEV, error)[0] == -error
    assert os.lseek(fd, 0, os.SEEK_CUR) == 0 and copying.content() == b""
    assert copying.copy(fd, copying.out, KIB) == (KIB, [fd])
    assert os.lseek(fd, 0, os.SEEK_CUR) == KIB


def test_without_a_copy_the_kernels_refusal_stands(copying: Copying) -> None:
    fd = os.open(copying.copied.source, os.O_RDONLY)
    assert copying.copy(fd, copying.out, KIB, errno.EXDEV) == (-errno.EXDEV, [fd])
    assert copying.copy(fd, copying.out, KIB) == (KIB, [fd])
    os.close(fd)
    assert copying.copy(fd, copying.out, KIB) == (-errno.EBADF, [fd])


def test_a_file_is_copied_into_itself_at_the_source(copying: Copying) -> None:
    """The kernel refuses to copy between overlapping ranges of one file. It would not notice the
    overlap if it read from the copy, so the library makes the call with the source's file."""
    fd = copying.copied.fd
    to = os.open(copying.copied.source, os.O_RDWR)
    os.lseek(fd, 64 * KIB, os.SEEK_SET)
    done, asked = copying.copy(fd, to, 4 * KIB)
    assert (done, asked) == (4 * KIB, [copying.behind()])
    assert os.lseek(fd, 0, os.SEEK_CUR) == 68 * KIB
    assert os.pread(to, 4 * KIB, 0) == b"s" * 4 * KIB
    at = ffi.new("int64_t *", 0)
    assert copying.copy(fd, to, 8 * KIB, at=at)[0] == -errno.EINVAL
    assert at[0] == 0 and os.lseek(fd, 0, os.SEEK_CUR) == 68 * KIB
    os.close(to)
