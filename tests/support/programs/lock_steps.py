"""Reads lock operations from its standard input, one per line, and performs them on one file.

The operations name descriptors by slot numbers. The program's arguments are the file and the flags
for opening it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import struct
import subprocess
import sys
from typing import Any


class NoSuchSlot(Exception):
    pass


class Slots(dict[int, int]):
    """The descriptor in each slot."""

    def __missing__(self, slot: int) -> int:
        raise NoSuchSlot


PATH, FLAGS = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
slots = Slots()
FLOCK = "hhqqi4x"  # struct flock


def opened(slot: Any) -> Any:
    free(slot)
    slots[slot] = os.open(PATH, FLAGS)


def free(slot: Any) -> Any:
    if slot in slots:
        os.close(slots.pop(slot))


def dup(slot: Any, to: Any) -> Any:
    fd = os.dup(slots[slot])
    free(to)
    slots[to] = fd


def dup2(slot: Any, to: Any) -> Any:
    if to in slots and slot in slots:
        os.dup2(slots[slot], slots[to])


def command(
    slot: Any, name: Any, kind: Any, start: Any, length: Any, whence: Any = "SEEK_SET"
) -> Any:
    """Calls fcntl with F_SETLK or a related command. Returns the fields of the lock structure after
    the call. If another lock conflicts, F_GETLK has replaced these fields with those of that
    lock."""
    asked = struct.pack(FLOCK, getattr(fcntl, kind), getattr(os, whence), start, length, 0)
    found = struct.unpack(FLOCK, fcntl.fcntl(slots[slot], getattr(fcntl, name), asked))
    return [*found[:4], {0: "nobody", -1: "an open file"}.get(found[4], "a process")]


def lockf(slot: Any, kind: Any, length: Any) -> Any:
    if libc.lockf(slots[slot], {"F_LOCK": 2, "F_TEST": 3, "F_ULOCK": 0}[kind], length) != 0:
        raise OSError(ctypes.get_errno(), "")


def lease(slot: Any, kind: Any) -> Any:
    fcntl.fcntl(slots[slot], fcntl.F_SETLEASE, getattr(fcntl, kind))
    return fcntl.fcntl(slots[slot], fcntl.F_GETLEASE)


def forked(slot: Any, what: Any) -> Any:
    """Performs the operation in a forked child, with the descriptors that it has inherited."""
    child = os.fork()
    if child == 0:
        try:
            fcntl.flock(slots[slot], getattr(fcntl, what) | fcntl.LOCK_NB) if what else free(slot)
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def spawned(_slot: Any) -> Any:
    subprocess.run(["true"], check=True)
    subprocess.run(["true"], check=True, close_fds=False)


def read(slot: Any) -> Any:
    return os.pread(slots[slot], 100, 0).decode()


def other(_slot: Any) -> Any:
    """Opens and closes another descriptor of the file."""
    os.close(os.open(PATH, FLAGS))


def streamed(_slot: Any) -> Any:
    with open(PATH) as file:
        return len(file.readline())


def closed_all(_slot: Any = 0) -> Any:
    for slot in list(slots):
        free(slot)


CALLS: dict[str, Any] = {
    "open": opened,
    "close": free,
    "dup": dup,
    "dup2": dup2,
    "flock": lambda slot, kind: fcntl.flock(slots[slot], getattr(fcntl, kind) | fcntl.LOCK_NB),
    "fcntl": command,
    "lockf": lockf,
    "lease": lease,
    "forked": forked,
    "spawned": spawned,
    "other": other,
    "streamed": streamed,
    "read": read,
    "seek": lambda slot, offset: os.lseek(slots[slot], offset, os.SEEK_SET),
    "close_all": closed_all,
}

for line in sys.stdin:
    try:
        name, *words = json.loads(line)
        answer = CALLS[name](*words)
    except NoSuchSlot:
        answer = "no such slot"
    except OSError as error:
        answer = errno.errorcode[error.errno or 0]
    print(json.dumps(answer), flush=True)
