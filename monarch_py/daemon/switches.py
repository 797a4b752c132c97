"""Checks whether a switch file exists, without waiting for a file system that hangs."""

import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path

from monarch_py.util.hanging import LIMIT_S

log = logging.getLogger("monarch.switches")

# The interval between two checks of the switch files [s]. The daemon's loop usually sleeps slightly
# longer (TURN_MS in pacing.py), so a check is due after each such sleep.
LOOK_S = 0.2
# How long the daemon's loop waits for the result of a check [s]. The wait must be short: after 750
# ms without a sign of life, readers consider the daemon dead.
PATIENCE_S = 0.05


class Switches:
    """Determines whether Monarch is switched off: it is off while at least one of `files` exists.

    A separate thread checks the files, so that the daemon's loop continues even if their file
    system hangs. Meanwhile, the result of the last check remains valid. Until the first check has a
    result, Monarch is regarded as switched off. The constructor waits for at most `limit_s` [s] for
    this result.
    """

    def __init__(self, files: Sequence[Path], *, limit_s: float = LIMIT_S) -> None:
        self._files = files
        self._thread = ThreadPoolExecutor(1, "switches")
        self._looking: Future[bool] | None = None
        self._is_off = True
        self._ask(limit_s)

    def are_off(self) -> bool:
        """Returns the result of the last check. If a check is due, starts the check first, and
        waits for its result for at most PATIENCE_S."""
        if self._looking is not None:
            self._take(0)
        elif time.monotonic() >= self._next_look:
            self._ask(PATIENCE_S)
        return self._is_off

    def close(self) -> None:
        """Ends the thread without waiting for a check that hangs."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, limit_s: float) -> None:
        self._next_look = time.monotonic() + LOOK_S
        self._looking = self._thread.submit(lambda: any(map(os.path.exists, self._files)))
        self._is_late = False
        self._take(limit_s)

    def _take(self, limit_s: float) -> None:
        assert self._looking is not None
        try:
            self._is_off = self._looking.result(limit_s)
            self._looking = None
        except NotYet:
            if not self._is_late and time.monotonic() > self._next_look + LIMIT_S:
                self._is_late = True
                names = " or ".join(map(str, self._files))
                state = "off" if self._is_off else "on"
                log.warning("%s does not answer: Monarch stays %s until it does", names, state)
