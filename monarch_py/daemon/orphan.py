"""Ends an unused daemon that no command will end.

A run is a process of the command `monarch run`. Normally, the last run of a daemon ends the daemon.
An `OrphanWatch` ends the daemon if the last run was killed. It also does so if other processes
still used the daemon when the last run ended. An `IdleWatch` ends a daemon that was started by a
program's first open of a file (commands/autostart.py).

All runs of a daemon hold a lock (ipc/shares.py), which the kernel releases if a run is killed. But
the command of a killed run continues, and may have started other processes. The daemon serves all
of them, and ends some time after the last of them. A separate thread looks for these processes in
/proc. Reading /proc can block while a process waits for a file system.
"""

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from monarch_py.daemon.server import Daemon
from monarch_py.ipc.jobs import Jobs
from monarch_py.ipc.session import SessionDir
from monarch_py.ipc.shares import Shares
from monarch_py.util.processes import Identity, mapping
from monarch_py.util.threads import note_failure

log = logging.getLogger("monarch.orphan")

# The time between two checks of whether the daemon is used [s].
LOOK_S = 1.0
# An `OrphanWatch` ends a daemon that has been unused for this long [s]. It waits this long because
# the next step of a job may begin after a pause.
UNUSED_S = 5.0
# An `IdleWatch` divides the permitted unused time into this many intervals. It checks once per
# interval, but not more often than every LOOK_S. Each check is expensive: it reads the mappings of
# all processes of the user.
LOOKS = 20


class _Watch(ABC):
    """Watches, in a thread of its own, whether the daemon of this process is used. Ends an unused
    daemon."""

    def __init__(self, session: SessionDir, unused_s: float, look_s: float) -> None:
        self._session, self._shares = session, Shares(session)
        self._unused_s, self._look_s = unused_s, look_s
        self._used_at = 0.0

    def begin(self, stop: Callable[[], None]) -> None:
        """Starts the watch.

        stop : a function that ends the daemon; it is called in the watch's thread
        """
        watch = threading.Thread(target=self._watch, args=(stop,), name="orphan", daemon=True)
        watch.start()

    @abstractmethod
    def _is_ours(self) -> bool:
        """Whether this watch is still responsible for ending the daemon."""

    @abstractmethod
    def _will_end(self) -> None:
        """Writes to the log why the daemon ends."""

    def _is_used(self) -> bool:
        return self._has_run() or self._is_attached()

    def _watch(self, stop: Callable[[], None]) -> None:
        self._used_at = time.monotonic()
        while True:
            try:
                if not self._is_ours():
                    break
                if self._ends_now():
                    stop()
                    return
            # The watch goes on after an error: without the watch, the daemon would never end.
            except Exception as error:
                note_failure(error)
            time.sleep(self._look_s)
        self._shares.close()

    def _ends_now(self) -> bool:
        if self._is_used():
            self._used_at = time.monotonic()
        elif time.monotonic() - self._used_at >= self._unused_s and self._take_over():
            self._will_end()
            return True
        return False

    def _has_run(self) -> bool:
        """Whether a `monarch run`, or a command that a `monarch run` has started, still exists."""
        if not self._shares.try_turn():
            return True  # a run that is just beginning or ending holds the lock `turn`
        is_unused = self._shares.is_unused()
        self._shares.leave()
        self._shares.leave_turn()
        return not is_unused or self._shares.has_command()

    def _take_over(self) -> bool:
        """Records that this watch ends the daemon, so that no run has to end it. Returns True if
        this was recorded. This process then holds the lock `turn` until its end, so that no run
        starts the next daemon earlier. If a new run has begun, returns False and records
        nothing."""
        if not self._shares.try_turn():
            return False
        if self._shares.is_unused() and self._is_ours():
            self._shares.note_daemon(None)
            return True
        self._shares.leave()
        self._shares.leave_turn()
        return False

    def _is_attached(self) -> bool:
        """Whether a process has a segment of the session mapped."""
        return next(mapping(f"{self._session.path}/"), None) is not None


class OrphanWatch(_Watch):
    """Ends a daemon that several `monarch run` commands share, once no run, job or process uses it.
    The constructor records (`Shares.note_daemon`) that the runs share this daemon. It raises
    OSError if the record cannot be written."""

    def __init__(self, session: SessionDir) -> None:
        super().__init__(session, UNUSED_S, LOOK_S)
        self._jobs = Jobs(session)
        self._me = Identity.of(os.getpid())
        self._shares.note_daemon(self._me)

    def _is_ours(self) -> bool:
        # If this daemon is not recorded any more, `monarch start` has made it permanent.
        return self._shares.daemon() == self._me

    def _is_used(self) -> bool:
        return super()._is_used() or bool(self._jobs.noted())

    def _will_end(self) -> None:
        log.info("the daemon ends, because no `monarch run`, job or process uses it any more")


def let_go(session: SessionDir, stop: Callable[[], None]) -> None:
    """Starts an `OrphanWatch` for this daemon, unless it has one already."""
    shares = Shares(session)
    is_watched = shares.daemon() == Identity.of(os.getpid())
    shares.close()
    if not is_watched:
        OrphanWatch(session).begin(stop)


class IdleWatch(_Watch):
    """Ends an unused daemon that no command would end. A program may begin and end between two
    checks. So the daemon counts as used if programs have opened files since the last check. It also
    counts as used while it makes copies (for `monarch warm`, or for a plan).

    idle_s : the daemon ends after it has been unused for this long [s]
    """

    def __init__(self, session: SessionDir, daemon: Daemon, idle_s: float) -> None:
        super().__init__(session, idle_s, max(LOOK_S, idle_s / LOOKS))
        self._daemon, self._done = daemon, (0, 0)

    def _is_ours(self) -> bool:
        # `monarch start` sets `stays` if this daemon is already running, to make it permanent.
        return not self._daemon.stays

    def _is_used(self) -> bool:
        before, opens = self._done, self._daemon.shared.totals()["opens"]
        engine = self._daemon.filler.engine
        self._done = opens, engine.bytes_from_source + engine.bytes_from_peers
        return self._done != before or super()._is_used()

    def _will_end(self) -> None:
        self._session.forget_starts()
        log.info("the daemon ends, because no process has used it for %.0f s", self._unused_s)
