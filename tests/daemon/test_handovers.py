"""Copies that are made through the descriptors of programs that have read the files."""

from __future__ import annotations

import fcntl
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest
from support.draws import cases, sized
from support.epoch import content, make_files
from support.files import digest
from support.session import Session, wait_until
from support.watch import open_by

from monarch_py.demo.slowsource import SlowSource
from monarch_py.native import ffi

Factory = Callable[..., Session]
SIZE, MANY = 100_000, 12
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
        self.names = [f"d{number}" for number in range(32)]
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


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory, slowsource_binary: Path) -> Iterator[Ground]:
    place = tmp_path_factory.mktemp("ground")
    backing, mountpoint = place / "backing", place / "mount"
    for path in (backing, mountpoint):
        path.mkdir()
    with (
        SlowSource(backing, mountpoint, binary=slowsource_binary, keep_pages=True) as mounted,
        Session(place, mountpoint) as session,
    ):
        yield Ground(mounted, session)


@pytest.fixture
def source(ground: Ground) -> Directory:
    return ground.next()


@pytest.fixture
def session(ground: Ground, source: Directory) -> Session:
    """The session that all tests share. In the directory of the test that requests the session,
    only file 1 has a copy."""
    # The engine takes no descriptor before it is granted room, and the daemon grants room only
    # when a program uses files. So the daemon opens the first file itself.
    read(ground.session, source, "read", 1)
    wait_until(lambda: present(ground.session) == 1, what="the first copy")
    source.reset()
    return ground.session


@pytest.fixture
def own_source(slow_factory: Callable[..., SlowSource]) -> SlowSource:
    """Makes a source for a session that only this test uses."""
    mounted = slow_factory(keep_pages=True)
    make_files(mounted.backing, MANY, SIZE)
    mounted.latency(**SLOW)
    return mounted


def read(session: Session, source: SlowSource | Directory, way: str, *seeds: int) -> None:
    paths = [source.mountpoint / str(seed) for seed in seeds]
    said = session.python(reading(way), *paths).split()
    assert said == [digest(content(seed, SIZE)) for seed in seeds]


def present(session: Session) -> int:
    return int(session.status()["sources"][0]["present"])


def has_copies(session: Session, number: int) -> bool:
    return present(session) == number


@pytest.mark.parametrize("way", WAYS)
def test_the_source_sees_one_open_and_every_byte_once(
    session: Session, source: Directory, way: str
) -> None:
    seeds = range(2, MANY + 1)
    read(session, source, way, *seeds)
    wait_until(lambda: present(session) == MANY, what="copies of all files")
    counts = source.counts()
    # On a busy machine, the daemon may close a handed-over descriptor before it orders the fill of
    # the file. To fill the file, the daemon then opens it itself.
    assert len(seeds) <= counts["open"] <= len(seeds) + 1
    assert counts["bytes_read"] <= (len(seeds) + 1) * SIZE
    source.reset()
    read(session, source, way, *seeds)
    assert source.counts()["open"] == source.counts()["bytes_read"] == 0


def takers(session: Session) -> int:
    """Returns how many of the daemon's threads receive descriptors from programs."""
    names = Path("/proc", str(session.status()["pid"]), "task").glob("*/comm")
    return [name.read_text() for name in names].count("monarch-take\n")


def test_no_more_threads_than_descriptors_that_come_at_once(
    session_factory: Factory, own_source: SlowSource
) -> None:
    """Programs hand over one descriptor after the other. While one thread of the daemon receives a
    descriptor, another waits for the next one, so few threads are enough."""
    session = session_factory(own_source.mountpoint).start()
    session.wait_scanned()
    for seed in range(1, MANY + 1):
        read(session, own_source, "read", seed)
        wait_until(partial(has_copies, session, seed), what="the copy")
    assert 1 <= takers(session) <= 3


