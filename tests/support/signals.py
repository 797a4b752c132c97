"""Signals that a shell has had ignored for us."""

from __future__ import annotations

import signal


def heed_signals() -> None:
    """Under nohup, or in a shell's background, SIGHUP and SIGINT are ignored, and programs inherit
    that. A handler is not inherited by what is executed: we go on to ignore them, and the programs
    that we start have the defaults."""
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
