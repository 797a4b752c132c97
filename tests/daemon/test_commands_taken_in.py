"""The daemon receives commands even in difficult situations: many commands arrive at the same time,
the daemon has no free descriptor for a while, or a file system that is not one of its sources
hangs."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread

import psutil
import pytest
from support.session import Session, suspended, wait_until

from monarch_py.config.load import load_config
from monarch_py.daemon.control import Control
from monarch_py.daemon.server import Daemon
from monarch_py.demo.slowsource import SlowSource
from monarch_py.errors import NoDaemonError

# A client must learn within this time [s] that the daemon has ended.
ENDS_S = 5.0
HOLDER = """
import sys
files = open(sys.argv[1], "r+b"), open(sys.argv[2], "rb")
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def session(session_factory: Callable[..., Session], tree: Path) -> Session:
    return session_factory(tree).start()


@pytest.fixture
def daemon(session: Session) -> psutil.Process:
    assert session.daemon is not None
    return psutil.Process(session.daemon.pid)


def connected(session: Session, most: int) -> Iterator[socket.socket]:
    """Yields connections that send nothing. Ends after `most` connections, or when the daemon's
    listen queue is full."""
    # The full path of the socket may be too long for connect(2).
    directory = os.open(session.paths.path, os.O_RDONLY)
    try:
        for _ in range(most):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                connection.connect(f"/proc/self/fd/{directory}/socket")
            except BlockingIOError:
                connection.close()
                return
            yield connection
    finally:
        os.close(directory)


def test_a_command_waits_while_the_kernel_holds_no_more(
    session: Session, daemon: psutil.Process, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        with ExitStack() as stack, ThreadPoolExecutor(1) as executor:
            daemon.suspend()
            try:
                held = [stack.enter_context(each) for each in connected(session, 8000)]
                asked = executor.submit(session.connection.ask, "where")
                assert 1000 < len(held) < 8000
            finally:
                daemon.resume()
            assert asked.result(timeout=60)["pid"] == daemon.pid
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_daemon_without_descriptors_is_not_deaf_for_good(
    session: Session, daemon: psutil.Process
) -> None:
    before = daemon.rlimit(psutil.RLIMIT_NOFILE)
    daemon.rlimit(psutil.RLIMIT_NOFILE, (3, before[1]))
    try:
        (connection,) = connected(session, 1)
        with connection:
            said = session.log.read_text
            wait_until(
                lambda: "commands must wait: the daemon cannot accept connections now" in said(),
                what="the daemon's warning",
            )
    finally:
        daemon.rlimit(psutil.RLIMIT_NOFILE, before)
    assert session.connection.ask("where")["pid"] == daemon.pid


def test_a_look_at_open_files_does_not_wait_for_a_file_system_that_hangs(
    session_factory: Callable[..., Session],
    tree: Path,
    slow_factory: Callable[..., SlowSource],
) -> None:
    """A program has a file open for writing in a file system that has nothing to do with the
    sources, and that answers no more. A daemon starts and lists the open files all the same."""
    other = slow_factory(attr_timeout=0)
    (other.backing / "held").write_bytes(b"x")
    session = session_factory(tree)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(other.mountpoint / "held"), str(tree / "a/f1")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"\n"
        assert other.process is not None
        with suspended(other.process.pid):
            session.start().wait_scanned()
            found = session.connection.ask("open")["open"]
            assert (holder.pid, str(tree / "a/f1")) in [(row["pid"], row["path"]) for row in found]
            session.stop()
        holder.stdin.close()


def test_nobody_waits_for_a_daemon_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, session_factory: Callable[..., Session], tree: Path
) -> None:
    """Clients see the end of a daemon at once, although the daemon's process may live on while one
    of its threads hangs in a source's file system."""
    session = session_factory(tree)
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    session.paths.make()
    daemon = Daemon(load_config(session.config), session.paths)
    control = Control(daemon, session.paths)
    control.begin()
    thread = Thread(target=daemon.run)
    thread.start()
    with ExitStack() as stack:
        clients = [stack.enter_context(client) for client in connected(session, 3)]
        daemon.stop_now()
        thread.join()
        control.end()
        for client in clients:
            client.settimeout(ENDS_S)
            with suppress(ConnectionResetError):  # raised if the daemon did not accept the client
                assert client.recv(1) == b""
        began_s = time.monotonic()
        with pytest.raises(NoDaemonError):
            session.connection.ask("where")
        assert time.monotonic() - began_s < ENDS_S
