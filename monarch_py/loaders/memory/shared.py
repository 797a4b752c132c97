"""Shared memory of a node's processes, found by a key; it exists until the last process ends.

The memory is a memfd, which has no name. A small file, the list, has a line for each process that
has created or opened the memory. A child that inherits the memory has no line. A later process
opens the memory through /proc/PID/fd of a process on the list. If all these processes are killed,
the kernel frees the memory, and only the list is left. The next process on the node that makes a
SharedMemory removes the list.
"""

import fcntl
import mmap
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

from monarch_py.errors import MonarchError
from monarch_py.ipc.session import kept_directory, open_private, private_directory
from monarch_py.util.processes import Identity

# How long [s] a process waits for the lock on a memory's list of processes. Each process holds the
# lock for less than 1 ms.
LOCK_LIMIT_S = 4.0
LOCK_PAUSE_S = 0.005
LINE_BYTES = 1 << 20


class SharedMemory:
    """Memory that a key identifies. The first process creates it, filled with zeros; other
    processes open it.

    A child process receives the memory by fork, or with a SharedMemory among the arguments of its
    multiprocessing.Process. If a SharedMemory is pickled for another purpose, it opens the memory
    by the key when it is unpickled.

    key : the name of the list, which is the file that lists the processes with this memory
    n_bytes : the size of the memory [bytes]
    begin : a function with which the first process initializes the memory
    """

    def __init__(self, key: str, n_bytes: int, begin: Callable[[mmap.mmap], None]) -> None:
        self.key, self.n_bytes, self._begin = key, n_bytes, begin
        self._attach()

    def _attach(self) -> None:
        directory = kept_directory()
        private_directory(directory)
        _remove_abandoned(directory)
        fd = None
        try:
            with _locked(directory / self.key) as file:
                lines = _alive(file)
                fd = next((fd for line in lines if (fd := self._open(line)) is not None), None)
                if fd is None:
                    lines, fd = [], self._create()
                self._map(fd)
                line = f"{Identity.of(os.getpid())} {fd} {os.fstat(fd).st_ino}"
                _write(file, [*lines, line])
        except OSError as error:
            if fd is not None:
                os.close(fd)
            raise MonarchError(
                f"{directory / self.key}: {error.strerror}; free room on its file system, or set"
                " MONARCH_SHM to another directory"
            ) from error
        self._leave: weakref.finalize[Any, SharedMemory] = weakref.finalize(
            self, _leave, fd, directory / self.key, os.getpid(), line
        )

    def _create(self) -> int:
        fd = os.memfd_create("monarch-kept")
        try:
            os.ftruncate(fd, self.n_bytes)
            with mmap.mmap(fd, self.n_bytes) as memory:
                self._begin(memory)
        except (OSError, ValueError, OverflowError) as error:
            os.close(fd)
            raise MonarchError(
                f"quota: {self.n_bytes} bytes of memory cannot be mapped ({error}); lower the quota"
            ) from None
        return fd

    def _open(self, line: str) -> int | None:
        """Opens the memory in /proc/PID/fd of a process on the memory's list. Returns a descriptor
        of the memory; None if the process no longer has the memory.

        line : the process's line in the list
        """
        pid, _, number, inode = line.split()
        with suppress(OSError):
            fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
            found = os.fstat(fd)
            if (found.st_ino, found.st_size) == (int(inode), self.n_bytes):
                return fd
            os.close(fd)
        return None

    def _map(self, fd: int) -> None:
        self._fd = fd
        self.memory = mmap.mmap(fd, self.n_bytes)
        self.memory.madvise(mmap.MADV_DONTDUMP)

    def close(self) -> None:
        """Removes this process from the list of processes that have the memory. The memory itself
        exists as long as a process maps it."""
        self._leave()

    def __getstate__(self) -> dict[str, Any]:
        state = {"key": self.key, "n_bytes": self.n_bytes, "begin": self._begin, "fd": None}
        if get_spawning_popen() is not None and self._leave.alive:
            state["fd"] = reduction.DupFd(self._fd)  # type: ignore[attr-defined,unused-ignore]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.key, self.n_bytes, self._begin = state["key"], state["n_bytes"], state["begin"]
        if state["fd"] is None:
            self._attach()
            return
        # This process needs no line in the list of processes that have the memory: its parent
        # process, which has passed the descriptor on, has a line.
        self._map(state["fd"].detach())
        self._leave = weakref.finalize(self, os.close, self._fd)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Opens and locks a memory's list of processes, and creates it if necessary. Yields the list's
    descriptor. Raises MonarchError if another process does not release the lock."""
    limit = time.monotonic() + LOCK_LIMIT_S
    while True:
        fd = open_private(path, os.O_RDWR)
        try:
            while not _try_lock(fd):
                if time.monotonic() > limit:
                    raise MonarchError(
                        f"{path} is locked by a stopped process; continue or end that process"
                    )
                time.sleep(LOCK_PAUSE_S)
            if os.fstat(fd).st_nlink:
                yield fd
                return
        finally:
            # Unlock explicitly. If a child was forked while this process had the lock, the child's
            # copy of the descriptor shares the lock. Then closing this descriptor does not release
            # the lock.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def _try_lock(fd: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _alive(file: int) -> list[str]:
    """Returns the lines whose processes still run. Malformed lines, which a crash of the node or an
    edit by hand may leave, are ignored."""
    lines = os.pread(file, LINE_BYTES, 0).decode(errors="replace").splitlines()
    whole = [line for line in lines if re.fullmatch(r"[0-9]+ [0-9]+ [0-9]+ [0-9]+", line, re.ASCII)]
    owners = {line: Identity.parsed(" ".join(line.split()[:2])) for line in whole}
    return [line for line, owner in owners.items() if owner is not None and not owner.has_ended]


def _write(file: int, lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    # Allocate the room first. If the file system is full, this call fails, and the old lines stay
    # intact.
    os.posix_fallocate(file, 0, max(1, len(text)))
    os.pwrite(file, text, 0)
    os.ftruncate(file, len(text))


def _leave(fd: int, path: Path, owner: int, line: str) -> None:
    if os.getpid() == owner:  # a forked child has no line in the list
        _take_off(path, line)
    os.close(fd)


def _take_off(path: Path, line: str) -> None:
    with suppress(OSError, MonarchError), _locked(path) as file:
        others = [other for other in _alive(file) if other != line]
        if others:
            _write(file, others)
        else:
            path.unlink()


def _remove_abandoned(directory: Path) -> None:
    """Removes each list whose processes have all ended. Processes that are killed leave such a
    list."""
    for path in directory.iterdir():
        with suppress(OSError), open(path, "r+b", buffering=0) as file:
            if _try_lock(file.fileno()) and not _alive(file.fileno()) and _is_named(file, path):
                path.unlink()
            fcntl.flock(file, fcntl.LOCK_UN)


def _is_named(file: Any, path: Path) -> bool:
    return os.path.samestat(os.fstat(file.fileno()), path.stat())
