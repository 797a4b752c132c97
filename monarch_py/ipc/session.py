"""Where a session's shared segments lie, and making and opening them safely.

A session belongs to one user and one configuration file: its directory is
<shm>/monarch-<uid>/<XXH3-64 of the file's resolved path>, readable by its owner alone. The preload
library computes the same name.
"""

import errno
import fcntl
import mmap
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import SocketType
from typing import Any

from monarch_py.errors import SessionError
from monarch_py.native import ffi, lib
from monarch_py.util.ownership import why_not_private
from monarch_py.util.units import MIB, format_size

__all__ = [
    "FileId",
    "HeldError",
    "Segment",
    "SessionDir",
    "full_shm",
    "hold",
    "holder_of",
    "id_of",
    "least_shm_bytes",
    "open_private",
    "private_directory",
    "served_configurations",
    "shm_root",
]

# The most that a lock file says: a process, and the path of a configuration [bytes].
SAID_BYTES = 8192

# Room for a tier's path is in the shared segments, and the staging area lies here [bytes].
MAX_SHM_PATH_BYTES = 180
# Of the first catalog, whatever is in it.
FIRST_CATALOG_BYTES = MIB
# Of a file: device and inode. No other file has it while one is open or mapped.
FileId = tuple[int, int]


def id_of(path: Path | int) -> FileId | None:
    """Of what a name (links are not followed) or a descriptor leads to; None for nothing."""
    try:
        found = os.fstat(path) if isinstance(path, int) else path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def shm_root() -> Path:
    """The directory for shared memory; $MONARCH_SHM replaces /dev/shm (containers, tests).

    SessionError when its name is longer than the preload library would take it.
    """
    path = Path(os.environ.get("MONARCH_SHM") or "/dev/shm")  # noqa: S108
    n_bytes = len(os.fsencode(path))
    if n_bytes > MAX_SHM_PATH_BYTES:
        raise SessionError(
            f"MONARCH_SHM has {n_bytes} bytes; choose a directory of at most {MAX_SHM_PATH_BYTES}"
        )
    return path


