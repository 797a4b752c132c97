"""The processes of this user, as /proc shows them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Identity", "began", "own_processes"]

PROC = Path("/proc")
# It is looked this often whether a process has ended [s].
LOOK_S = 0.01
# A parent that waits for it does so at once; others never do [s].
REAP_LIMIT_S = 0.5


def own_processes() -> Iterator[Path]:
    """The directories of all but this one."""
    me, uid = os.getpid(), os.geteuid()
    for process in PROC.iterdir():
        if process.name.isdigit() and int(process.name) != me:
            try:
                if process.stat().st_uid == uid:
                    yield process
            except OSError:
                continue


def began(process: Path) -> int | None:
    """When it was started, by which it is told from a later one of its number; None once it has
    ended, whether it was waited for or not. The kernel cuts names within a character."""
    try:
        state, *fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, whoever's child it is; a later one of its number is another one.

    began : as the function of this name has it, 0 for one that has ended
    """

    pid: int
    began: int

    @classmethod
    def of(cls, pid: int) -> Identity:
        return cls(pid, began(PROC / str(pid)) or 0)

    @classmethod
    def parsed(cls, text: str) -> Identity | None:
        """As `str` writes it; None for anything else."""
        words = text.split()
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            return None
        return cls(int(words[0]), int(words[1]))

    def __str__(self) -> str:
        return f"{self.pid} {self.began}"

    @property
    def has_ended(self) -> bool:
        """Also where its parent does not wait for it, as the first process of many containers."""
        return began(PROC / str(self.pid)) != self.began

    def send(self, number: signal.Signals) -> None:
        """A signal, if it still runs."""
        if not self.has_ended:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def wait(self, limit_s: float) -> bool:
        """Until it has ended, and its number is free where its parent waits for it; False if it has
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