@pytest.mark.parametrize(
    "way", cases(["read", "parts", "backwards", "mmap", "unseen"], short=["parts", "mmap"])
)
def test_files_that_no_scan_has_met_are_opened_once(
    session_factory: Factory, own_source: SlowSource, way: str
) -> None:
    settings = {"prefetch": "on_demand", "scan_rate": UNMET}
    with session_factory(own_source.mountpoint, **settings).start() as session:
        own_source.reset()
        read(session, own_source, way, *range(1, MANY + 1))
        wait_until(lambda: present(session) == MANY, what="copies of all files")
        counts = own_source.counts()
        assert counts["open"] == MANY
        assert counts["bytes_read"] == MANY * SIZE
        own_source.reset()
        read(session, own_source, way, *range(1, MANY + 1))
        assert own_source.counts()["open"] == 0


def test_a_wrong_path_is_not_believed(session_factory: Factory, own_source: SlowSource) -> None:
    settings = {"prefetch": "on_demand", "scan_rate": UNMET}
    session = session_factory(own_source.mountpoint, **settings).start()
    before = ffi.offsetof("struct monarch_handover", "path")
    for path in (b"3", b"./2", b"../mount/2", b"/2", b"2/", b"", b"no", b"2\0x"):
        about = {"id": 2**26, "source": 0, "path_len": len(path)}
        what = ffi.new("struct monarch_handover *", about)
        ffi.memmove(what.path, path, len(path))
        fd = os.open(own_source.mountpoint / "2", os.O_RDONLY)
        send(session, bytes(ffi.buffer(what))[: before + len(path) + 1], fd)
        os.close(fd)
    read(session, own_source, "read", 2, 3)
    wait_until(lambda: present(session) == 2, what="copies of what was read")
    read(session, own_source, "read", 2, 3)


LARGE = 3_000_000
# In total, the program reads more than an eighth but less than half of the file.
AT_RANDOM = """
import os, sys
fd = os.open(sys.argv[1], 0)
for at in range(0, 3_000_000, 60_000):
    assert len(os.pread(fd, 10_000, 3_000_000 - 60_000 - at)) == 10_000
"""
READY = "\nprint('ready', flush=True)\nsys.stdin.read()"


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


@pytest.mark.parametrize("is_met", [True, False])
def test_larger_files_are_opened_once_too(
    session_factory: Factory, own_source: SlowSource, is_met: bool
) -> None:
    names = [str(seed) for seed in range(101, 105)]
    for name in names:
        add_large(own_source, name)
    rate = {} if is_met else {"scan_rate": UNMET}
    with session_factory(own_source.mountpoint, prefetch="on_demand", **rate).start() as session:
        if is_met:
            session.wait_scanned()
        own_source.reset()
        paths = [own_source.mountpoint / name for name in names]
        for _ in range(2):
            said = session.python(reading("parts"), *paths).split()
            assert said == [digest(content(int(name), LARGE)) for name in names]
            wait_until(lambda: present(session) >= len(names), what="copies of all files")
        # The daemon grants the engine room only when a program uses files. So the engine may be
        # unable to take the first file's descriptor, and the daemon may open that file itself.
        assert own_source.counts()["open"] <= len(names) + 1
        assert own_source.counts()["bytes_read"] <= (len(names) + 1) * LARGE


def test_a_file_that_is_read_at_random_is_filled_in_parts(
    session: Session, source: Directory
) -> None:
    """If a program reads a file at random, the daemon fills the file while the program still has it
    open. It must not wait longer, because the program may never read all of the file, and may keep
    the file open until it ends."""
    add_large(source, "101")
    entry_of(session, source, "101")
    with started(session, AT_RANDOM, source.mountpoint / "101"):
        wait_until(lambda: present(session) == 2, what="the copy, while the file is open")


