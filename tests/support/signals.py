"""Installs handlers for signals that the parent shell has set to be ignored, and checks whether
another process has a handler for SIGTERM."""

from __future__ import annotations

import signal
from pathlib import Path


def heed_signals() -> None:
    """Installs handlers for SIGHUP and SIGINT if these signals are ignored, as under nohup or in a
    shell's background. A program inherits ignored signals from the process that starts it, but no
    handlers. So these handlers, which do nothing, make started programs use the default action."""
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def handles_sigterm(pid: int) -> bool:
    """Returns whether the process has installed a handler for SIGTERM. Python installs none."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> signal.SIGTERM - 1 & 1)
