"""`monarch run`: a command with the library before it, and a daemon for as long as it runs."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from monarch_py.client import Client
from monarch_py.daemon.lifecycle import spawn
from monarch_py.errors import MonarchError, SessionError
from monarch_py.native import LIBRARY
from monarch_py.session import SessionDir

__all__ = ["Outcome", "job_environment", "keep_daemon", "run_job"]

# The shell's statuses for a command that is not there or cannot be run.
NOT_FOUND, NOT_RUNNABLE = 127, 126
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """exit_status : of the command, 128 + n for signal n;  report : the daemon's last status, None
    without a daemon;  problem : why there was none."""

    exit_status: int
    report: dict[str, Any] | None
    problem: str


def job_environment(config_file: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The variables that put a program under the library; other preloads stay, behind ours."""
    base = {name: value for name, value in base.items() if name != "MONARCH_LEFT"}
    others = [p for p in base.get("LD_PRELOAD", "").split(":") if p and p != str(LIBRARY)]
    return {
        **base,
        "LD_PRELOAD": ":".join([str(LIBRARY), *others]),
        "MONARCH_CONFIG": str(config_file.resolve()),
    }


@contextlib.contextmanager
def _on_signals(numbers: Sequence[signal.Signals], handler: Any) -> Iterator[None]:
    old = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """What a batch system sends us goes on to the command. The terminal's Ctrl-C reaches it by
    itself; we wait for what it makes of that."""
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _frame: object) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    with _on_signals(FORWARDED, forward), _on_signals([signal.SIGINT], lambda *_: None):
        try:
            child = subprocess.Popen(command, env=environment)
        except FileNotFoundError:
            sys.stderr.write(f"monarch: {command[0]}: command not found\n")
            return NOT_FOUND
        except OSError as error:
            sys.stderr.write(f"monarch: {command[0]}: {error.strerror}\n")
            return NOT_RUNNABLE
        for number in early:
            child.send_signal(number)
        status = child.wait()
    return status if status >= 0 else 128 - status


def _end_daemon(client: Client, pid: int) -> None:
    """Ends a daemon: asked, then told, then killed."""
    with contextlib.suppress(SessionError):
        client.ask("stop")
    with contextlib.suppress(psutil.NoSuchProcess):
        daemon = psutil.Process(pid)
        try:
            daemon.wait(timeout=60)
        except psutil.TimeoutExpired:
            daemon.kill()
            daemon.wait()


class _Share:
    """Of a daemon that runs start and share: the last of them ends it.

    Each run holds a shared lock on `users`, whose content is the number of the daemon's process;
    `turn` is held by whoever starts or ends it. A daemon of `monarch start` is nobody's to end.
    """

    def __init__(self, config_file: Path) -> None:
        self.config_file = config_file
        self.session = SessionDir.of(config_file)
        self.client = Client(self.session)
        self.session.make()
        self._users = self._open("users")
        self._turn = self._open("turn")
        self._child: subprocess.Popen[bytes] | None = None

    def _open(self, name: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self.session.path / name, flags, 0o600)

    def begin(self) -> None:
        """A daemon serves, and does so until `end`; MonarchError when none can be started."""
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            if self.client.runs():
                with contextlib.suppress(SessionError):
                    self.client.ask("job")
            else:
                self._child = spawn(self.config_file, detach=False)
                os.ftruncate(self._users, 0)
                os.pwrite(self._users, str(self._child.pid).encode(), 0)
            fcntl.flock(self._users, fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def end(self) -> None:
        fcntl.flock(self._users, fcntl.LOCK_UN)
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # others go on with it
        else:
            pid = os.pread(self._users, 20, 0).decode()
            os.ftruncate(self._users, 0)
            if pid:
                _end_daemon(self.client, int(pid))
        finally:
            os.close(self._users)
            os.close(self._turn)
        if self._child is not None:
            self._child.returncode = 0  # waited for above, or somebody else's by now


def keep_daemon(session: SessionDir) -> None:
    """`monarch start` on a daemon that a run has started: it stays when the run ends."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(session.path / "users", 0)


def run_job(config_file: Path, command: Sequence[str]) -> Outcome:
    """Runs the command under the library. A daemon that serves the configuration is used and left
    running; otherwise one is started, and ended with the last run that uses it. If none can be
    started the command runs all the same, on the source. A signal before the command runs ends us
    (SystemExit), and the daemon that we started."""
    with _on_signals([signal.SIGTERM, signal.SIGHUP], _end):
        return _run_job(config_file, command)


def _run_job(config_file: Path, command: Sequence[str]) -> Outcome:
    share, problem, report = _Share(config_file), "", None
    try:
        try:
            share.begin()
        except MonarchError as error:
            problem = str(error)
            sys.stderr.write(f"monarch: {problem}; the command reads from the source\n")
        environment = dict(os.environ) if problem else job_environment(config_file, os.environ)
        status = _run(command, environment)
        with contextlib.suppress(SessionError):
            report = share.client.ask("status")
    finally:
        with _on_signals([*FORWARDED, signal.SIGINT], lambda *_: None):
            share.end()
    return Outcome(status, report, problem)