def test_a_large_file_is_its_readers_for_as_long_as_it_reads(
    session: Session, source: Directory
) -> None:
    """While a program reads a file, it claims the file, so that the daemon does not read the file
    too. A claim ends after a second, but a slow reader renews its claim as long as it reads."""
    add_large(source, "101")
    entry = entry_of(session, source, "101")
    script = "import os, sys, time\nfd = os.open(sys.argv[1], 0)\nos.read(fd, 100_000)"
    rest = "\nwhile os.read(fd, 300_000): time.sleep(0.15)"
    source.reset()
    with started(session, script, source.mountpoint / "101", rest):
        session.connection.ask("warm", entries=[entry], ticket="test")
    wait_until(lambda: present(session) == 2, what="the copy")
    assert source.counts()["open"] == 1
    assert source.counts()["bytes_read"] <= 1.1 * LARGE


HALF = "import os, sys\nfd = os.open(sys.argv[1], 0)\nassert len(os.read(fd, 1 << 20)) == 1 << 20"
REST = """
def rest():
    while part := os.read(fd, 1 << 20):
        yield part
"""
SAY = "\nimport hashlib; print(hashlib.sha256(b''.join(rest())).hexdigest())"


def rest_of(seed: int) -> str:
    return digest(content(seed, LARGE)[1 << 20 :])


def test_two_processes_read_one_new_file_at_once(session: Session, source: Directory) -> None:
    add_large(source, "101")
    entry_of(session, source, "101")
    source.reset()
    path = source.mountpoint / "101"
    with started(session, HALF, path, REST + SAY), started(session, HALF, path, REST + SAY):
        pass
    wait_until(lambda: present(session) == 2, what="the copy")
    assert source.counts()["open"] == 2
    assert source.counts()["bytes_read"] <= 1.02 * LARGE
    said = session.python(reading("parts"), path).split()
    assert said == [digest(content(101, LARGE))]


def test_a_reader_that_ends_or_stands_still_keeps_nobody(
    session: Session, source: Directory
) -> None:
    """A program claims a file while it reads the file. If the program is killed or stopped, the
    claim expires. Then the daemon fills the file, and another program can read it."""
    numbers = {"101": signal.SIGKILL, "102": signal.SIGSTOP}
    paths = [source.mountpoint / name for name in numbers]
    for name in numbers:
        add_large(source, name)
    entries = [entry_of(session, source, name) for name in numbers]
    with ExitStack() as stack:
        for path, number in zip(paths, numbers.values(), strict=True):
            program = stack.enter_context(popen(session, HALF + READY, path))
            stack.callback(program.kill)
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n"
            program.send_signal(number)
        session.connection.ask("warm", entries=entries, ticket="test")
        wait_until(lambda: present(session) == 3, what="the copies")
    said = session.python(reading("parts"), *paths).split()
    assert said == [digest(content(int(name), LARGE)) for name in numbers]


@pytest.mark.parametrize("way", ["fork", "exec"])
def test_another_program_reads_on(session: Session, source: Directory, way: str) -> None:
    add_large(source, "101")
    entry_of(session, source, "101")
    on = {
        "fork": "\nif os.fork(): os.wait(); sys.exit()",
        "exec": "\nos.set_inheritable(fd, True)\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'import os; fd = %d' % fd + sys.argv[2]])",
    }
    path, after = source.mountpoint / "101", REST + SAY
    assert session.python(HALF + on[way] + after, path, after).split() == [rest_of(101)]
    said = session.python(reading("parts"), path).split()
    assert said == [digest(content(101, LARGE))]
    wait_until(lambda: present(session) == 2, what="the copy")


def test_a_reader_that_begins_in_the_middle(session: Session, source: Directory) -> None:
    add_large(source, "101")
    entry_of(session, source, "101")
    script = (
        "import hashlib, os, sys\nfd = os.open(sys.argv[1], 0)\nos.lseek(fd, 1_000_000, 0)\n"
        "data = b''.join(iter(lambda: os.read(fd, 100_000), b''))\nos.lseek(fd, 0, 0)\n"
        "data = os.read(fd, 1_000_000) + data\nprint(hashlib.sha256(data).hexdigest())"
    )
    assert session.python(script, source.mountpoint / "101").split() == [
        digest(content(101, LARGE))
    ]
    wait_until(lambda: present(session) == 2, what="the copy")


