"""The system calls into which faults are put, and what each may answer: by its manual page, of what
the file systems, sockets and limits of a node can give."""

from __future__ import annotations

import errno
from dataclasses import dataclass

__all__ = ["CALLS", "Call", "Fault", "faults_of"]

DELAY_MS, LONG_DELAY_MS, LONG_DELAY_EACH = 1000, 5000, 20


@dataclass(frozen=True, slots=True)
class Call:
    """number : on x86-64;  target : what it is about, as faulter.c has it;  errors : names of what
    it may answer;  can_be_short : it may move fewer bytes than it was asked for"""

    number: int
    target: str
    errors: tuple[str, ...]
    can_be_short: bool = False


def _call(number: int, target: str, errors: str, *, short: bool = False) -> Call:
    return Call(number, target, tuple(errors.split()), short)


CALLS = {
    "read": _call(0, "f0", "EIO EINTR", short=True),
    "write": _call(1, "f0", "EIO ENOSPC EDQUOT EFBIG EPIPE EINTR", short=True),
    "fstat": _call(5, "f0", "EIO ENOMEM"),
    "mmap": _call(9, "f4", "ENOMEM EACCES ENFILE"),
    "pread64": _call(17, "f0", "EIO EINTR", short=True),
    "pwrite64": _call(18, "f0", "EIO ENOSPC EDQUOT EFBIG", short=True),
    "socket": _call(41, "n0", "EMFILE ENFILE ENOBUFS EACCES"),
    "connect": _call(42, "f0", "ECONNREFUSED ETIMEDOUT EAGAIN EINTR"),
    "sendto": _call(44, "f0", "ECONNRESET EPIPE EAGAIN ENOBUFS"),
    "recvfrom": _call(45, "f0", "ECONNRESET EAGAIN EINTR"),
    "sendmsg": _call(46, "f0", "ECONNREFUSED EAGAIN ENOBUFS ETOOMANYREFS"),
    "recvmsg": _call(47, "f0", "ECONNRESET EAGAIN EINTR ENOMEM"),
    "bind": _call(49, "f0", "EADDRINUSE EACCES"),
    "listen": _call(50, "f0", "EADDRINUSE"),
    "fcntl": _call(72, "f0", "EMFILE EACCES EAGAIN"),
    "flock": _call(73, "f0", "EWOULDBLOCK ENOLCK EINTR"),
    "fsync": _call(74, "f0", "EIO ENOSPC EDQUOT"),
    "fdatasync": _call(75, "f0", "EIO ENOSPC EDQUOT"),
    "ftruncate": _call(77, "f0", "EIO ENOSPC EFBIG"),
    "rename": _call(82, "p0", "ENOSPC EACCES EIO"),
    "mkdir": _call(83, "p0", "ENOSPC EACCES EROFS"),
    "rmdir": _call(84, "p0", "EBUSY EACCES"),
    "unlink": _call(87, "p0", "EBUSY EACCES EIO"),
    "fchmod": _call(91, "f0", "EPERM EROFS EIO"),
    "statfs": _call(137, "p0", "EIO ENOMEM"),
    "fstatfs": _call(138, "f0", "EIO ENOMEM"),
    "setpriority": _call(141, "n0", "EACCES"),
    "getdents64": _call(217, "f0", "EIO ENOENT"),
    "openat": _call(257, "p1", "EACCES EMFILE ENFILE ENOMEM ENOENT EIO"),
    "mkdirat": _call(258, "p1", "ENOSPC EACCES EROFS"),
    "newfstatat": _call(262, "p1", "EACCES ENOENT EIO ENOMEM"),
    "unlinkat": _call(263, "p1", "EBUSY EACCES EIO"),
    "renameat": _call(264, "p1", "ENOSPC EACCES EIO"),
    "readlinkat": _call(267, "p1", "EACCES ENOENT EIO"),
    "sync_file_range": _call(277, "f0", "EIO ENOSPC"),
    "utimensat": _call(280, "f0", "EPERM EIO"),
    "fallocate": _call(285, "f0", "ENOSPC EDQUOT EIO EOPNOTSUPP"),
    "accept4": _call(288, "f0", "EMFILE ENFILE ECONNABORTED EINTR"),
    "epoll_create1": _call(291, "n0", "EMFILE ENFILE ENOMEM"),
    "dup3": _call(292, "f0", "EBUSY EMFILE"),
    "pipe2": _call(293, "n0", "EMFILE ENFILE"),
    "syncfs": _call(306, "f0", "EIO ENOSPC EDQUOT"),
    "memfd_create": _call(319, "n0", "EMFILE ENOMEM"),
    "copy_file_range": _call(326, "f0", "EIO ENOSPC EXDEV"),
    "statx": _call(332, "f0", "EIO ENOMEM EACCES ENOENT"),
    "clone3": _call(435, "n0", "EAGAIN ENOMEM"),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """action : as faulter.c takes it;  name : for a reader of reports"""

    action: str
    name: str


def faults_of(name: str, turn: int) -> list[Fault]:
    """All that one call may get. turn : of its class among all; one delay in twenty is long."""
    call = CALLS[name]
    faults = [Fault(f"error={getattr(errno, error)}", error) for error in call.errors]
    if call.can_be_short:
        faults.append(Fault("short", "short"))
    delay_ms = DELAY_MS if turn % LONG_DELAY_EACH else LONG_DELAY_MS
    return [*faults, Fault(f"delay={delay_ms}", f"{delay_ms} ms late"), Fault("kill", "SIGKILL")]
