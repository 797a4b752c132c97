"""The system calls that get faults, and the errors that each call may return: those in the call's
manual page, and further errors that network file systems return."""

from __future__ import annotations

import errno
from dataclasses import dataclass

__all__ = ["CALLS", "LATE_DAEMON_MS", "LATE_READER_MS", "Call", "Fault", "faults_of"]

# One in LONG_DELAY_EACH classes of calls gets a long delay, and all others get DELAY_MS. A program
# waits for a daemon for at most 5 s, so the long delay of a daemon's call is more than 5 s. The
# long delay of a program's own call is shorter, because the program itself has to wait.
LONG_DELAY_EACH = 20
DELAY_MS, LATE_DAEMON_MS, LATE_READER_MS = 1000, 12_000, 5000


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that gets faults.

    number : the call's number on x86-64
    target : which argument names the file, written like TARGET in faulter.c
    errors : names of the errors that the call may return
    can_be_short : whether the call may transfer fewer bytes than requested
    is_made : whether the call does its work even if a fault makes it return an error
    """

    number: int
    target: str
    errors: tuple[str, ...]
    can_be_short: bool = False
    is_made: bool = False


def _call(
    number: int, target: str, errors: str, *, short: bool = False, is_made: bool = False
) -> Call:
    return Call(number, target, tuple(errors.split()), short, is_made)


CALLS = {
    "read": _call(0, "f0", "EIO EINTR ESTALE", short=True),
    "write": _call(1, "f0", "EIO ENOSPC EDQUOT EFBIG EPIPE EAGAIN", short=True),
    "close": _call(3, "f0", "EIO ENOSPC EDQUOT", is_made=True),
    "fstat": _call(5, "f0", "EIO ENOMEM ESTALE"),
    "poll": _call(7, "n0", "EINTR ENOMEM"),
    "mmap": _call(9, "f4", "ENOMEM"),
    "mprotect": _call(10, "n0", "ENOMEM"),
    # munmap returns ENOMEM only if it unmaps a part of a mapping.
    "munmap": _call(11, "n0", ""),
    "ioctl": _call(16, "f0", "EIO ENOTTY"),
    "pread64": _call(17, "f0", "EIO EINTR ESTALE", short=True),
    "pwrite64": _call(18, "f0", "EIO ENOSPC EDQUOT EFBIG", short=True),
    "access": _call(21, "p0", "EACCES EIO ENOENT"),
    "mremap": _call(25, "n0", "ENOMEM"),
    "madvise": _call(28, "n0", "ENOMEM EAGAIN"),
    "dup2": _call(33, "f0", "EBUSY EMFILE"),
    "sendfile": _call(40, "f1", "EIO ENOMEM EAGAIN"),
    "socket": _call(41, "n0", "EMFILE ENFILE ENOBUFS EACCES"),
    "connect": _call(42, "f0", "ECONNREFUSED ETIMEDOUT ENETUNREACH EHOSTUNREACH EINTR"),
    "sendto": _call(44, "f0", "ECONNRESET EPIPE ENOBUFS"),
    "recvfrom": _call(45, "f0", "ECONNRESET EINTR"),
    "sendmsg": _call(46, "f0", "ECONNREFUSED EAGAIN ENOBUFS ETOOMANYREFS"),
    "recvmsg": _call(47, "f0", "ECONNRESET EAGAIN EINTR ENOMEM"),
    "shutdown": _call(48, "f0", "ENOTCONN"),
    "bind": _call(49, "f0", "EADDRINUSE EACCES"),
    "listen": _call(50, "f0", "EADDRINUSE"),
    "getsockname": _call(51, "f0", "ENOBUFS"),
    "setsockopt": _call(54, "f0", "ENOMEM ENOPROTOOPT"),
    "getsockopt": _call(55, "f0", "ENOPROTOOPT"),
    "clone": _call(56, "n0", "EAGAIN ENOMEM"),
    "wait4": _call(61, "n0", "EINTR"),
    "fcntl": _call(72, "f0", ""),
    "flock": _call(73, "f0", "EWOULDBLOCK ENOLCK EINTR"),
    "fsync": _call(74, "f0", "EIO ENOSPC EDQUOT"),
    "fdatasync": _call(75, "f0", "EIO ENOSPC EDQUOT"),
    "truncate": _call(76, "p0", "EACCES EIO EROFS"),
    "ftruncate": _call(77, "f0", "EIO ENOSPC EFBIG"),
    "rename": _call(82, "p0", "ENOSPC EDQUOT EACCES EIO"),
    "mkdir": _call(83, "p0", "ENOSPC EDQUOT EACCES EROFS"),
    "rmdir": _call(84, "p0", "EBUSY EACCES"),
    "unlink": _call(87, "p0", "EBUSY EACCES EIO"),
    "readlink": _call(89, "p0", "EACCES EIO ENOENT"),
    "chmod": _call(90, "p0", "EPERM EROFS EIO"),
    "fchmod": _call(91, "f0", "EPERM EROFS EIO"),
    "fchown": _call(93, "f0", "EPERM EROFS EIO"),
    "statfs": _call(137, "p0", "EIO ENOMEM"),
    "fstatfs": _call(138, "f0", "EIO ENOMEM"),
    "setpriority": _call(141, "n0", "EACCES"),
    "getdents64": _call(217, "f0", "EIO ENOENT ESTALE"),
    "epoll_wait": _call(232, "f0", "EINTR"),
    "mbind": _call(237, "n0", "EPERM ENOMEM"),
    "openat": _call(257, "p1", "EACCES EMFILE ENFILE ENOMEM ENOENT EIO ESTALE"),
    "mkdirat": _call(258, "p1", "ENOSPC EDQUOT EACCES EROFS"),
    "newfstatat": _call(262, "p1", "EACCES ENOENT EIO ENOMEM ESTALE"),
    "unlinkat": _call(263, "p1", "EBUSY EACCES EIO"),
    "renameat": _call(264, "p1", "ENOSPC EDQUOT EACCES EIO"),
    "linkat": _call(265, "p1", "EEXIST ENOSPC EDQUOT EPERM"),
    "readlinkat": _call(267, "p1", "EACCES ENOENT EIO"),
    "pselect6": _call(270, "n0", "EINTR ENOMEM"),
    "sync_file_range": _call(277, "f0", "EIO ENOSPC"),
    "utimensat": _call(280, "f0", "EPERM EIO"),
    "fallocate": _call(285, "f0", "ENOSPC EDQUOT EIO EOPNOTSUPP"),
    "accept4": _call(288, "f0", "EMFILE ENFILE ECONNABORTED EINTR"),
    "epoll_ctl": _call(233, "f0", "ENOMEM ENOSPC"),
    "eventfd2": _call(290, "n0", "EMFILE ENFILE ENOMEM"),
    "epoll_create1": _call(291, "n0", "EMFILE ENFILE ENOMEM"),
    "dup3": _call(292, "f0", "EBUSY EMFILE"),
    "pipe2": _call(293, "n0", "EMFILE ENFILE"),
    "prlimit64": _call(302, "n0", "EPERM"),
    "syncfs": _call(306, "f0", "EIO ENOSPC EDQUOT"),
    "memfd_create": _call(319, "n0", "EMFILE ENOMEM"),
    "copy_file_range": _call(326, "f0", "EIO ENOSPC EXDEV EOPNOTSUPP"),
    "preadv2": _call(327, "f0", "EIO EAGAIN EOPNOTSUPP ESTALE"),
    "statx": _call(332, "f0", "EIO ENOMEM EACCES ENOENT ESTALE"),
    "clone3": _call(435, "n0", "EAGAIN ENOMEM"),
    "faccessat2": _call(439, "p1", "EACCES EIO ENOENT"),
}


# These calls return DISK_ERRORS only for descriptors of files on a disk.
OF_DISKS = ("close", "fcntl", "fstat", "ioctl", "read", "statx", "write")
DISK_ERRORS = ("EDQUOT", "EFBIG", "EIO", "ENOSPC", "ESTALE")
DISKLESS = ("anon_inode", "pipe", "socket")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that a call may get.

    action : an ACTION of faulter.c
    name : the fault's name in reports
    """

    action: str
    name: str


def faults_of(name: str, target: str, turn: int, long_delay_ms: int) -> list[Fault]:
    """Returns all faults that a call may get.

    turn : the index of the call's class; one class in LONG_DELAY_EACH gets the long delay
    """
    call = CALLS[name]
    is_diskless = name in OF_DISKS and target.partition(":")[0] in DISKLESS
    action = "answer" if call.is_made else "error"
    errors = [error for error in call.errors if not (is_diskless and error in DISK_ERRORS)]
    faults = [Fault(f"{action}={getattr(errno, error)}", error) for error in errors]
    if call.can_be_short:
        faults.append(Fault("short", "short"))
    delay_ms = DELAY_MS if turn % LONG_DELAY_EACH else long_delay_ms
    return [*faults, Fault(f"delay={delay_ms}", f"{delay_ms} ms late"), Fault("kill", "SIGKILL")]