def test_a_file_for_which_no_tier_has_room(
    session_factory: Factory, own_source: SlowSource, tmp_path: Path
) -> None:
    add_large(own_source, "101")
    tier = tmp_path / "small"
    tier.mkdir()
    tiers = [{"mount_point": tier, "max_storage_quota": 2_000_000}]
    with session_factory(
        own_source.mountpoint, prefetch="on_demand", tiers=tiers
    ).start() as session:
        session.wait_scanned()
        path = own_source.mountpoint / "101"
        for _ in range(2):
            said = session.python(reading("parts"), path).split()
            assert said == [digest(content(101, LARGE))]
        read(session, own_source, "parts", 1)
        wait_until(lambda: present(session) == 1, what="the copy of the small file")
        wait_until(
            lambda: session.status()["sources"][0]["bypass"] == {"no_room": 1}, what="the reason"
        )


def test_headers_of_files_that_no_scan_has_met_cost_what_they_are(
    session_factory: Factory, own_source: SlowSource
) -> None:
    names = [str(seed) for seed in range(101, sized(103, 109))]
    for name in names:
        add_large(own_source, name)
    # The scan takes half a second per file, and the test waits for the scan. So the test removes
    # all but a few files.
    for seed in range(2, MANY + 1):
        (own_source.backing / str(seed)).unlink()
    script = "import os, sys\nfor p in sys.argv[1:]:\n fd = os.open(p, 0); os.read(fd, 4096)"
    with session_factory(own_source.mountpoint, scan_rate=2).start() as session:
        own_source.reset()
        session.python(script + "; os.close(fd)", *(own_source.mountpoint / name for name in names))
        session.python(reading("read"), own_source.mountpoint / "1")
        wait_until(lambda: present(session) == 1, what="the copy of what was read")
        session.wait_idle()
        assert present(session) == 1
        assert own_source.counts()["open"] == len(names) + 1
        assert own_source.counts()["bytes_read"] <= len(names) * (256 << 10) + SIZE


def test_who_reads_headers_has_no_file_copied(session: Session, source: Directory) -> None:
    source.reset()
    script = "import os, sys\nfor p in sys.argv[1:]: os.read(os.open(p, os.O_RDONLY), 4096)"
    close = "\nfor fd in range(3, 64):\n try: os.close(fd)\n except OSError: pass"
    session.python(script + close, *(source.mountpoint / str(seed) for seed in (2, 3, 4)))
    session.wait_idle()
    assert present(session) == 1
    assert source.counts()["open"] == 3


def test_a_file_that_was_half_read_is_copied_when_it_is_closed(
    session: Session, source: Directory
) -> None:
    script = "import os, sys\nfd = os.open(sys.argv[1], 0)\nos.read(fd, 60_000)\nos.close(fd)"
    session.python(script, source.mountpoint / "2")
    wait_until(lambda: present(session) == 2, what="the copy")
    assert source.counts()["open"] == 1
    read(session, source, "read", 2)


def test_a_file_that_changes_after_it_was_read_is_served_as_it_is(
    session: Session, source: Directory
) -> None:
    """After a program has read a file, the file is changed before its copy is made, or while the
    copy is being made. The next open reads the new content."""
    script = (
        "import os, sys\nfor p in sys.argv[1:]:\n fd = os.open(p, 0)\n"
        " assert len(os.read(fd, 1 << 20)) == 100_000\n"
        " with open(p, 'r+b') as f: f.write(b'new')\n os.close(fd)\n"
        " assert open(p, 'rb').read(3) == b'new', p"
    )
    session.python(script, *(source.mountpoint / str(seed) for seed in range(2, MANY + 1)))
    session.wait_idle()
    check = "import sys\nfor p in sys.argv[1:]: assert open(p, 'rb').read(3) == b'new', p"
    session.python(check, *(source.mountpoint / str(seed) for seed in range(2, MANY + 1)))


