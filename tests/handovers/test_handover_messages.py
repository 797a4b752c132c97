"""Messages that hand over descriptors. The daemon does not trust a wrong message, and no program
waits if a message cannot be sent."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
from handovers.ground import (
    MANY,
    SIZE,
    UNMET,
    Directory,
    Factory,
    entry_of,
    present,
    read,
)
from support.epoch import content
from support.files import digest
from support.session import Session, wait_until

from monarch_py.demo.slowsource import SlowSource
from monarch_py.native import ffi


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
    """Programs can still read while the daemon is suspended, even if the queues of its sockets for
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