def least_shm_bytes() -> int:
    """What a daemon without any file needs of shared memory, in whole MiB, as it is said."""
    shared = ("struct monarch_clients", "struct monarch_fills", "struct monarch_control")
    needed = sum(int(ffi.sizeof(struct)) for struct in shared) + FIRST_CATALOG_BYTES
    return -(-needed // MIB) * MIB


def full_shm() -> str:
    """A sentence where shared memory has no room for a daemon, "" where it has."""
    root, needed = shm_root(), least_shm_bytes()
    try:
        system = os.statvfs(root)
    except OSError:
        return ""
    if system.f_bavail * system.f_frsize >= needed:
        return ""
    return (
        f"shared memory is full: a daemon needs {format_size(needed)} of {root}; remove what is"
        " not used there, make it larger (docker: --shm-size), or set MONARCH_SHM"
    )


def user_directory() -> Path:
    """Where the sessions of this user lie; SessionError as `shm_root`."""
    return shm_root() / f"monarch-{os.geteuid()}"


def private_directory(path: Path, instead: str = "set MONARCH_SHM to a directory of yours") -> None:
    """Makes a directory of ours alone, or makes sure that the one there is.

    SessionError when it belongs to somebody else, is a link or is open to others; `instead` is what
    helps where nobody removes it.
    """
    try:
        path.mkdir(mode=0o700)
        path.chmod(0o700)  # whatever the umask is
    except FileExistsError:
        pass
    except OSError as error:
        raise SessionError(f"{path} cannot be made: {error.strerror}; {instead}") from error
    if why := why_not_private(path):
        raise SessionError(f"{path} is not a directory of this user alone: it {why}, or {instead}")


class HeldError(SessionError):
    """Another process holds a lock file.

    config : the configuration of the daemon that it is, "" if it does not say so
    """

    def __init__(self, said: str) -> None:
        process, _, config = said.strip().partition("\n")
        super().__init__(process or "another daemon")
        self.config = config


def open_private(path: Path, flags: int) -> int:
    """Opens a file of ours alone (mode 0600, whatever the umask is), and makes it if it is not
    there; the descriptor. OSError."""
    fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    found = os.fstat(fd)
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != 0o600:
        os.fchmod(fd, 0o600)
    return fd


def hold(path: Path, config: Path | None = None) -> int:
    """Takes a lock file for as long as the descriptor that is returned is open.

    config : is told to those who want it meanwhile. HeldError, with the holder's name as its text,
    when another process has it; OSError when it cannot be made.
    """
    while True:
        fd = open_private(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            said = os.fsdecode(os.pread(fd, SAID_BYTES, 0))
            os.close(fd)
            raise HeldError(said) from error
        # Holders remove the file at their end: one that has no name any more locks nobody out.
        if os.fstat(fd).st_nlink:
            break
        os.close(fd)
    with suppress(OSError):  # a full disk: the lock itself holds
        os.ftruncate(fd, 0)
        os.pwrite(fd, os.fsencode(f"process {os.getpid()}\n{config or ''}".strip() + "\n"), 0)
    return fd


def holder_of(path: Path) -> HeldError | None:
    """Who holds a lock file, without taking it: a daemon that starts just now would find it taken.
    None if nobody does, or none whom this process can see."""
    try:
        inode, said = path.stat().st_ino, os.fsdecode(path.read_bytes()[:SAID_BYTES])
        locks = Path("/proc/locks").read_text()
    except OSError:
        return None
    # "1: FLOCK  ADVISORY  WRITE 1234 00:1f:5678 0 EOF"; the device is not always that of stat(2).
    held = re.search(rf" FLOCK +ADVISORY +WRITE +(\d+) \S+:{inode} ", locks)
    return HeldError(said) if held and f"process {held[1]}\n" in said else None


def served_configurations() -> list[Path]:
    """The configurations that daemons of this user serve on this node, as far as this process sees
    them."""
    sessions = user_directory()
    try:
        if why_not_private(sessions):
            return []  # another user's word
    except OSError:
        return []
    holders = [holder_of(lock) for lock in sessions.glob("*/lock")]
    # A daemon holds the locks of its session and of its staging area.
    return sorted({Path(holder.config) for holder in holders if holder and holder.config})


class Segment:
    """One shared mapping of a file."""

    def __init__(self, path: Path, memory: mmap.mmap, file: FileId | None) -> None:
        self.path = path
        self.memory = memory
        self._file = file

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
            return cls(path, mmap.mmap(fd, size), id_of(fd))
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
            return cls(path, mmap.mmap(fd, 0, access=access), id_of(fd))
        finally:
            os.close(fd)

    def is_linked(self) -> bool:
        """Whether its name leads to it, and not to another file or nowhere."""
        return self._file == id_of(self.path)

    def unlink(self) -> None:
        """Takes its name away; another file's of that name stays."""
        if self.is_linked():
            self.path.unlink(missing_ok=True)

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
        return cls(user_directory() / f"{key:016x}")

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
    def changes(self) -> Path:
        """What processes have changed that cannot map the segments: struct monarch_change, the
        first one empty."""
        return self.path / "changes"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def stopped(self) -> Path:
        """Is there after a daemon that ended in order, until the next one starts: processes with
        the library then say nothing of it."""
        return self.path / "stopped"

    @property
    def socket(self) -> Path:
        return self.path / "socket"

    @property
    def handovers(self) -> list[Path]:
        """The sockets by which programs hand descriptors of files that they have read to the
        daemon: struct monarch_handover."""
        return [self.path / f"handovers.{n}" for n in range(lib.MONARCH_HANDOVER_SOCKETS)]

    def bind(self, listener: SocketType, path: Path) -> None:
        """Gives a socket one of the names above, in the place of what a dead daemon has left there.
        OSError."""
        # A socket's name has 107 bytes; by the directory's descriptor it is always short enough.
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            path.unlink(missing_ok=True)
            listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def log_before(self) -> Path:
        return self.path / "log.1"

    def catalog(self, generation: int) -> Path:
        return self.path / f"catalog.{generation}"
