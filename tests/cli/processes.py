"""Commands that run beside a test, and commands on a terminal."""

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
    """A command that runs, with the files that take its standard output and error."""

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
    """Has a command run meanwhile, forked from a process that has loaded its modules. It is killed
    at the block's end."""
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
    """Returns a command's status and what it writes on a terminal.

    columns : the terminal's width, whose height is 30 lines
    is_for_errors : whether the standard error alone is the terminal
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
        with suppress(OSError):  # EIO once nobody has the other end
            while piece := screen.read(65536):
                said += piece
        return process.wait(60), said.decode()
