"""Where a session's shared segments lie, and making and opening them safely.

A session belongs to one user and one configuration file: its directory is
<shm>/monarch-<uid>/<XXH3-64 of the file's resolved path>, readable by its owner alone. The preload
library computes the same name.
"""

import errno
import fcntl
import mmap
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch_py.errors import SessionError
from monarch_py.native import ffi, lib

__all__ = ["Segment", "SessionDir", "hold", "private_directory", "shm_root"]


def shm_root() -> Path:
    """The directory for shared memory; $MONARCH_SHM replaces /dev/shm (containers, tests)."""
    return Path(os.environ.get("MONARCH_SHM") or "/dev/shm")  # noqa: S108


def private_directory(path: Path) -> None:
    """Makes a directory of ours alone, or makes sure that the one there is.

    SessionError when it belongs to somebody else, is a link or is open to others.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise SessionError(f"{path} cannot be made: {error.strerror}") from error
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise SessionError(
            f"{path} is not a directory of this user alone (mode 0700); "
            "remove it or set MONARCH_SHM"
        )


def hold(path: Path) -> int:
    """Takes a lock file for as long as the descriptor that is returned is open.

    SessionError, with the holder's name as its text, when another process has it; OSError when it
    cannot be made.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(fd, 100, 0).decode(errors="replace").strip()
            os.close(fd)
            raise SessionError(holder or "another daemon") from error
        # Holders remove the file at their end: one that has no name any more locks nobody out.
        if os.fstat(fd).st_nlink:
            break
        os.close(fd)
    with suppress(OSError):  # a full disk: the lock itself holds
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()}\n".encode(), 0)
    return fd


class Segment:
    """One shared mapping of a file."""

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self.path = path
        self.memory = memory

    @classmethod
    def create(cls, path: Path, size: int) -> "Segment":
        """A zeroed segment under a name that nobody sees yet (`publish` gives it its own).

        Every page is allocated: a hole of a tmpfs mapping becomes SIGBUS in whoever touches it once
        the file system is full. OSError (ENOSPC) when there is no room.
        """
        hidden = path.with_name(f".{path.name}.{os.getpid()}")
        hidden.unlink(missing_ok=True)
        fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            return cls(path, mmap.mmap(fd, size))
        except OSError as error:
            hidden.unlink()
            why = f"{path.parent} has no room for {size} bytes of shared memory ({error.strerror})"
            raise OSError(error.errno, f"{why}; enlarge it or set MONARCH_SHM") from error
        finally:
            os.close(fd)

    def publish(self) -> None:
        self.path.with_name(f".{self.path.name}.{os.getpid()}").rename(self.path)

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> "Segment":
        """An existing segment; OSError when it is not there or not a regular file of ours."""
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_NOFOLLOW)
        try:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
                raise PermissionError(f"{path} is not a file of this user")
            if not found.st_size:
                raise OSError(errno.EINVAL, f"{path} is empty")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return cls(path, mmap.mmap(fd, 0, access=access))
        finally:
            os.close(fd)

    def as_struct(self, name: str) -> Any:
        """The mapping as a pointer to a C struct; the segment must outlive it."""
        return ffi.cast(f"{name} *", ffi.from_buffer(self.memory))


@dataclass(frozen=True, slots=True)
class SessionDir:
    """The files of one session."""

    path: Path

    @classmethod
    def of(cls, config_file: Path) -> "SessionDir":
        resolved = os.fsencode(os.path.realpath(config_file))
        key = lib.monarch_xxh3_of(resolved, len(resolved))
        return cls(shm_root() / f"monarch-{os.geteuid()}" / f"{key:016x}")

    def make(self) -> None:
        private_directory(self.path.parent)
        private_directory(self.path)

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def clients(self) -> Path:
        return self.path / "clients"

    @property
    def fills(self) -> Path:
        return self.path / "fills"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def log_before(self) -> Path:
        return self.path / "log.1"

    def catalog(self, generation: int) -> Path:
        return self.path / f"catalog.{generation}"
