"""This user's processes, as /proc shows them, and their identities."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")
# Pause between two looks whether a process has ended [s].
LOOK_S = 0.01
# How long to wait for an ended process to be reaped. A parent that waits for it reaps it at once;
# other parents never do [s].
REAP_LIMIT_S = 0.5


def end(process: "subprocess.Popen[Any]", limit_s: float) -> None:
    """Ends a child and waits for its end: with SIGTERM, and after a while with SIGKILL."""
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def own_processes() -> Iterator[Path]:
    """The /proc directories of this user's processes, without this process's own."""
    me, uid = os.getpid(), os.geteuid()
    for process in PROC.iterdir():
        if process.name.isdigit() and int(process.name) != me:
            try:
                if process.stat().st_uid == uid:
                    yield process
            except OSError:
                continue


def mapping(beginning: str) -> Iterator[Path]:
    """Those of these processes that have a file mapped whose path has this beginning."""
    for process in own_processes():
        with suppress(OSError):  # the process has ended, or is closed to us
            if os.fsencode(beginning) in (process / "maps").read_bytes():
                yield process


def began(process: Path) -> int | None:
    """When the process was started, which tells it from a later one with its number; None once it
    has ended, whether it was reaped or not."""
    # The kernel may cut a process's name in the middle of a character, hence errors="replace".
    try:
        state, *fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, whoever's child it is. A later process with the same number is another identity.

    began : as the function `began` gives it; 0 for a process that has ended
    """

    pid: int
    began: int

    @classmethod
    def of(cls, pid: int) -> "Identity":
        return cls(pid, began(PROC / str(pid)) or 0)

    @classmethod
    def parsed(cls, text: str) -> "Identity | None":
        """Parses what `str` writes; None for any other text."""
        words = text.split()
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            return None
        return cls(int(words[0]), int(words[1]))

    def __str__(self) -> str:
        return f"{self.pid} {self.began}"

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, even if its parent never reaps it, like the first process of many
        containers."""
        return began(PROC / str(self.pid)) != self.began

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if the process still runs."""
        if not self.has_ended:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def wait(self, limit_s: float) -> bool:
        """Waits until it has ended, and until it is reaped if its parent does that. False if it has
        not ended within the limit [s]."""
        limit = time.monotonic() + limit_s
        while not self.has_ended:
            if time.monotonic() >= limit:
                return False
            time.sleep(LOOK_S)
        limit = time.monotonic() + REAP_LIMIT_S
        while (PROC / str(self.pid)).exists() and time.monotonic() < limit:
            time.sleep(LOOK_S)
        return True
