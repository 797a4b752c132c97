"""Signals that the parent shell has set to be ignored, and signals that a process handles."""

from __future__ import annotations

import signal
from pathlib import Path


def heed_signals() -> None:
    """Installs handlers for SIGHUP and SIGINT if they are ignored, as under nohup or in a shell's
    background. Programs would inherit that they are ignored, but not a handler: it ignores the
    signal in this process, and programs started from it have the default action."""
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def handles_sigterm(pid: int) -> bool:
    """Whether the process has installed its handler: Python by itself leaves SIGTERM alone."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> signal.SIGTERM - 1 & 1)
