"""`monarch sweep`: removes the files that this user's killed daemons have left on this node.

A killed daemon leaves behind the shared-memory segments of its session, and the copies in its
tiers. The control segment names the tiers, so the sweep needs no configuration. A daemon that is
killed during its start may leave directories in its tiers, but no control segment. In this case,
the daemon's lock file names the configuration, and the configuration names the tiers. The sweep
does not remove copies on persistent tiers, nor files of a running daemon.
"""

import os
import re
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from monarch_py.config.load import load_config
from monarch_py.config.schema import TierConfig
from monarch_py.daemon.segments import close_old_session
from monarch_py.errors import MonarchError, SessionError, TierError
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import (
    HeldError,
    Segment,
    SessionDir,
    hold,
    holder_of,
    kept_directory,
    last_config,
    user_directory,
)
from monarch_py.ipc.shares import turn
from monarch_py.native import ffi, lib
from monarch_py.storage.tiers import Tier, tier_root
from monarch_py.util.ownership import why_not_private
from monarch_py.util.processes import Identity

# How long [s] a daemon may take to end after it was asked to stop. It needs seconds to remove many
# copies. After this time, the sweep kills the daemon, and removes the remaining copies.
STOP_LIMIT_S = 30.0
# How long [s] a daemon may take to end after SIGKILL.
KILL_LIMIT_S = 10.0
# Pause [s] between two attempts to take the lock of a daemon that is ending.
LOOK_S = 0.05
# Matches the name of a session's directory, but not that of a tier in the same parent directory.
SESSION = re.compile("[0-9a-f]{16}")


@dataclass
class Swept:
    """The result of a sweep.

    stopped : the number of running daemons that were ended
    sessions : the number of killed daemons' sessions that were removed
    copies : the number of copies that were removed with these sessions
    problems : one sentence for each session that could not be removed
    """

    stopped: int = 0
    sessions: int = 0
    copies: int = 0
    problems: list[str] = field(default_factory=list)


def sweep(*, stop: bool = False) -> Swept:
    """Removes the segments and copies that this user's killed daemons have left behind.

    stop : if true, also ends the running daemons, and removes every session with its log. Use this
        only after the user's last job on this node

    Raises SessionError if the directory of the sessions is not private to this user.
    """
    swept = Swept()
    for session in _sessions():
        if stop or _is_left(session):
            _sweep_told(session, swept, stop=stop)
    if stop:
        shutil.rmtree(kept_directory(), ignore_errors=True)
        _remove_if_empty(user_directory())
    return swept


def sweep_session(session: SessionDir) -> Swept:
    """Removes what a killed daemon has left behind in one session."""
    swept = Swept()
    _sweep_told(session, swept, stop=False)
    return swept


def _sweep_told(session: SessionDir, swept: Swept, *, stop: bool) -> None:
    try:
        with turn(session):
            _sweep(session, swept, stop=stop)
    except (SessionError, TierError) as error:
        swept.problems.append(str(error))
    except OSError as error:
        swept.problems.append(f"{error.filename or session.path}: {error.strerror}")


def _sessions() -> list[SessionDir]:
    directory = user_directory()
    try:
        why = why_not_private(directory)
    except FileNotFoundError:
        return []
    if why:
        raise SessionError(f"{directory} is not touched: it {why}")
    return [SessionDir(path) for path in sorted(directory.iterdir()) if not path.is_symlink()]


def _remove_if_empty(directory: Path) -> None:
    """Removes links in `directory` to sessions that no longer exist. If `directory` is empty after
    this, removes `directory` too."""
    with suppress(OSError):
        for path in directory.iterdir():
            if path.is_symlink() and not path.exists():  # the link's session no longer exists
                path.unlink()
        directory.rmdir()


def _is_left(session: SessionDir) -> bool:
    """Whether the session's daemon runs or was killed. In both cases, the control segment or the
    lock file exists. A daemon that ends normally removes both files."""
    is_session = SESSION.fullmatch(session.path.name) is not None
    return is_session and (session.control.exists() or session.lock.exists())


