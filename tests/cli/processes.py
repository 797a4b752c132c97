"""Runs commands in the background of a test, and commands on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import TextIO

from support.forking import Process, fork_monarch
from support.session import Session


@dataclass(frozen=True)
class Running:
    """A running command, and the files that receive its standard output and standard error."""

    process: Process
    files: tuple[TextIO, TextIO]

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Waits for the command's end. Returns what it has written."""
        self.process.wait(timeout)
        out, err = self.files
        for file in self.files:
            file.seek(0)
        return out.read(), err.read()


@contextmanager
def running(session: Session, *words: str) -> Iterator[Running]:
    """Runs a command for the duration of a `with` statement, then kills the command. If possible,
    the command is forked from a process that has already loaded its modules."""
    command, environment = session.command(*words), session.env(preload=False)
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        forked = fork_monarch(command[3:], environment, out.fileno(), err.fileno())
        process = forked or subprocess.Popen(command, env=environment, stdout=out, stderr=err)
        try:
            yield Running(process, (out, err))
        finally:
            process.kill()
            process.wait()


def on_a_terminal(
    session: Session,
    *words: str,
    columns: int,
    environment: Mapping[str, str],
    is_for_errors: bool = False,
) -> tuple[int, str]:
    """Runs a command on a terminal of 30 lines. Returns its exit status and what it writes to the
    terminal.

    columns : the terminal's width [characters]
    is_for_errors : whether only the standard error is the terminal; the standard output is then
        discarded
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 30, columns, 0, 0))
    with (
        os.fdopen(ours, "rb", buffering=0) as screen,
        subprocess.Popen(
            session.command(*words),
            env=session.env(preload=False, **environment),
            stdout=subprocess.DEVNULL if is_for_errors else theirs,
            stderr=theirs,
        ) as process,
    ):
        os.close(theirs)
        said = b""
        with suppress(OSError):  # read fails with EIO once the command has ended
            while piece := screen.read(65536):
                said += piece
        return process.wait(60), said.decode()
