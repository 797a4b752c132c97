"""Handles signals that the parent shell has set to be ignored."""

from __future__ import annotations

import signal


def heed_signals() -> None:
    """Installs handlers for SIGHUP and SIGINT if they are ignored, as under nohup or in a shell's
    background. Programs would inherit that they are ignored, but not a handler: it ignores the
    signal in this process, and programs started from it have the default action."""
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
