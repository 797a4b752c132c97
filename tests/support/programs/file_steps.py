"""Reads file operations from its standard input, performs them, and prints their results.

Each line is a JSON list for one operation. Its first word selects whether paths are passed to the
system as absolute paths, relative to the working directory, or relative to a directory's
descriptor. The following words are the operation's name and its arguments. Paths in a line are
relative to the directory that is the program's only argument.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import stat
import sys
from typing import Any

ROOT = sys.argv[1]
HERE = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY)
os.chdir(ROOT)
libc = ctypes.CDLL(None, use_errno=True)
libc.fopen.restype = ctypes.c_void_p
libc.mkdtemp.restype = ctypes.c_char_p


def attributes(st: Any) -> Any:
    return [stat.filemode(st.st_mode), st.st_nlink, st.st_size if stat.S_ISREG(st.st_mode) else 0]


def create(at: Any, path: Any, flags: Any, text: Any = "") -> Any:
    fd = os.open(path, getattr(os, flags) | os.O_CREAT | os.O_WRONLY, 0o644, **at)
    os.write(fd, text.encode())
    os.close(fd)


def touch(at: Any, path: Any) -> Any:
    """Creates the file with an open call that asks for read access only."""
    os.close(os.open(path, os.O_CREAT | os.O_RDONLY, 0o644, **at))


def read(at: Any, path: Any) -> Any:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK, **at)
    try:
        return os.read(fd, 1000).decode()
    finally:
        os.close(fd)


def fopen(at: Any, path: Any, mode: Any) -> Any:
    stream = libc.fopen(os.fsencode(path), mode.encode())
    if not stream:
        raise OSError(ctypes.get_errno(), "")
    libc.fclose(ctypes.c_void_p(stream))


def entries(at: Any, path: Any) -> Any:
    with os.scandir(path) as found:
        return sorted([e.name, e.is_symlink(), e.is_dir(follow_symlinks=False)] for e in found)


def inodes(at: Any, path: Any) -> Any:
    with os.scandir(path) as found:
        return all(e.inode() == e.stat(follow_symlinks=False).st_ino for e in found)


def bind(at: Any, path: Any) -> Any:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{HERE}/{os.path.relpath(path, ROOT)}")


def temporary(at: Any, path: Any, kind: Any) -> Any:
    """Creates a file, or a directory if `kind` is mkdtemp, with a random name below `path`."""
    made = ctypes.create_string_buffer(os.fsencode(path) + b"/XXXXXX")
    if kind == "mkdtemp":
        failed = not libc.mkdtemp(made)
    else:
        fd = libc.mkstemp(made)
        failed = fd < 0
        if not failed:
            os.close(fd)
    if failed:
        raise OSError(ctypes.get_errno(), "")
    return len(made.value) > len(path)


def two(call: Any) -> Any:
    return lambda at, a, b: call(a, b, **({"src_dir_fd": HERE, "dst_dir_fd": HERE} if at else {}))


def one(call: Any) -> Any:
    return lambda at, path, *more: call(path, *more, **at)


CALLS = {
    "create": create,
    "touch": touch,
    "read": read,
    "fopen": fopen,
    "bind": bind,
    "temporary": temporary,
    "mkdir": one(os.mkdir),
    "rmdir": one(os.rmdir),
    "unlink": one(os.unlink),
    "mkfifo": one(os.mkfifo),
    "rename": two(os.rename),
    "link": two(os.link),
    "symlink": lambda at, target, path: os.symlink(target, path, **at),
    "chmod": lambda at, path, mode: os.chmod(path, int(mode, 8), **at),
    "truncate": lambda at, path: os.truncate(path, 3),
    "listdir": lambda at, path: sorted(os.listdir(path)),
    "entries": entries,
    "inodes": inodes,
    "stat": lambda at, path: attributes(os.stat(path, **at)),
    "lstat": lambda at, path: attributes(os.lstat(path, **at)),
    "exists": lambda at, path: [os.path.exists(path), os.path.lexists(path)],
    "access": lambda at, path: [os.access(path, mode, **at) for mode in (os.F_OK, os.R_OK)],
    "readlink": one(os.readlink),
    "realpath": lambda at, path: os.path.relpath(os.path.realpath(path), os.path.realpath(ROOT)),
    "walk": lambda at, path: sorted(
        [os.path.relpath(d, ROOT), sorted(ds), sorted(fs)] for d, ds, fs in os.walk(path)
    ),
}
BY_PATH = {"listdir", "entries", "inodes", "exists", "realpath", "walk", "truncate", "fopen"}
BY_PATH |= {"bind", "temporary"}


def do(way: Any, name: Any, *words: Any) -> Any:
    paths = list(words)
    at = {"dir_fd": HERE} if way == "fd" and name not in BY_PATH else {}
    if way == "absolute":
        paths = [os.path.join(ROOT, word) for word in words]
        if name == "symlink":
            paths[0] = words[0]
        elif name not in ("rename", "link"):
            paths[1:] = words[1:]
    return CALLS[name](at, *paths)


for line in sys.stdin:
    try:
        answer = do(*json.loads(line))
    except OSError as error:
        answer = errno.errorcode[error.errno or 0]
    print(json.dumps(answer), flush=True)