def test_a_lock_ends_with_its_descriptor(session: Session, source: Directory) -> None:
    """A descriptor that was handed over refers to the program's own open file description, and the
    daemon keeps the descriptor open for a moment. Even then, a lock that the program takes must end
    when the program closes its own descriptor."""
    script = """
import fcntl, os, sys
for path in sys.argv[1:]:
    fd, other = os.open(path, 0), os.open(path, 0)
    assert len(os.read(fd, 1 << 20)) == 100_000
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.close(fd)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
"""
    session.python(script, *(source.mountpoint / str(seed) for seed in range(2, MANY + 1)))


def test_a_lock_recalls_its_descriptor(
    session_factory: Factory, slow_factory: Callable[..., SlowSource]
) -> None:
    """When a program locks a file, the daemon closes the descriptor that the program has handed
    over. It does so before the copy is finished, because the lock must not wait for the copy. Here
    a copy takes long, because the daemon must read the whole file from the source again."""
    source = slow_factory(direct=True)
    script = """
import fcntl, os, sys
for path in sys.argv[1:]:
    fd, other = os.open(path, 0), os.open(path, 0)
    while os.read(fd, 1 << 20):
        pass
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.close(fd)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
"""
    size = 12_000_000
    make_files(source.backing, 4, size)
    source.latency(read=0.001)
    with session_factory(source.mountpoint, prefetch="on_demand").start() as session:
        session.wait_scanned()
        # The daemon grants the engine room only when a program uses files. So a program first opens
        # file 1. After that, the engine can take the descriptors of the other files.
        touch = "import os, sys\nos.close(os.open(sys.argv[1], 0))"
        session.python(touch, source.mountpoint / "1")
        wait_until(lambda: present(session) == 1, what="the first copy")
        session.python(script, *(source.mountpoint / str(seed) for seed in range(2, 5)))
        wait_until(
            lambda: present(session) == 4, what="copies, for which the daemon opens the files"
        )
        said = session.python(reading("read"), source.mountpoint / "4").split()
        assert said == [digest(content(4, size)[: 1 << 20])]


def test_a_mount_that_keeps_no_pages_is_learnt(
    session_factory: Factory, slow_factory: Callable[..., SlowSource]
) -> None:
    """A mount keeps no pages of files in memory. After a program has read a file, the daemon would
    have to read the file from the source again. The daemon notices this, and then reads the files
    before the programs do."""
    source, many = slow_factory(direct=True), 80
    make_files(source.backing, many, SIZE)
    source.latency(open=0.002, read=0.0005)
    with session_factory(source.mountpoint, prefetch="on_demand").start() as session:
        session.wait_scanned()
        read(session, source, "parts", *range(1, 51))
        wait_until(lambda: present(session) == 50, what="copies of the first files")
        source.reset()
        read(session, source, "parts", *range(51, many + 1))
        wait_until(lambda: present(session) == many, what="copies of all files")
        assert source.counts()["bytes_read"] <= (many - 50 + 1) * SIZE


def test_a_locked_descriptor_is_kept(session: Session, source: Directory) -> None:
    script = """
import fcntl, os, sys
fd = os.open(sys.argv[1], 0)
fcntl.flock(fd, fcntl.LOCK_EX)
assert len(os.read(fd, 1 << 20)) == 100_000
os.close(fd)
other = os.open(sys.argv[1], 0)
fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""
    session.python(script, source.mountpoint / "2")
    wait_until(lambda: present(session) == 2, what="the copy, for which the daemon opens the file")
    read(session, source, "read", 2)


@pytest.mark.parametrize("is_again", [False, True], ids=["first", "again"])
def test_a_large_file_that_is_locked_is_read_once(
    session_factory: Factory, slow_factory: Callable[..., SlowSource], is_again: bool
) -> None:
    """A program locks a file after it has read the file's first bytes, as HDF5 does, and then reads
    the whole file. Although the mount drops the file's pages at each open, the source is read only
    once."""
    source = slow_factory()
    source.latency(open=0.002, read=0.002)
    make_files(source.backing, 1, SIZE)
    add_large(source, "101")
    session = session_factory(source.mountpoint, prefetch="on_demand").start()
    session.wait_scanned()
    session.python(reading("read"), source.mountpoint / "1")
    wait_until(lambda: present(session) == 1, what="the first copy")
    lock = """
