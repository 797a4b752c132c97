"""Records which runs (`monarch run`) share a daemon, and whether the last of them must end the
daemon."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from monarch_py.errors import SessionError
from monarch_py.ipc.session import SessionDir, open_private
from monarch_py.util.processes import Identity

# At most this many bytes of the file `users` are read. The file has at most two lines for each run:
# one for the run, and one for the run's command.
MOST_BYTES = 1 << 20
# TURN_LIMIT_S: how long [s] a process waits for the lock on the file `turn`. A process that starts
# or ends a daemon holds this lock for seconds, or longer if many copies must be removed. POLL_S:
# the time [s] between two attempts to take the lock.
TURN_LIMIT_S, POLL_S = 60.0, 0.02


class Shares:
    """Two files of a session (`users` and `turn`), and the locks on these files.

    `users` : each run (a process of `monarch run`) holds a shared lock on this file. The first line
        names the daemon that the last run must end. This line is empty if the runs leave the daemon
        running. The other lines name the runs, and the commands that the runs have started
    `turn` : a process locks this file while it starts or ends a daemon

    If a run is killed, the kernel releases the run's locks. The constructor raises OSError if the
    files cannot be created.
    """

    def __init__(self, session: SessionDir) -> None:
        self._session = session
        session.make()
        self._users, self._turn = self._open("users"), self._open("turn")

    def _open(self, name: str) -> int:
        return open_private(self._session.path / name, os.O_RDWR)

    def close(self) -> None:
        """Closes both files, and so releases the locks on them."""
        try:
            os.close(self._users)
        finally:
            os.close(self._turn)

    # --- locks ------------------------------------------------------------------------------------

    def take_turn(self, limit_s: float = TURN_LIMIT_S) -> None:
        """Locks `turn`. Raises SessionError if another process holds the lock for longer than
        `limit_s`. That process may be a suspended command, or a daemon that waits for a file system
        while it ends."""
        until = time.monotonic() + limit_s
        while not _try(self._turn):
            if time.monotonic() >= until:
                turn = self._session.path / "turn"
                raise SessionError(
                    f"{turn} has been locked for {limit_s:.0f} s by another `monarch run` or"
                    " `monarch start`, or by a daemon that does not end; find the process with"
                    f" `fuser -v {turn}`, and end it"
                )
            time.sleep(POLL_S)

    def try_turn(self) -> bool:
        """Locks `turn` if no other process holds the lock. Returns whether this process holds the
        lock now."""
        return _try(self._turn)

    def leave_turn(self) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def join(self) -> None:
        """Makes this process one of the runs, by a shared lock on `users`."""
        fcntl.flock(self._users, fcntl.LOCK_SH)

    def leave(self) -> None:
        fcntl.flock(self._users, fcntl.LOCK_UN)

    def is_unused(self) -> bool:
        """Returns whether no other run uses the daemon. If True, `users` is now locked exclusively,
        so that no run can join until the caller calls `leave`. The caller must hold the lock on
        `turn` until then."""
        return _try(self._users)

    # --- notes ------------------------------------------------------------------------------------

    def note_daemon(self, daemon: Identity | None) -> None:
        """Records the daemon that the last run must end. Removes the lines of runs and commands
        that have ended.

        daemon : None if the last run must leave the daemon running
        """
        lines = [str(each) for each in ("" if daemon is None else daemon, *self.commands())]
        text = "\n".join(lines).encode()
        # The file is truncated only after the write. In the opposite order, a full disk might have
        # no room left for the text.
        os.pwrite(self._users, text, 0)
        os.ftruncate(self._users, len(text))

    def note_command(self, command: Identity) -> None:
        """Records this run, or the command that it has started. If the disk is full, the record is
        lost. The daemon then finds only the processes that have mapped a segment of the session."""
        with suppress(OSError):
            os.pwrite(self._users, f"\n{command}".encode(), os.fstat(self._users).st_size)

    def daemon(self) -> Identity | None:
        return next(iter(self._noted()), None)

    def has_command(self) -> bool:
        """Returns whether any recorded run or command, except this process, is running. A command
        may have outlived its run."""
        return any(each.pid != os.getpid() for each in self.commands())

    def commands(self) -> list[Identity]:
        """Returns the recorded runs and commands that have not ended."""
        return [each for each in self._noted()[1:] if each is not None and not each.has_ended]

    def _noted(self) -> list[Identity | None]:
        text = os.pread(self._users, MOST_BYTES, 0).decode(errors="replace")
        return [Identity.parsed(line) for line in text.splitlines()]


@contextmanager
def turn(session: SessionDir) -> Iterator[Shares]:
    """Locks the file `turn` during the `with` block, so that no `monarch run` or `monarch start`
    interferes. Raises SessionError as `take_turn` does."""
    shares = Shares(session)
    try:
        shares.take_turn()
        yield shares
    finally:
        shares.close()


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
