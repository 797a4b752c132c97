"""Ends a daemon whose `monarch run` was killed before it could end the daemon.

The runs that share a daemon hold a lock (`shares`), which the kernel releases when they are killed.
The commands of a killed run go on, and may have started processes that use the session. The daemon
serves all of these processes, and ends once there has been none for a while. A thread of its own
looks for them, because /proc answers late while a process waits for a file system.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

from monarch_py.ipc.session import SessionDir
from monarch_py.ipc.shares import Shares
from monarch_py.util.processes import Identity, mapping

log = logging.getLogger("monarch.orphan")

# LOOK_S : the interval between two looks.  UNUSED_S : how long the daemon must be unused before it
# ends, because a job's next step may begin after a pause [s].
LOOK_S = 1.0
UNUSED_S = 5.0


class OrphanWatch:
    """Watches whether the daemon of this process is still used. The constructor notes that the
    daemon belongs to the runs that share it; it raises OSError when that cannot be noted."""

    def __init__(self, session: SessionDir) -> None:
        self._session, self._shares = session, Shares(session)
        self._me = Identity.of(os.getpid())
        self._shares.note_daemon(self._me)

    def begin(self, stop: Callable[[], None]) -> None:
        """Starts the watch in a thread.

        stop : ends the daemon; the thread calls it
        """
        watch = threading.Thread(target=self._watch, args=(stop,), name="orphan", daemon=True)
        watch.start()

    def _watch(self, stop: Callable[[], None]) -> None:
        used_at = time.monotonic()
        while self._shares.daemon() == self._me:  # else `monarch start` has taken it over
            time.sleep(LOOK_S)
            if self._has_run() or self._is_attached():
                used_at = time.monotonic()
            elif time.monotonic() - used_at >= UNUSED_S and self._take_over():
                log.info(
                    "the daemon ends, because its `monarch run` was killed and no process uses the"
                    " daemon"
                )
                stop()
                return
        self._shares.close()

    def _has_run(self) -> bool:
        """Whether a run, or a command that a run has started, is still there."""
        if not self._shares.try_turn():
            return True  # a run begins or ends just now
        is_unused = self._shares.is_unused()
        self._shares.leave()
        self._shares.leave_turn()
        return not is_unused or self._shares.has_command()

    def _take_over(self) -> bool:
        """Gives the daemon up, as the last run would have done. Returns False if it did not,
        because a new run has come. After True this process keeps the turn until it ends, so that
        the next run waits for that end before it starts another daemon."""
        if not self._shares.try_turn():
            return False
        if self._shares.is_unused() and self._shares.daemon() == self._me:
            self._shares.note_daemon(None)
            return True
        self._shares.leave()
        self._shares.leave_turn()
        return False

    def _is_attached(self) -> bool:
        """Whether a process has a segment of the session mapped."""
        return next(mapping(f"{self._session.path}/"), None) is not None
