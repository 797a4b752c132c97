"""A daemon whose `monarch run` was killed still serves the remaining programs, and then ends on its
own.

Without --long, the tests shorten the time after which an unused daemon ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from support.draws import sized
from support.files import Files
from support.impatient import impatient
from support.session import Session, wait_until

from monarch_py.daemon.orphan import LOOK_S, UNUSED_S
from monarch_py.storage.tiers import tier_root

# A program that runs with the library, in a process session of its own (setsid). It reads a file of
# the source, and then runs until its input ends.
READER = """
import os, sys
os.setsid()
open(sys.argv[1], "rb").read()
os.write(1, b"here\\n")
os.read(0, 1)
"""


def unused_s() -> float:
    """Returns how long an unused daemon runs before it ends [s]."""
    return sized(1.5, UNUSED_S)


def run_of(session: Session, *command: str) -> list[str]:
    orphan = "monarch_py.daemon.orphan"
    limits = {f"{orphan}.UNUSED_S": unused_s(), f"{orphan}.LOOK_S": sized(0.2, LOOK_S)}
    return impatient(session, limits, "run", "-q", "--", *command)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(5, 3000)


@contextmanager
def killed(session: Session, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts `monarch run` with a command, and kills `monarch run` when the command has printed
    "here". The command goes on, because its standard input stays open until the end of the block.
    """
    with subprocess.Popen(
        run_of(session, *command),
        env=session.env(preload=False),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as run:
        try:
            assert run.stdout is not None and run.stdin is not None
            assert run.stdout.readline() == b"here\n"
            run.kill()
            run.wait()
            yield run
            run.stdin.close()
        finally:
            run.kill()


def serves(session: Session) -> bool:
    return session.connection.runs()


def is_gone(session: Session) -> bool:
    """Returns whether the daemon has removed its copies and its segments."""
    return not (tier_root(session.tiers[0]).exists() or session.paths.control.exists())


def test_it_ends_when_nobody_is_left(session_factory: Callable[..., Session], files: Files) -> None:
    plain, left, taken, shared = (session_factory(files.root) for _ in range(4))
    reader = (sys.executable, "-I", "-S", "-c", READER, str(files.path("f00001")))
    # The command ends when its `monarch run` ends, but the reader that the command started goes on.
    script = 'exec 3<&0; "$@" <&3 & while kill -0 $PPID 2>/dev/null; do sleep 0.1; done'
    with ExitStack() as stack:
        # Neither the shell nor cat opens a file of the source.
        commands = {
            each: stack.enter_context(killed(each, "sh", "-c", "echo here; exec cat"))
            for each in (plain, taken, shared)
        }
        commands[left] = stack.enter_context(killed(left, "sh", "-c", script, "sh", *reader))
        assert taken.monarch("start").stdout.startswith("a daemon serves this configuration")
        other = subprocess.Popen(
            run_of(shared, "cat"),
            env=shared.env(preload=False),
            stdin=subprocess.PIPE,
        )
        stack.callback(other.wait, 60)
        stack.callback(other.communicate)
        time.sleep(1.4 * unused_s())  # long enough for an unused daemon to end
        assert [serves(each) for each in (plain, left, taken, shared)] == [True] * 4
        for command in commands.values():
            assert command.stdin is not None
            command.stdin.close()
        for session in (plain, left):
            wait_until(partial(is_gone, session), timeout=20, what="the daemon's end")
        assert serves(taken) and serves(shared)
    wait_until(lambda: not serves(shared), what="the second daemon's end")
    assert taken.monarch("stop").returncode == 0


def test_the_next_run_is_served(session_factory: Callable[..., Session], files: Files) -> None:
    """If `monarch run` is killed, the daemon still serves the command of this run. The same daemon
    also serves the next `monarch run`."""
    session = session_factory(files.root)
    with killed(session, "sh", "-c", "echo here; exec cat"):
        pid = session.status()["pid"]
        done = session.monarch("run", "-q", "--", "sha256sum", str(files.path("f00000")))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(files.digests["f00000"])
        assert session.status()["pid"] == pid
    wait_until(partial(is_gone, session), timeout=20, what="the daemon's end")


def test_a_run_that_is_killed_while_it_starts_one(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root)
    with subprocess.Popen(run_of(session, "sleep", "60"), env=session.env(preload=False)) as run:
        users = session.paths.path / "users"
        wait_until(lambda: users.exists() and users.read_text(), what="the daemon's first steps")
        run.kill()
    pid = int(users.read_text().split()[0])
    try:
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the daemon's end")
    finally:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)
