"""Finds out, within a time limit, which file systems hang, by probing them in child processes.

A system call on a file system that hangs may never return, and no signal can end it. So a child
process makes the call, and is abandoned if the call hangs. A thread cannot do this: if it hung,
this process could not end.
"""

import os
import select
import signal
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# A file system counts as hanging if it does not answer within this time [s]. A busy file system may
# take a second.
LIMIT_S = 5.0


def hanging(paths: Sequence[Path]) -> list[Path]:
    """Returns the paths whose file systems do not answer within LIMIT_S. An error is an answer too.
    Leaves out a path that cannot be probed because no process or descriptor is available."""
    deadline = time.monotonic() + LIMIT_S
    asked = {path: ask for path in dict.fromkeys(paths) if (ask := _ask(path)) is not None}
    answered = []
    try:
        for path, (_, answer) in asked.items():
            left_s = max(0.0, deadline - time.monotonic())
            if select.select([answer], [], [], left_s)[0]:
                answered.append(path)
    finally:
        for path, (child, answer) in asked.items():
            os.close(answer)
            _end(child, is_left=path not in answered)
    return [path for path in asked if path not in answered]


def _ask(path: Path) -> tuple[int, int] | None:
    """Starts a child that probes `path`. Returns the child's pid, and a pipe that becomes readable
    when the child is done; None if the child or the pipe cannot be made."""
    try:
        answer, end = os.pipe2(os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with warnings.catch_warnings():
            # If this process has several threads, fork() warns that locks of other threads stay
            # locked in the child forever. The child takes no lock, so the warning is suppressed.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
    except OSError:
        os.close(answer)
        os.close(end)
        return None
    if child:
        os.close(end)
        return child, answer
    try:
        _detach(end)
        os.stat(path)
        # statvfs always asks the file system, but stat may be answered from a cache.
        os.statvfs(path)
    finally:
        os._exit(0)


def _detach(end: int) -> None:
    """Closes all inherited descriptors. Otherwise, an abandoned child would keep this program's
    output open, and readers of the output would wait for the child. `end`, the child's end of the
    pipe, becomes descriptor 3."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.dup2(end, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))


def _end(child: int, *, is_left: bool) -> None:
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, os.WNOHANG if is_left else 0)
