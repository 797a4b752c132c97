"""A session that belongs to the test's process: its directory, and the files in the directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch_py.native import SessionState, ffi, lib


@dataclass
class Place:
    """The directory of a session. The first call of `put` creates it."""

    config: Path
    directory: Path

    def put(self, name: str, content: Any, mode: int = 0o600) -> Path:
        """Writes a file of the session. The content is bytes or a C structure."""
        self.directory.parent.mkdir(mode=0o700, exist_ok=True)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        path = self.directory / name
        path.write_bytes(content if isinstance(content, bytes) else bytes(ffi.buffer(content)))
        path.chmod(mode)
        return path

    def get(self, name: str, kind: str) -> Any:
        """Reads a segment as a C structure."""
        out = ffi.new(f"{kind} *")
        ffi.buffer(out)[:] = (self.directory / name).read_bytes()[: ffi.sizeof(kind)]
        return out


def control(*devices: int) -> Any:
    """Returns the segment `control` of a daemon that serves sources on these devices."""
    made = ffi.new("struct monarch_control *")
    made.magic, made.version = lib.MONARCH_MAGIC, lib.MONARCH_VERSION
    made.state, made.sources = SessionState.SERVING, len(devices)
    made.pid, made.owner = os.getpid(), os.geteuid()
    for i, dev in enumerate(devices):
        made.source[i].dev = dev
    return made


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def open_descriptors() -> set[str]:
    """Returns the numbers of this process's descriptors, except the descriptor through which the
    list is read."""
    return {name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}


@contextmanager
def without_stdin() -> Iterator[None]:
    """Closes descriptor 0, so that the next open gets this number."""
    kept = os.dup(0)
    os.close(0)
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)
