"""Prints what only a file's own file system can tell about the file, such as holes, extents and
flags.

usage: answers.py ask|clone FILE ...
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import struct
import sys
from functools import partial
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
AT_EMPTY_PATH, AT_FDCWD = 0x1000, -100
FIEMAP, GETFLAGS, GETVERSION, FIGETBSZ, FIBMAP = 0xC020660B, 0x80086601, 0x80087601, 2, 1
FICLONE, FICLONERANGE = 0x40049409, 0x4020940D
SYNCS = {"as it is": 0, "force": 0x2000, "never": 0x4000}  # AT_STATX_*
# the bytes of stx_atime, which are not compared because a read may change them
ATIME = slice(64, 80)


def attempt(what: Any, call: Any) -> Any:
    try:
        print(what, call())
    except OSError as error:
        print(what, errno.errorcode[error.errno or 0])


def seek(fd: Any) -> Any:
    found: list[Any] = []
    at = 0
    end = os.fstat(fd).st_size
    while at < end:
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            try:
                at = os.lseek(fd, at, whence)
            except OSError as error:
                return [*found, errno.errorcode[error.errno or 0], os.lseek(fd, 0, os.SEEK_CUR)]
            found.append((at, os.lseek(fd, 0, os.SEEK_CUR)))
    return found


def extents(fd: Any) -> Any:
    request = bytearray(struct.pack("QQIIII", 0, 1 << 62, 0, 0, 20, 0) + bytes(56 * 20))
    fcntl.ioctl(fd, FIEMAP, request)
    return request.hex()


def number(fd: Any, request: Any) -> Any:
    found = array.array("l", [0])
    fcntl.ioctl(fd, request, found)
    return found[0]


def statx(dir_fd: Any, path: Any, flags: Any, mask: Any) -> Any:
    found = ctypes.create_string_buffer(256)
    if libc.statx(dir_fd, os.fsencode(path), flags, mask, found) != 0:
        raise OSError(ctypes.get_errno(), "")
    answer = bytearray(found.raw)
    answer[ATIME] = bytes(16)
    return answer.hex()


def block(fd: Any, number: Any) -> Any:
    found = array.array("i", [number])
    fcntl.ioctl(fd, FIBMAP, found)
    return found[0]


def handle(fd: Any) -> Any:
    found, mount = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 8 + 128), ctypes.c_int()
    if libc.name_to_handle_at(fd, b"", found, ctypes.byref(mount), AT_EMPTY_PATH) != 0:
        raise OSError(ctypes.get_errno(), "")
    return found.raw.hex(), mount.value


def clone(path: Any, fd: Any, request: Any) -> Any:
    to = os.open(path + ".clone", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.ioctl(to, request[0], request[1](fd))
        return os.fstat(to).st_size, os.pread(to, 100, 4096), os.pread(to, 100, 0)
    finally:
        os.close(to)
        os.unlink(path + ".clone")


def copied(path: Any, fd: Any) -> Any:
    """Calls copy_file_range for parts of the file, to a new file in the same directory. Monarch's
    copy of the file is on another file system than the new file."""
    to = os.open(path + ".copied", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        os.lseek(fd, 10, os.SEEK_SET)
        moved = [os.copy_file_range(fd, to, 5000), os.copy_file_range(fd, to, 5000, 20)]
        return moved, os.lseek(fd, 0, os.SEEK_CUR), os.fstat(to).st_size, os.pread(to, 100, 0)
    finally:
        os.close(to)
        os.unlink(path + ".copied")


def clone_range(start: Any, length: Any) -> Any:
    return FICLONERANGE, lambda fd: struct.pack("qQQQ", fd, start, length, 0)


CLONES = {
    "clone": (FICLONE, lambda fd: fd),
    "range": clone_range(0, 4096),
    "to the end": clone_range(4096, 0),
    "odd range": clone_range(100, 100),
    "beyond": clone_range(1 << 30, 4096),
}


def filesystem(s: Any) -> Any:
    return [s.f_bsize, s.f_frsize, s.f_blocks, s.f_files, s.f_flag, s.f_namemax, s.f_fsid]


def ask(path: str, fd: int) -> None:
    for what, request in {"flags": GETFLAGS, "version": GETVERSION, "bsz": FIGETBSZ}.items():
        attempt(what, partial(number, fd, request))
    attempt("extents", partial(extents, fd))
    attempt("first block", partial(block, fd, 0))
    attempt("no block", partial(block, fd, 1 << 20))
    attempt("handle", partial(handle, fd))
    attempt("handle of nothing", partial(handle, -1))
    attempt("seek", partial(seek, fd))
    attempt("beyond", lambda: os.lseek(fd, 1 << 40, os.SEEK_DATA))
    attempt("fstatvfs", lambda: filesystem(os.fstatvfs(fd)))
    attempt("statvfs", lambda: filesystem(os.statvfs(path)))
    # Every mask requests the mtime and the ctime. Newer kernels return these times only on request,
    # whereas the library always returns them.
    for mask in (0xC0, 0x2C0, 0x7FF, 0xFFF, 0x1FFF, 0x3FFF):
        for sync, flag in SYNCS.items():
            attempt(f"statx, {sync}", partial(statx, AT_FDCWD, path, flag, mask))
            attempt(f"statx by {fd}, {sync}", partial(statx, fd, "", flag | AT_EMPTY_PATH, mask))
    attempt("reserved mask", partial(statx, AT_FDCWD, path, 0, 0x80000000))
    attempt("unknown flag", partial(statx, fd, "", AT_EMPTY_PATH | 0x80000, 0x7FF))


for name in sys.argv[2:]:
    opened = os.open(name, os.O_RDONLY)
    print(os.path.basename(name))
    if sys.argv[1] == "clone":  # cloning changes the extents of the file
        for what, request in CLONES.items():
            attempt(what, partial(clone, name, opened, request))
        attempt("copied", partial(copied, name, opened))
    else:
        ask(name, opened)
    os.close(opened)
