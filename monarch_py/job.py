"""`monarch run`: a command with the library before it, and a daemon for as long as it runs."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch_py.client import Client
from monarch_py.daemon.lifecycle import spawn
from monarch_py.errors import MonarchError, SessionError
from monarch_py.native import LIBRARY
from monarch_py.session import SessionDir

__all__ = ["Outcome", "job_environment", "run_job", "stop_daemon"]

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


def stop_daemon(client: Client, process: "subprocess.Popen[bytes]") -> None:
    """Ends a daemon that we started: asked, then told, then killed."""
    with contextlib.suppress(SessionError):
        client.ask("stop")
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_job(config_file: Path, command: Sequence[str]) -> Outcome:
    """Runs the command under the library. A daemon that serves the configuration is used and left
    running; otherwise one is started and ended with the command. If none can be started the command
    runs all the same, on the source. A signal before the command runs ends us (SystemExit), and the
    daemon that we started."""
    with _on_signals([signal.SIGTERM, signal.SIGHUP], _end):
        return _run_job(config_file, command)


def _run_job(config_file: Path, command: Sequence[str]) -> Outcome:
    client = Client(SessionDir.of(config_file))
    process, problem = None, ""
    if not client.runs():
        try:
            process = spawn(config_file, detach=False)
        except MonarchError as error:
            problem = str(error)
            sys.stderr.write(f"monarch: {problem}; the command reads from the source\n")
    environment = dict(os.environ) if problem else job_environment(config_file, os.environ)
    report = None
    try:
        status = _run(command, environment)
        with contextlib.suppress(SessionError):
            report = client.ask("status")
    finally:
        if process is not None:
            with _on_signals([*FORWARDED, signal.SIGINT], lambda *_: None):
                stop_daemon(client, process)
    return Outcome(status, report, problem)
