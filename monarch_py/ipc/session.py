"""The location of a session's shared segments, and how to create and open them safely.

A session belongs to one user and one configuration file. Its directory is
<shm>/monarch-<uid>/<XXH3-64 of the file's resolved path>, which only this user can read. The
preload library computes the same path. All configurations that use the site's tiers share one
daemon. So their session directories are links to the session directory of the site's configuration.
"""

import errno
import fcntl
import mmap
import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from socket import SocketType
from typing import Any

from monarch_py.errors import SessionError
from monarch_py.native import ffi, lib
from monarch_py.util.ownership import why_not_private
from monarch_py.util.units import MIB, format_size

# At most this many bytes of a lock file are read. A lock file contains the PID of the process that
# holds the lock, and the path of that process's configuration.
SAID_BYTES = 8192

# The maximum length [bytes] of the path of the directory of shared memory. The staging area lies
# below it, and the shared segments have limited room for the area's path.
MAX_SHM_PATH_BYTES = 180
# The size [bytes] of the first catalog of a session. The catalog occupies this room even while it
# is empty.
FIRST_CATALOG_BYTES = MIB
# A file's device number and inode number. While the file is open or mapped, no other file can have
# the same two numbers.
FileId = tuple[int, int]


def id_of(path: Path | int) -> FileId | None:
    """Returns the identity of a file; None if there is no such file.

    path : a path, or an open descriptor. A symbolic link is not followed
    """
    try:
        found = os.fstat(path) if isinstance(path, int) else path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def shm_root() -> Path:
    """Returns the directory for shared memory: $MONARCH_SHM if it is set, as in some containers and
    in tests; otherwise /dev/shm.

    Raises SessionError if the directory's path is longer than the preload library accepts.
    """
    path = Path(os.environ.get("MONARCH_SHM") or "/dev/shm")  # noqa: S108
    n_bytes = len(os.fsencode(path))
    if n_bytes > MAX_SHM_PATH_BYTES:
        raise SessionError(
            f"the path in MONARCH_SHM has {n_bytes} bytes; at most {MAX_SHM_PATH_BYTES} may be used"
        )
    return path


