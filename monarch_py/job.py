"""`monarch run`: a command with the library before it, and a daemon for as long as it runs."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch_py.client import Client
from monarch_py.daemon.lifecycle import spawn
from monarch_py.errors import MonarchError, SessionError
from monarch_py.native import LIBRARY
from monarch_py.processes import Identity
from monarch_py.session import SessionDir
from monarch_py.signals import handling

__all__ = ["Outcome", "job_environment", "keep_daemon", "run_job"]

# The shell's statuses for a command that is not there or cannot be run.
NOT_FOUND, NOT_RUNNABLE = 127, 126
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# A daemon's end: many copies go, and a tier of a file system is written out. And that of one which
# does not answer [s].
END_LIMIT_S, SILENT_LIMIT_S = 600.0, 60.0
KILL_LIMIT_S = 10.0


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

    with handling(FORWARDED, forward), handling([signal.SIGINT], lambda *_: None):
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


def _serving(client: Client) -> Identity | None:
    """The daemon that answers, as it knows itself."""
    try:
        found = client.ask("where")
    except SessionError:
        return None
    return Identity(int(found["pid"]), int(found["began"]))


def _end_daemon(client: Client, daemon: Identity) -> None:
    """Ends it: asked, or told if it does not answer; killed in the end."""
    is_asked = False
    if _serving(client) == daemon:
        with contextlib.suppress(SessionError):
            client.ask("stop")
            is_asked = True
    if not is_asked:
        daemon.send(signal.SIGTERM)
    if not daemon.wait(END_LIMIT_S if is_asked else SILENT_LIMIT_S):
        daemon.send(signal.SIGKILL)
        daemon.wait(KILL_LIMIT_S)


class _Share:
    """Of a daemon that runs start and share: the last of them ends it.

    Each run holds a shared lock on `users`, whose content tells the daemon that is theirs to end;
    `turn` is held by whoever starts or ends one. A daemon of `monarch start` is nobody's to end.
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

    def _note(self, text: str) -> None:
        os.ftruncate(self._users, 0)
        os.pwrite(self._users, text.encode(), 0)

    def _noted(self) -> Identity | None:
        return Identity.parsed(os.pread(self._users, 100, 0).decode(errors="replace"))

    def begin(self) -> None:
        """A daemon serves, and does so until `end`; MonarchError when none can be started."""
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            serving = _serving(self.client)
            if serving is None:
                self._child = spawn(self.config_file, detach=False)
                self._note(str(Identity.of(self._child.pid)))
            else:
                if self._noted() != serving:  # but one that has died since
                    self._note("")
                with contextlib.suppress(SessionError):
                    self.client.ask("job")
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
            daemon = self._noted()
            self._note("")
            if daemon is not None:
                _end_daemon(self.client, daemon)
        finally:
            self._close()
        if self._child is not None:
            self._child.returncode = 0  # waited for above, or somebody else's by now

    def keep(self) -> "subprocess.Popen[bytes] | None":
        """As `keep_daemon`, once."""
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            child = None if self.client.runs() else spawn(self.config_file, detach=True)
            self._note("")
            return child
        finally:
            self._close()

    def _close(self) -> None:
        os.close(self._users)
        os.close(self._turn)


def keep_daemon(config_file: Path) -> "subprocess.Popen[bytes] | None":
    """A daemon that stays, whatever runs begin and end: a new one, or None where one serves
    already. SessionError when it does not come up."""
    return _Share(config_file).keep()


def run_job(config_file: Path, command: Sequence[str]) -> Outcome:
    """Runs the command under the library. A daemon that serves the configuration is used and left
    running; otherwise one is started, and ended with the last run that uses it. If none can be
    started the command runs all the same, on the source. A signal before the command runs ends us
    (SystemExit), and the daemon that we started."""
    with handling([signal.SIGTERM, signal.SIGHUP], _end):
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
        with handling([*FORWARDED, signal.SIGINT], lambda *_: None):
            share.end()
    return Outcome(status, report, problem)