def _sweep(session: SessionDir, swept: Swept, *, stop: bool) -> None:
    if stop:
        _end(session, swept)
    is_left = _is_left(session)
    config_file = last_config(session.lock)
    try:
        lock = hold(session.lock)
    except HeldError as holder:
        if stop:
            raise SessionError(f"{session.path}: the daemon ({holder}) does not end") from None
        return  # the session's daemon is running
    try:
        if is_left:
            try:
                roots = _tiers_of(session) or _tiers_in(config_file, session)
                swept.copies += sum(map(_emptied, roots))
            except SessionError as error:
                if not stop:
                    raise
                swept.problems.append(str(error))
            close_old_session(session)
            session.socket.unlink(missing_ok=True)
            swept.sessions += 1
        if stop:
            shutil.rmtree(session.path, ignore_errors=True)
    finally:
        session.lock.unlink(missing_ok=True)
        os.close(lock)


def _end(session: SessionDir, swept: Swept) -> None:
    """Ends the session's daemon if it runs. Raises SessionError if the daemon cannot be killed."""
    holder, is_asked = holder_of(session.lock), False
    with suppress(SessionError):
        DaemonConnection(session).ask("stop")
        is_asked = True
    if holder is None:  # no daemon runs, or the daemon runs in another PID namespace
        swept.stopped += is_asked and _is_free(session.lock)
        return
    daemon = Identity.of(int(str(holder).removeprefix("process ")))
    if not daemon.wait(STOP_LIMIT_S):
        daemon.send(signal.SIGKILL)
        if not daemon.wait(KILL_LIMIT_S):
            raise SessionError(
                f"the daemon (process {daemon.pid}) cannot be killed, so its copies stay; run"
                " `monarch sweep` when the file system in which it hangs answers again"
            )
    swept.stopped += 1


def _is_free(lock: Path) -> bool:
    """Waits until no process holds the lock on the file `lock`. Then removes the file and returns
    True. If a process holds the lock for longer than STOP_LIMIT_S, returns False."""
    until = time.monotonic() + STOP_LIMIT_S
    while time.monotonic() < until:
        try:
            fd = hold(lock)
        except HeldError:
            time.sleep(LOOK_S)
        else:
            lock.unlink(missing_ok=True)
            os.close(fd)
            return True
    return False


def _tiers_of(session: SessionDir) -> list[Path]:
    """Returns Monarch's directories in the tiers and in the staging area. Reads their paths from
    the control segment. Returns [] if the daemon was killed before it had written the paths. Raises
    SessionError if the segment cannot be read."""
    hint = "start and stop a daemon of that configuration, or remove its copies by hand"
    try:
        segment = Segment.open(session.control, writable=False)
        control = segment.as_struct("struct monarch_control")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SessionError(f"{session.control}: {error.strerror}; {hint}") from None
    if (control.magic, control.version) != (lib.MONARCH_MAGIC, lib.MONARCH_VERSION):
        raise SessionError(f"{session.control} was made by another version of Monarch; {hint}")
    paths = [ffi.string(control.tier[number].path) for number in range(control.tiers)]
    return [Path(os.fsdecode(path)).parent for path in paths if path]


def _tiers_in(config_file: str, session: SessionDir) -> list[Path]:
    """Returns Monarch's directories in the tiers and in the staging area of a configuration.
    Returns [] if the configuration is not known ("") or not valid."""
    try:
        config = load_config(config_file, with_sources=False)
    except MonarchError:
        return []
    roots = [tier_root(tier.mount_point) for tier in config.tiers]
    if config.staging is not None:
        roots.append(tier_root(config.staging.mount_point) / session.staging)
    return roots


def _emptied(root: Path) -> int:
    """Removes the copies in one tier. If the tier is persistent or a daemon uses it, removes
    nothing. Returns how many copies were removed. Raises TierError if the tier cannot be used.

    root : Monarch's directory in the tier or in the staging area
    """
    # A tier with a manifest is persistent, so its copies stay. Any other directory is cleared even
    # if it has no copies, because a daemon that was killed during its start may have left files.
    if not root.is_dir() or os.path.lexists(root / "manifest.sqlite"):
        return 0
    base = root if root == tier_root(root.parent) else root.parent
    below = str(root.relative_to(base)) if base != root else ""
    try:
        tier = Tier(TierConfig(mount_point=base.parent), below)
    except TierError:
        if holder_of(root / "lock") is not None:
            return 0
        raise
    count = len(tier.listing())
    tier.discard()
    return count
