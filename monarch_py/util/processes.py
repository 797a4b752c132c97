"""Finds this user's processes in /proc, identifies them, and ends them."""

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
# The pause between two checks of whether a process has ended [s].
LOOK_S = 0.01
# How long to wait until an ended process is reaped [s]. A parent that waits for its children reaps
# the process at once; any other parent may never reap it.
REAP_LIMIT_S = 0.5


def boot_id() -> str:
    """Returns the kernel's identifier of this boot; '' if the kernel does not provide it."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def end(process: "subprocess.Popen[Any]", limit_s: float) -> None:
    """Ends a child process with SIGTERM, and waits until it has ended. If it has not ended after
    `limit_s`, ends it with SIGKILL."""
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def own_processes() -> Iterator[Path]:
    """Yields the /proc directories of this user's processes, except this process."""
    me, uid = os.getpid(), os.geteuid()
    for process in PROC.iterdir():
        if process.name.isdigit() and int(process.name) != me:
            try:
                if process.stat().st_uid == uid:
                    yield process
            except OSError:
                continue


def mapping(beginning: str) -> Iterator[Path]:
    """Yields this user's other processes that have mapped a file whose path starts with
    `beginning`. (A process is also yielded if `beginning` occurs elsewhere in the path.)"""
    for process in own_processes():
        with suppress(OSError):  # the process has ended, or this process may not examine it
            if os.fsencode(beginning) in (process / "maps").read_bytes():
                yield process


def began(process: Path) -> int | None:
    """Returns when the process was started [clock ticks since boot]. This distinguishes it from a
    later process with the same PID. Returns None if the process has ended, even if it was not
    reaped yet."""
    # errors="replace", because the kernel may truncate a process's name in the middle of a
    # character.
    try:
        state, *fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a process, which need not be a child of this process. A later process with
    the same PID has another identity.

    began : the result of the function `began`; 0 if the process had already ended when `began` was
        called
    """

    pid: int
    began: int

    @classmethod
    def of(cls, pid: int) -> "Identity":
        return cls(pid, began(PROC / str(pid)) or 0)

    @classmethod
    def parsed(cls, text: str) -> "Identity | None":
        """Returns the identity that `str` has turned into this text; None if the text is not an
        identity."""
        words = text.split()
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            return None
        return cls(int(words[0]), int(words[1]))

    def __str__(self) -> str:
        return f"{self.pid} {self.began}"

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, even if its parent has not reaped it. (In many containers,
        the first process reaps no orphans.)"""
        return began(PROC / str(self.pid)) != self.began

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if the process still runs."""
        if not self.has_ended:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def wait(self, limit_s: float) -> bool:
        """Waits until the process has ended. Returns False if that takes longer than limit_s [s].
        Otherwise returns True, but first waits for up to REAP_LIMIT_S until the parent has reaped
        the process."""
        limit = time.monotonic() + limit_s
        while not self.has_ended:
            if time.monotonic() >= limit:
                return False
            time.sleep(LOOK_S)
        limit = time.monotonic() + REAP_LIMIT_S
        while (PROC / str(self.pid)).exists() and time.monotonic() < limit:
            time.sleep(LOOK_S)
        return True