import fcntl, hashlib, os, sys
other = os.open(sys.argv[1], 0)
os.read(other, 8)
fcntl.flock(other, fcntl.LOCK_SH)
os.close(other)
"""
    read_all = """
fd = os.open(sys.argv[1], 0)
fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
print(hashlib.sha256(b"".join(iter(lambda: os.read(fd, 100_000), b""))).hexdigest())
"""
    lock = lock if is_again else lock.replace("fcntl.flock(other, fcntl.LOCK_SH)", "")
    source.reset()
    said = session.python(lock + read_all, source.mountpoint / "101")
    assert said.strip() == digest(content(101, LARGE))
    wait_until(lambda: present(session) == 2, what="the copy")
    assert source.counts()["bytes_read"] <= 1.05 * LARGE


LOCK_AND_READ = """
import fcntl, hashlib, os, sys
fd = os.open(sys.argv[1], 0)
fcntl.flock(fd, fcntl.LOCK_SH)
print(hashlib.sha256(b"".join(iter(lambda: os.read(fd, 100_000), b""))).hexdigest())
"""


def waits_for_a_lock(process: subprocess.Popen[str]) -> bool:
    called = Path(f"/proc/{process.pid}/syscall").read_text().split()[0]
    return called == "73"  # flock, on x86-64


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of flock is x86-64's")
def test_what_a_writer_leaves_is_read_under_the_lock(session: Session, source: Directory) -> None:
    add_large(source, "101")
    entry = entry_of(session, source, "101")
    path = source.mountpoint / "101"
    with path.open("r+b") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        command = [sys.executable, "-c", LOCK_AND_READ, str(path)]
        with subprocess.Popen(command, env=session.env(), stdout=PIPE, text=True) as reader:
            wait_until(lambda: waits_for_a_lock(reader), what="a wait for the lock")
            session.connection.ask("warm", entries=[entry], ticket="test")
            wait_until(lambda: present(session) == 2, what="a copy of the locked file")
            new = content(102, LARGE)
            written.write(new)
            written.flush()
            fcntl.flock(written, fcntl.LOCK_UN)
            said, _ = reader.communicate(timeout=60)
    assert said.strip() == digest(new)


def test_a_lock_on_a_duplicate_recalls_the_descriptor(session: Session, source: Directory) -> None:
    """A file was handed over through one descriptor, and the program locks it through a duplicate
    of that descriptor. The daemon then closes the descriptor that it has received."""
    script = """
import fcntl, os, sys
for path in sys.argv[1:]:
    fd, other = os.open(path, 0), os.open(path, 0)
    again = os.dup(fd)
    assert len(os.read(fd, 1 << 20)) == 100_000
    fcntl.flock(again, fcntl.LOCK_EX)
    os.close(fd)
    os.close(again)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
"""
    session.python(script, *(source.mountpoint / str(seed) for seed in range(2, MANY + 1)))


def test_a_program_without_descriptors_left_reads_on(session: Session, source: Directory) -> None:
    script = """
import hashlib, os, resource, sys
for path in sys.argv[1:]:
    fd = os.open(path, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (fd + 1, 4096))
    print(hashlib.sha256(os.read(fd, 1 << 20)).hexdigest())
    assert os.read(fd, 1) == b""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    os.close(fd)
