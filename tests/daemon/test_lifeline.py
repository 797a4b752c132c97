"""A daemon ends on a signal. A daemon that shares files with other nodes also ends if the process
that started it dies before the daemons of all nodes have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.draws import sized
from support.session import Session, wait_until

from monarch_py.daemon.starting import STAY, StartupInfo, spawn
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.peers.handshake import new_secret
from monarch_py.peers.membership import Cluster, Member
from monarch_py.peers.server import listen
from monarch_py.storage.tiers import tier_root

Spawned = tuple[subprocess.Popen[bytes], int, DaemonConnection]


@pytest.fixture
def spawned(
    session_factory: Callable[..., Session], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Spawned]:
    """A daemon, the writing end of the daemon's lifeline, and a connection to the daemon. The
    lifeline is a pipe: if its writing end is closed, the daemon ends."""
    session = session_factory(tree)
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    reading, writing = os.pipe2(os.O_CLOEXEC)
    with listen("127.0.0.1") as listener:
        host, port = listener.getsockname()
        member = Member("here", host, port, (1,))
        told = StartupInfo(Cluster(0, (member,), new_secret()), listener.fileno(), lifeline=reading)
        process = spawn(session.config, detach=False, startup=told)
    os.close(reading)
    try:
        yield process, writing, session.connection
    finally:
        process.terminate()
        process.wait(30)


def test_it_ends_with_its_lifeline(spawned: Spawned) -> None:
    process, writing, client = spawned
    assert client.runs()
    os.close(writing)
    assert process.wait(30) == 0


def test_it_stays_when_it_is_told_to(spawned: Spawned) -> None:
    process, writing, client = spawned
    os.write(writing, STAY)
    os.close(writing)
    before = client.ask("status")["uptime_seconds"]
    wait_until(lambda: client.ask("status")["uptime_seconds"] > before + 0.5)
    assert process.poll() is None
    assert client.ask("where")["cluster"]


def test_a_daemon_alone_has_none(session_factory: Callable[..., Session], tree: Path) -> None:
    session = session_factory(tree).start()
    assert session.connection.ask("where")["cluster"] == ""


def test_signals_that_come_while_one_is_handled(
    session_factory: Callable[..., Session], tree: Path
) -> None:
    """The daemon stops cleanly even if it gets several signals. This may happen when a launcher
    ends a step: it signals each process, and some processes pass the signal on to the daemon."""
    session = session_factory(tree)
    for _ in range(sized(2, 3)):
        session.start()
        assert session.daemon is not None
        limit = time.monotonic() + 30
        while session.daemon.poll() is None and time.monotonic() < limit:
            session.daemon.send_signal(signal.SIGTERM)
            session.daemon.send_signal(signal.SIGINT)
            time.sleep(0.0005)  # without a pause, the daemon would get too little CPU time to stop
        assert session.daemon.poll() == 0


def test_what_a_job_is_signalled_is_not_for_its_daemon(
    session_factory: Callable[..., Session], tree: Path
) -> None:
    """Signals that are meant for the job do not end the daemon. For example, the user may name a
    signal with the option --signal of Slurm, and Slurm then sends this signal to all steps."""
    session = session_factory(tree).start()
    assert session.daemon is not None
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        session.daemon.send_signal(number)
        assert session.connection.ask("where")["pid"] == session.daemon.pid


def test_a_hangup_ends_it_well(session_factory: Callable[..., Session], tree: Path) -> None:
    session = session_factory(tree).start()
    assert session.daemon is not None
    session.daemon.send_signal(signal.SIGHUP)
    assert session.daemon.wait(30) == 0
    assert not session.paths.control.exists()
    assert not tier_root(session.tiers[0]).exists()


def test_the_process_ends_whatever_its_threads_do() -> None:
    script = (
        "import time; from concurrent.futures import ThreadPoolExecutor;"
        " from monarch_py.daemon.lifecycle import end_process;"
        " ThreadPoolExecutor(1).submit(time.sleep, 1000); print('said'); end_process()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "said\n", "")
