"""Locks on files whose descriptors programs hand over: a lock never lasts longer than without the
library."""

from __future__ import annotations

import fcntl
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import pytest
from handovers.ground import (
    LARGE,
    MANY,
    SIZE,
    Directory,
    Factory,
    add_large,
    entry_of,
    present,
    read,
    reading,
)
from support.epoch import content, make_files
from support.files import digest
from support.session import Session, wait_until

from monarch_py.demo.slowsource import SlowSource


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
    over. It does so before the copy is finished, because the lock must not wait for the copy. In
    this test, the copy takes long, because the daemon must read the whole file from the source
    again."""
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
