"""If the limit on the address space (`ulimit -v`) is too low for a daemon, no daemon starts, and
each command reports the limit. If threads of a running daemon fail, `status` reports the failure.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.session import MIB, Session, wait_until

from monarch_py.commands.doctor import examine
from monarch_py.daemon.control import Control
from monarch_py.daemon.starting import LEAST_ADDRESSES, refuse_few_addresses
from monarch_py.ipc.connection import troubles
from monarch_py.ipc.session import hold
from monarch_py.storage import watch
from monarch_py.storage.tiers import Tier
from monarch_py.util import threads

NEEDED = "but a daemon needs 512 MiB; raise the limit with `ulimit -v 524288` or more"


def limited(session: Session, limit: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["prlimit", f"--as={limit}", *session.command(*words)],
        env=session.env(preload=False),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("limit", [60 * MIB, 200 * MIB])
@pytest.mark.parametrize("command", ["start", "serve", "run"])
def test_no_daemon_starts_with_too_few_addresses(
    session_factory: Callable[..., Session], tree: Path, command: str, limit: int
) -> None:
    session = session_factory(tree)
    done = limited(session, limit, command, *(["true"] if command == "run" else []))
    assert done.returncode == (0 if command == "run" else 3)
    begins = (
        f"monarch: the daemon cannot start: the address space is limited to {limit >> 20} MiB, "
    )
    assert done.stderr.startswith(begins + NEEDED)
    assert not session.paths.lock.exists()
    assert not session.paths.socket.exists()


def test_a_daemon_with_just_enough_addresses_does_its_work(
    session_factory: Callable[..., Session], tree: Path
) -> None:
    session = session_factory(tree)
    try:
        done = limited(session, LEAST_ADDRESSES, "start")
        assert (done.returncode, done.stderr) == (0, "")
        assert session.monarch("warm").returncode == 0
        assert session.status()["thread_failures"] == []
    finally:
        session.monarch("stop")


def test_the_daemon_raises_a_soft_limit(
    session_factory: Callable[..., Session], tree: Path
) -> None:
    session = session_factory(tree)
    soft = f"{60 * MIB}:{4096 * MIB}"
    try:
        done = limited(session, soft, "start")  # type: ignore[arg-type]
        assert (done.returncode, done.stderr) == (0, "")
        limits = resource.prlimit(session.status()["pid"], resource.RLIMIT_AS)
        assert limits == (4096 * MIB, 4096 * MIB)
    finally:
        session.monarch("stop")


def test_doctor_says_it(
    session_factory: Callable[..., Session], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {resource.RLIMIT_AS: 200 * MIB, resource.RLIMIT_NOFILE: 4096}
    monkeypatch.setattr(
        resource, "getrlimit", lambda which: (limits.get(which, resource.RLIM_INFINITY),) * 2
    )
    (found,) = [each for each in examine(session_factory(tree).config) if each.what == "limits"]
    assert (found.level, found.found) == ("problem", "address space limited to 200 MiB")
    assert found.hint == "run ulimit -v unlimited; a daemon needs 512 MiB"
    limits[resource.RLIMIT_AS] = resource.RLIM_INFINITY
    refuse_few_addresses()


def test_a_daemon_that_takes_no_command_is_not_called_dead(
    session_factory: Callable[..., Session], tree: Path
) -> None:
    """The daemon's socket refuses connections, as it does when a daemon ends, but the daemon's
    process still holds the lock. `status` must say that the daemon runs."""
    session = session_factory(tree)
    session.paths.make()
    session.paths.control.touch()
    fd = hold(session.paths.lock, session.config)
    try:
        done = session.monarch("status")
    finally:
        os.close(fd)
    assert done.returncode == 3
    begins = f"monarch: the daemon (process {os.getpid()}) runs but accepts no commands: "
    assert done.stderr.startswith(begins)


# --- threads that fail ---------------------------------------------------------------------------


@pytest.fixture
def _no_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_failures", {})
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


@pytest.mark.usefixtures("_no_failures")
def test_a_thread_that_fails_is_logged_once_and_told(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise MemoryError

    threads.note_all_failures()
    for _ in range(2):
        thread = threading.Thread(target=fail, name="scratch")
        thread.start()
        thread.join()
    assert threads.failures() == ["scratch (MemoryError)"]
    (logged,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert logged.getMessage() == "the thread scratch has failed"
    assert logged.exc_info
    report: dict[str, Any] = {"tiers": [], "catalog_full": False}
    assert troubles({**report, "thread_failures": threads.failures()}) == [
        "threads of the daemon have failed: scratch (MemoryError); see `monarch logs`, then run"
        " `monarch stop` and `monarch start`"
    ]
    assert troubles({**report, "thread_failures": []}) == []


@pytest.mark.usefixtures("_no_failures")
def test_tiers_are_watched_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([False, True])

    def look(_: Tier) -> str:
        if not next(looks):
            raise MemoryError
        return "it was replaced"

    monkeypatch.setattr(watch, "_why_not_trusted", look)
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    found: list[tuple[int, str]] = []
    tier: Any = object()
    watcher = watch.TierWatch([tier], lambda number, why: found.append((number, why)))
    wait_until(lambda: found, what="the second check")
    watcher.close()
    assert found == [(0, "it was replaced")]
    assert threads.failures() == ["tiers (MemoryError)"]


def test_a_command_is_answered_although_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    control = Control.__new__(Control)
    control._attended = set()
    monkeypatch.setattr(control, "_do", lambda request: {"did": request["do"]})
    monkeypatch.setattr(threading.Thread, "start", refused)
    ours, daemons = socket.socketpair()
    with ours:
        ours.sendall(b'{"do": "status"}\n')
        control._take_in(daemons)
        assert ours.recv(100) == b'{"did": "status"}\n'
    assert not control._attended
