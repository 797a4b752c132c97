"""Probes file systems in a thread of the tests' process, in place of a child process.

The tests' process runs commands and loads configurations itself (command_line.py). Both probe the
file system of each path, and each probe would fork a child. But the tests' process is so large that
a fork takes longer than everything else that most commands do. In processes that tests start, a
probe still forks.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Thread

# The caller of a probe expects the ID of the probe's process, to wait for the process or to kill
# it. Here, a thread makes the probe, so the caller gets this number, which is the ID of no process.
NO_PROCESS = (1 << 31) - 1


def ask(path: Path) -> tuple[int, int]:
    """Replaces `monarch_py.util.hanging._ask`. A thread that hangs is left behind."""
    answer, end = os.pipe2(os.O_CLOEXEC)

    def probe() -> None:
        with suppress(OSError):
            os.stat(path)
            os.statvfs(path)
        os.close(end)

    Thread(target=probe, daemon=True).start()
    return NO_PROCESS, answer