"""
    said = session.python(script, *(source.mountpoint / str(seed) for seed in (2, 3))).split()
    assert said == [digest(content(seed, SIZE)) for seed in (2, 3)]
    wait_until(lambda: present(session) == 3, what="copies that the daemon makes by itself")


def test_a_daemon_that_is_gone_or_stands_still_keeps_nobody(
    session: Session, source: Directory
) -> None:
    """Programs can still read while the daemon is stopped, even if the queues of its sockets for
    descriptors are full. They can also read after the daemon was killed."""
    seeds = range(2, MANY + 1)
    daemon = session.daemon
    assert daemon is not None
    daemon.send_signal(signal.SIGSTOP)
    try:
        process = psutil.Process(daemon.pid)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, what="the stop")
        read(session, source, "read", *seeds[:6])
        fill_queues(session)
        # These files were not handed over before, so the library now tries to hand them over.
        read(session, source, "read", *seeds[6:])
        read(session, source, "read", *seeds)
    finally:
        daemon.send_signal(signal.SIGCONT)
    session.kill()
    read(session, source, "read", *seeds)


def fill_queues(session: Session) -> None:
    """Sends messages to each socket for descriptors until the kernel accepts no more."""
    directory = os.open(session.paths.path, os.O_PATH)
    for path in session.paths.handovers:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as by:
            by.connect(f"/proc/self/fd/{directory}/{path.name}")
            by.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    by.send(b"x")
    os.close(directory)


def hand(session: Session, entry: int, fd: int) -> None:
    """Hands over a descriptor as the library does."""
    what = ffi.new("struct monarch_handover *", {"id": entry})
    before = ffi.offsetof("struct monarch_handover", "source")
    send(session, bytes(ffi.buffer(what))[:before], fd)


def send(session: Session, what: bytes, *fds: int) -> None:
    directory = os.open(session.paths.path, os.O_PATH)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as by:
        by.connect(f"/proc/self/fd/{directory}/{session.paths.handovers[0].name}")
        socket.send_fds(by, [what], list(fds))
    os.close(directory)


def entry_of(session: Session, source: Directory, name: str) -> int:
    paths = [[0, f"{source.name}/{name}"]]
    return int(session.connection.ask("look", paths=paths)["entries"][0])


def test_a_wrong_descriptor_is_not_believed(
    session: Session, source: Directory, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").write_bytes(bytes(SIZE))
    root = source.mountpoint
    # For each file, a function that opens a wrong descriptor, through which the daemon must not
    # read the file.
    fds: dict[int, Callable[[], int]] = {
        2: lambda: os.open(root / str(MANY), os.O_RDONLY),
        3: lambda: os.open(tmp_path / "elsewhere", os.O_RDONLY),
        4: lambda: os.pipe()[0],
        5: lambda: os.open(root / "5", os.O_RDWR),
        6: lambda: os.open(root / "6", os.O_PATH),
    }
    for seed, opened in fds.items():
        fd = opened()
        try:
            hand(session, entry_of(session, source, str(seed)), fd)
        finally:
            os.close(fd)
    wait_until(lambda: present(session) == 1 + len(fds), what="copies, from the files themselves")
    source.reset()
    read(session, source, "read", *fds)
    assert source.counts()["bytes_read"] == 0


def test_a_message_that_names_nothing_is_dropped(session: Session, source: Directory) -> None:
    fd = os.open(source.mountpoint / "2", os.O_RDONLY)
    for entry in (2**24, 2**25, 2**63, 2**64 - 1):
        hand(session, entry, fd)
    send(session, b"x", fd)
    send(session, b"x")
    send(session, b"")
    os.close(fd)
    read(session, source, "read", 3)
    wait_until(lambda: present(session) == 2, what="the copy")


def test_descriptors_are_closed_when_their_copies_are_made(
    session: Session, source: Directory
) -> None:
    read(session, source, "read", *range(2, MANY + 1))
    wait_until(lambda: present(session) == MANY, what="copies of all files")
    inside = str(source.mountpoint) + "/"
    pid = int(session.status()["pid"])
    wait_until(
        lambda: not [path for path in open_by(pid) if path.startswith(inside)],
        what="the daemon to have no file of the source open",
    )
