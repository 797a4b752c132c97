"""A slow source with files that programs read and hand over, and helpers that read these files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.epoch import content, make_files
from support.files import digest
from support.session import Session, wait_until

from monarch_py.demo.slowsource import SlowSource

Factory = Callable[..., Session]
# The size of a file [bytes], the number of files in a directory, and the size of a larger file
# [bytes], which tests add themselves.
SIZE, MANY = 100_000, 12
LARGE = 3_000_000
# Makes a program say that it is ready, and wait until its standard input is closed.
READY = "\nprint('ready', flush=True)\nsys.stdin.read()"
# Latencies of the source [s]. They are so long that a program has read a file to its end before the
# file has a copy.
SLOW = {"open": 0.002, "read": 0.002}
# A scan rate [files/s] so low that the scan finds only a few files before a test ends.
UNMET = 4
# Each way reads the whole file into `data`.
WAYS = {
    "read": "data = os.read(fd, 1 << 20)",
    "parts": "data = b''.join(iter(lambda: os.read(fd, 4096), b''))",
    "pread": "data = os.pread(fd, 1 << 20, 0)",
    "backwards": "data = b''.join(os.pread(fd, 4096, at) for at in range(0, size, 4096))",
    "readv": "parts = bytearray(size // 2), bytearray(size); n = os.readv(fd, parts);"
    " data = b''.join(parts)[:n]",
    "preadv": "parts = bytearray(size // 2), bytearray(size); n = os.preadv(fd, parts, 0);"
    " data = b''.join(parts)[:n]",
    "sendfile": "pipe = os.memfd_create('x'); os.sendfile(pipe, fd, 0, size);"
    " data = os.pread(pipe, size, 0); os.close(pipe)",
    "mmap": "data = mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:]",
    "stream": "data = open(fd, 'rb', closefd=False).read()",
    "fromfile": "import numpy; stream = open(fd, 'rb', closefd=False);"
    " data = stream.read(10) + numpy.fromfile(stream, dtype='u1').tobytes()",
    "unseen": "data = libc.syscall(0, fd, room, size) and room.raw",
}
READ = """
import ctypes, hashlib, mmap, os, sys
libc = ctypes.CDLL(None)
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    room = ctypes.create_string_buffer(size)
    WAY
    os.close(fd)
    print(hashlib.sha256(data).hexdigest())
"""


def reading(way: str) -> str:
    """Returns a program that reads the files named by its arguments, and prints a digest of each.

    way : a key of WAYS, the method of reading
    """
    return READ.replace("WAY", WAYS[way])


class Ground:
    """A slow source with directories of MANY files each, and a session that serves it. Each test
    takes a new directory, and no page of that directory's files is in memory."""

    def __init__(self, mounted: SlowSource, session: Session) -> None:
        self.session, self._mounted = session, mounted
        self.names = [f"d{number}" for number in range(16)]
        for name in self.names:
            make_files(mounted.backing / name, MANY, SIZE)
        mounted.latency(**SLOW)

    def next(self) -> Directory:
        """Waits until all copies of earlier tests are dropped. Returns a directory for the next
        test."""
        if self.session.daemon is None:
            self.session.start().wait_scanned()
        self.session.wait_idle()
        self.session.forget()
        wait_until(
            lambda: present(self.session) == 0 and not self.session.status()["dropping"],
            what="the end of all copies",
        )
        self._mounted.reset()
        return Directory(self._mounted, self.names.pop())


class Directory:
    """A directory of a slow source, with the source's counters."""

    def __init__(self, mounted: SlowSource, name: str) -> None:
        self.name = name
        self.mountpoint, self.backing = mounted.mountpoint / name, mounted.backing / name
        self.counts, self.reset = mounted.counts, mounted.reset


def read(session: Session, source: SlowSource | Directory, way: str, *seeds: int) -> None:
    paths = [source.mountpoint / str(seed) for seed in seeds]
    said = session.python(reading(way), *paths).split()
    assert said == [digest(content(seed, SIZE)) for seed in seeds]


def present(session: Session) -> int:
    return int(session.status()["sources"][0]["present"])


def popen(session: Session, script: str, path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        env=session.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@contextmanager
def started(session: Session, script: str, path: Path, rest: str = "") -> Iterator[None]:
    """Starts a program that runs `script`. When the context ends, the program runs `rest`."""
    with popen(session, script + READY + rest, path) as program:
        assert program.stdin is not None and program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            program.stdin.close()
        assert program.wait(60) == 0


def add_large(source: SlowSource | Directory, name: str) -> None:
    (source.backing / name).write_bytes(content(int(name), LARGE))


def entry_of(session: Session, source: Directory, name: str) -> int:
    paths = [[0, f"{source.name}/{name}"]]
    return int(session.connection.ask("look", paths=paths)["entries"][0])