def least_shm_bytes() -> int:
    """Returns how much shared memory [bytes] a daemon needs when its catalog is empty. The size is
    rounded up to a multiple of 1 MiB."""
    shared = ("struct monarch_clients", "struct monarch_fills", "struct monarch_control")
    needed = sum(int(ffi.sizeof(struct)) for struct in shared) + FIRST_CATALOG_BYTES
    return -(-needed // MIB) * MIB


def full_shm() -> str:
    """Returns a message if shared memory has no room for a daemon; otherwise ""."""
    root, needed = shm_root(), least_shm_bytes()
    try:
        if shutil.disk_usage(root).free >= needed:
            return ""
    except OSError:
        return ""
    return (
        f"shared memory is full: a daemon needs {format_size(needed)} of {root}; remove unused"
        " files there, make it larger (docker: --shm-size), or set MONARCH_SHM"
    )


def user_directory() -> Path:
    """Returns the directory of this user's sessions. Raises SessionError as `shm_root` does."""
    return shm_root() / f"monarch-{os.geteuid()}"


def kept_directory() -> Path:
    """Returns the directory in which loaders list the memory that they share
    (`loaders.memory.shared`)."""
    return shm_root() / f"monarch-{os.geteuid()}-kept"


def private_directory(path: Path, instead: str = "set MONARCH_SHM to a directory of yours") -> None:
    """Creates a directory that is private to this user, or checks that an existing directory is.

    Raises SessionError if the directory belongs to another user, is a link, or is accessible to
    others.

    instead : the end of the error's text: what the user can do instead
    """
    try:
        path.mkdir(mode=0o700)
        path.chmod(0o700)  # whatever the umask is
    except FileExistsError:
        pass
    except OSError as error:
        raise SessionError(f"{path} cannot be created ({error.strerror}); {instead}") from error
    if why := why_not_private(path):
        raise SessionError(f"{path} is not a directory of this user alone: it {why}, or {instead}")


class HeldError(SessionError):
    """Another process holds a lock file.

    config : the configuration of the daemon that holds the lock; "" if the lock file does not name
        a configuration
    """

    def __init__(self, said: str) -> None:
        process, _, config = said.strip().partition("\n")
        super().__init__(process or "another daemon")
        self.config = config


def open_private(path: Path, flags: int) -> int:
    """Opens a file, and creates it if it does not exist. The file gets mode 0600, whatever the
    umask is. Returns the descriptor. Raises OSError if the file cannot be opened."""
    fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    found = os.fstat(fd)
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != 0o600:
        os.fchmod(fd, 0o600)
    return fd


def hold(path: Path, config: Path | None = None) -> int:
    """Locks a lock file for as long as the returned descriptor is open. If another process holds
    the lock, raises HeldError, whose text names that process. Raises OSError if the file cannot be
    created.

    config : the configuration that this process serves. Its path is written into the lock file, for
        processes that find the file locked
    """
    while True:
        fd = open_private(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            said = os.fsdecode(os.pread(fd, SAID_BYTES, 0))
            os.close(fd)
            raise HeldError(said) from error
        # The previous holder may have removed the lock file when it ended. A lock on a removed file
        # excludes no other process. In that case, try again with the file that now has this name.
        if os.fstat(fd).st_nlink:
            break
        os.close(fd)
    # If the disk is full, this text cannot be written, but the lock works without it.
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, os.fsencode(f"process {os.getpid()}\n{config or ''}".strip() + "\n"), 0)
    return fd


def last_config(path: Path) -> str:
    """Returns the configuration of the daemon that has most recently held a lock file. Returns ""
    if the file names no configuration, or cannot be read."""
    with suppress(OSError):
        return HeldError(os.fsdecode(path.read_bytes()[:SAID_BYTES])).config
    return ""


def holder_of(path: Path) -> HeldError | None:
    """Returns the holder of a lock file; None if no process holds the lock, or if this process
    cannot see the holder. Finds the holder in /proc/locks. Does not try to take the lock:
    otherwise, a daemon that starts at that moment would find the lock held."""
    try:
        inode, said = path.stat().st_ino, os.fsdecode(path.read_bytes()[:SAID_BYTES])
        locks = Path("/proc/locks").read_text()
    except OSError:
        return None
    # A line is "1: FLOCK  ADVISORY  WRITE 1234 00:1f:5678 0 EOF". Its device may differ from
    # the one that stat(2) returns, so only the inode number is compared.
    held = re.search(rf" FLOCK +ADVISORY +WRITE +(\d+) \S+:{inode} ", locks)
    return HeldError(said) if held and f"process {held[1]}\n" in said else None


def served_configurations() -> list[Path]:
    """Returns the configurations that this user's daemons on this node serve. Daemons that this
    process cannot see are left out."""
    sessions = user_directory()
    try:
        if why_not_private(sessions):
            return []  # another user may have made the lock files, so they are not trusted
    except OSError:
        return []
    holders = [holder_of(lock) for lock in sessions.glob("*/lock")]
    # A daemon may be found twice: by the lock of its session, and by the lock of its staging area.
    # So duplicates are removed.
    return sorted({Path(holder.config) for holder in holders if holder and holder.config})


class Segment:
    """One shared mapping of a file."""

    def __init__(self, path: Path, memory: mmap.mmap, file: FileId | None) -> None:
        self.path = path
        self.memory = memory
        self._file = file

    @classmethod
    def create(cls, path: Path, size: int) -> "Segment":
        """Creates a segment of zeros under a temporary name; `publish` renames it to `path`.

        Allocates every page now. If the tmpfs is full, a process that accesses a page that was not
        allocated receives SIGBUS. Raises OSError (ENOSPC) if there is no room.
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
        """Maps an existing segment. Raises OSError if the segment's file does not exist, is empty,
        or is not a regular file of this user."""
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
        """Returns whether the segment's path still leads to this segment's file."""
        return self._file == id_of(self.path)

    def unlink(self) -> None:
        """Removes the segment's file, unless the path now leads to another file."""
        if self.is_linked():
            self.path.unlink(missing_ok=True)

    def as_struct(self, name: str) -> Any:
        """Returns the mapping as a pointer to a C struct; the segment must outlive the pointer.
        Raises OSError if the segment is smaller than the struct."""
        if len(self.memory) < ffi.sizeof(name):
            raise OSError(errno.EINVAL, f"{self.path} is truncated")
        return ffi.cast(f"{name} *", ffi.from_buffer(self.memory))


def _own_path(config_file: Path) -> Path:
    resolved = os.fsencode(os.path.realpath(config_file))
    key = lib.monarch_xxh3_of(resolved, len(resolved))
    return user_directory() / f"{key:016x}"


def _remove_session(path: Path, config_file: Path) -> None:
    """Removes the session directory of a configuration that has no tiers of its own any more.
    Raises SessionError if a daemon serves the session, or if a killed daemon has left copies in its
    tiers."""
    # Imported here, because shares.py imports session.py.
    from monarch_py.ipc.shares import turn

    session = SessionDir(path)
    with turn(session):
        if (holder := holder_of(session.lock)) is not None:
            raise SessionError(
                f"a daemon ({holder}) still serves {config_file} with the tiers that the file had"
                f" before; end the daemon with `monarch stop -c {config_file}`, then try again"
            )
        if session.control.exists():
            raise SessionError(
                f"{config_file} had other tiers, and its killed daemon has left copies in them;"
                " remove them with `monarch sweep`, then try again"
            )
        shutil.rmtree(path)


def link_session(config_file: Path, served: Path) -> None:
    """Makes `config_file` use the session of `served`, the configuration whose tiers `config_file`
    uses. For this, replaces the session directory of `config_file` by a link to that of `served`.
    The preload library and the commands follow the link. If both are the same file, only removes a
    link that an earlier call has made.

    Raises SessionError if the link cannot be made. If `config_file` had tiers of its own before,
    also raises SessionError if the daemon of those tiers is running, or was killed.
    """
    own, other = _own_path(config_file), _own_path(served)
    is_link = own.is_symlink()
    try:
        if own == other:
            if is_link:
                own.unlink()
        elif not (is_link and os.readlink(own) == other.name):
            private_directory(own.parent)
            if own.exists() and not is_link:  # `own` is the session of `config_file`'s old tiers
                _remove_session(own, config_file)
            hidden = own.with_name(f".{own.name}.{os.getpid()}")
            hidden.symlink_to(other.name)
            hidden.replace(own)
    except OSError as error:
        raise SessionError(f"{own}: {error.strerror}; remove it") from error


class SessionDir:
    """The files of one session."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.control = path / "control"
        self.clients = path / "clients"
        self.fills = path / "fills"
        # Processes that cannot map the segments report here which files they change. The file
        # consists of records of struct monarch_change; the first one is unused.
        self.changes = path / "changes"
        self.lock = path / "lock"
        # After a daemon has ended properly, this file exists until the next daemon starts.
        # Meanwhile, processes with the library do not warn that no daemon serves the session.
        self.stopped = path / "stopped"
        # `starts`: the times at which the preload library has started a daemon. The process that
        # starts the daemon (commands/autostart.py) locks this file. `autostart`: the records of the
        # configuration (ipc/record.py).
        self.starts = path / "starts"
        self.autostart = path / "autostart"
        self.socket = path / "socket"
        # Programs send descriptors of files that they have read to these sockets (struct
        # monarch_handover).
        self.handovers = [path / f"handovers.{n}" for n in range(lib.MONARCH_HANDOVER_SOCKETS)]
        self.log = path / "log"
        self.log_before = path / "log.1"

    @property
    def staging(self) -> str:
        """The name of this session's directory in the staging area."""
        return f"staging-{self.path.name}"

    @classmethod
    def of(cls, config_file: Path) -> "SessionDir":
        path = _own_path(config_file)
        return cls(path.parent / os.readlink(path)) if path.is_symlink() else cls(path)

    def make(self) -> None:
        private_directory(self.path.parent)
        private_directory(self.path)

    def forget_starts(self) -> None:
        """Forgets the times at which the library has started daemons. Call this when a daemon ends
        properly. The library starts only a few daemons in ten minutes, in case something kills each
        daemon soon after its start. After this call, the library counts from 0 again."""
        with suppress(OSError):
            os.truncate(self.starts, 0)

    def bind(self, listener: SocketType, path: Path) -> None:
        """Binds a socket to `path`, one of this session's paths. Replaces the socket that a dead
        daemon has left there. Raises OSError if the socket cannot be bound."""
        # A socket's address can have at most 107 bytes, but `path` may be longer. An address that
        # names the directory by a descriptor (/proc/self/fd/...) is always short enough.
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            path.unlink(missing_ok=True)
            listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)

    def catalog(self, generation: int) -> Path:
        return self.path / f"catalog.{generation}"
