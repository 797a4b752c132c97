"""Watches opens, reads and closes of files with fanotify: `fanotify.py KIND DIRECTORY`.

KIND : "directory" watches the files in DIRECTORY. "mount" watches all files of the directory's
    mount. "asked" watches the files in DIRECTORY, and each open of these files waits until this
    program allows it. The program allows all opens.

First, the program prints "ready". Then it reads process numbers from its standard input. For each
number, it prints the events that the process with this number has caused so far, as a dictionary:
name of the file -> mask of the events.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import struct
import sys
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
CLASS_CONTENT, CLOEXEC, NONBLOCK = 4, 1, 2
MARK_ADD, MARK_MOUNT, ON_CHILD = 1, 0x10, 0x08000000
ACCESS, CLOSE_NOWRITE, OPEN, OPEN_PERM = 0x1, 0x10, 0x20, 0x10000
ALLOW = 1
EVENT = struct.Struct("IBBHQii")  # struct fanotify_event_metadata

seen: dict[int, dict[str, int]] = {}


def begin(kind: str, directory: str) -> int:
    fd: int = libc.fanotify_init(CLASS_CONTENT | CLOEXEC | NONBLOCK, os.O_RDONLY)
    asked = OPEN_PERM if kind == "asked" else 0
    mask = ctypes.c_uint64(ACCESS | CLOSE_NOWRITE | OPEN | asked | ON_CHILD)
    how = MARK_ADD | (MARK_MOUNT if kind == "mount" else 0)
    if fd < 0 or libc.fanotify_mark(fd, how, mask, -100, os.fsencode(directory)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def note(watcher: int, _length: int, _version: int, *more: Any) -> None:
    _, _, mask, file, process = more
    name = os.path.basename(os.readlink(f"/proc/self/fd/{file}"))
    if mask & OPEN_PERM:
        os.write(watcher, struct.pack("iI", file, ALLOW))
    os.close(file)
    of_process = seen.setdefault(process, {})
    of_process[name] = of_process.get(name, 0) | mask


def take(watcher: int) -> None:
    """Reads and notes all pending events."""
    while True:
        try:
            data = os.read(watcher, 1 << 16)
        except BlockingIOError:
            return
        while data:
            event = EVENT.unpack_from(data)
            note(watcher, *event)
            data = data[event[0] :]


if __name__ == "__main__":
    watcher = begin(*sys.argv[1:])
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([watcher, sys.stdin], [], [])
        take(watcher)
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                break
            take(watcher)
            print(json.dumps(seen.get(int(line), {})), flush=True)
