"""The daemon's process: its limits, its lock, its log, its signals, and the daemon that it runs."""

import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
import syslog
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec

from monarch_py import __version__
from monarch_py.config.load import load_config
from monarch_py.config.schema import Config
from monarch_py.daemon.control import Control
from monarch_py.daemon.orphan import IdleWatch, OrphanWatch
from monarch_py.daemon.scan.pace import AWAIT_S, IDLE_S
from monarch_py.daemon.server import Daemon
from monarch_py.daemon.starting import (
    AUTOSTARTED,
    ENDING,
    SHARED,
    STAY,
    StartupInfo,
    ignore_the_jobs,
    refuse_few_addresses,
)
from monarch_py.errors import MonarchError, SessionError
from monarch_py.ipc.record import write_record
from monarch_py.ipc.session import SessionDir, full_shm, hold, id_of, open_private
from monarch_py.native import lib
from monarch_py.scan.record import read_record
from monarch_py.util.limits import met_limit
from monarch_py.util.signals import handle
from monarch_py.util.threads import note_all_failures

log = logging.getLogger("monarch.daemon")

# A daemon raises its soft limit on open file descriptors to this number, or to the hard limit if
# the hard limit is lower.
DESCRIPTORS = 65536
# How much of the previous daemon's log is kept [bytes].
KEPT_LOG = 1 << 20


@contextlib.contextmanager
def _session_lock(session: SessionDir, config_file: Path) -> Iterator[None]:
    """Holds the session's lock, so that the session has at most one daemon at a time. Raises
    SessionError if another daemon holds the lock."""
    session.make()
    try:
        fd = hold(session.lock, config_file)
    except SessionError as error:
        raise SessionError(f"a daemon serves this configuration already ({error})") from error
    _begin_log(session)  # this process holds the lock, so no other daemon uses the log
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            # If the lock's path leads to another file by now, that file and the socket belong to
            # another daemon, and must not be removed.
            if id_of(session.lock) == id_of(fd):
                session.socket.unlink(missing_ok=True)
                session.lock.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.close(fd)


def _begin_log(session: SessionDir) -> None:
    """Starts an empty log. Keeps the end of the previous daemon's log, because it may show why that
    daemon has died."""
    if not session.log.exists():
        return
    with contextlib.suppress(OSError):
        said = session.log.read_bytes()[-KEPT_LOG:]
        if said:
            session.log_before.write_bytes(said)
    os.truncate(session.log, 0)


@contextlib.contextmanager
def _told_in_a_sentence() -> Iterator[None]:
    """If an OSError or a MemoryError keeps the daemon from starting, raises a SessionError instead.
    The message of the SessionError is one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC and (full := full_shm()):
            raise SessionError(full) from error
        place = f"{error.filename}: " if error.filename else ""
        what = met_limit(error.errno) or f"{place}{error.strerror}"
        raise SessionError(f"the daemon cannot start: {what}") from error
    except MemoryError as error:
        raise SessionError(
            f"the daemon cannot start: {error or 'there is no memory'}; raise the limits on"
            " memory and threads (ulimit -v, -u), or the job's limits"
        ) from error


def serve(config_file: Path, startup: StartupInfo | None = None, *, kind: str = "") -> None:
    """Runs a daemon in this process until SIGTERM, SIGINT, SIGHUP or `monarch stop`.

    kind : how an unused daemon ends (see `orphan`). SHARED: an `OrphanWatch` ends it some time
        after its last `monarch run` has ended. AUTOSTARTED: an `IdleWatch` ends it after
        `idle_exit`. "": the daemon does not end, unless the command `let_go` starts an
        `OrphanWatch`

    Raises ConfigError, SessionError or TierError if the configuration, the session or the tiers
    cannot be used.
    """
    # With the shell's umask, the daemon might be unable to open files that it has created itself.
    os.umask(0o077)
    lib.monarch_limit_malloc()
    lib.monarch_set_scheduling()
    _raise_limits()
    note_all_failures()
    with contextlib.ExitStack() as stack:
        with _told_in_a_sentence():
            refuse_few_addresses()
            config = load_config(config_file)
            session = SessionDir.of(config.file)
            stack.enter_context(_session_lock(session, config.file))
            # The record is a file that tells the preload library whether to start a daemon if none
            # runs (ipc/record.py). Without `autostart`, an earlier daemon's record must still be
            # replaced. Otherwise the library would obey that record, and start a daemon.
            if config.autostart or session.autostart.exists():
                with contextlib.suppress(OSError, SessionError):
                    write_record(config_file, config, is_alone=True)
            ignore_the_jobs()
            # Signals are held back until the daemon is ready. If a signal ended the daemon during
            # its start, the tiers would look as if the daemon had been killed.
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
            watch: OrphanWatch | IdleWatch | None = None
            if kind == SHARED:
                watch = OrphanWatch(session)
            # How long the scan waits for a program's first open [s]. If a program has started the
            # daemon (AUTOSTARTED), it has already opened its first file, so the wait is short.
            awaits_s = {SHARED: AWAIT_S, AUTOSTARTED: IDLE_S}.get(kind, 0.0)
            daemon = _daemon(config, session, startup, awaits_s=awaits_s)
            if kind == AUTOSTARTED and config.idle_exit_s:
                watch = IdleWatch(session, daemon, config.idle_exit_s)
            control = _control(daemon, session)
            stack.callback(control.end)
        handle(ENDING, lambda *_: daemon.stop_soon())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        if startup is not None and startup.lifeline is not None:
            hear = threading.Thread(
                target=_hear, args=(startup.lifeline, daemon), name="lifeline", daemon=True
            )
            hear.start()
        if watch is not None:
            watch.begin(daemon.stop_now)
        log.info("process %d serves %s (version %s)", os.getpid(), config.file, __version__)
        # `spawn` has turned the garbage collector off until now. `freeze` makes the collector
        # ignore all objects that exist now, because they live until the end.
        gc.freeze()
        gc.enable()
        control.begin()
        daemon.run()
        log.info("the daemon has ended")
        _raise_if_lost(daemon)
        # The daemon has ended properly. Another signal could still kill the interpreter during its
        # exit, so signals are ignored from here on.
        handle(ENDING, signal.SIG_IGN)


def _raise_if_lost(daemon: Daemon) -> None:
    if daemon.lost is not None:
        raise SessionError(
            f"the daemon has ended because {daemon.lost} was removed or replaced (by rm, a job's"
            " epilogue or logind's RemoveIPC); start another with `monarch start`"
        )


def end_process(status: int = 0) -> NoReturn:
    """Ends this process after the daemon's loop has ended. The interpreter's own exit would wait
    for threads. Such a thread may hang in a file system, or compute a result that nobody needs any
    more."""
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(status)


def _raise_limits() -> None:
    """Raises the soft limits on the address space and on file descriptors. The usual limit on
    descriptors is low for the sake of programs that use select(). For a daemon, which has
    connections to each peer, it is too low. If a limit cannot be raised, the daemon runs
    nevertheless."""
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _daemon(
    config: Config, session: SessionDir, startup: StartupInfo | None, *, awaits_s: float
) -> Daemon:
    if startup is None:
        return Daemon(config, session, awaits_s=awaits_s)
    scanned = None
    if startup.record is not None:
        with open(startup.record, "rb") as file:
            scanned = read_record(file.read()), startup.began
    listener = socket.socket(fileno=startup.listener)
    listener.set_inheritable(False)
    return Daemon(config, session, startup.cluster, listener, scanned)


def _control(daemon: Daemon, session: SessionDir) -> Control:
    try:
        return Control(daemon, session)
    except BaseException:
        daemon.close()
        raise


def _hear(lifeline: int, daemon: Daemon) -> None:
    if os.read(lifeline, len(STAY)) != STAY:
        daemon.stop_now()


class _Log(logging.StreamHandler):  # type: ignore[type-arg]  # not generic in Python 3.10
    """Writes the log to standard error. A line that cannot be written is dropped without a
    traceback."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def main() -> None:
    """Runs the daemon's process. The command line that `spawn` executes calls this function."""
    logging.basicConfig(
        handlers=[_Log()], level=logging.INFO, format="%(asctime)s %(name)s: %(message)s"
    )
    try:
        words = sys.argv[2:]
        kind = words[0] if words in ([SHARED], [AUTOSTARTED]) else ""
        with _told_in_a_sentence():
            startup = None
            if words and not kind:  # words[0] is the descriptor from which the StartupInfo is read
                with open(int(words[0]), "rb") as file:
                    startup = msgspec.json.decode(file.read(), type=StartupInfo)
        serve(Path(sys.argv[1]), startup, kind=kind)
    except MonarchError as error:
        _say_last(f"monarch: {error}\n")
        end_process(error.exit_status)
    end_process()


def _say_last(line: str) -> None:
    """Writes a line to standard error, which is the log. If the log's file was removed, also writes
    the line to syslog and to a new log file. Users look there for the reason of the daemon's
    end."""
    # The write fails if shared memory, which holds the log, is full.
    with contextlib.suppress(OSError):
        sys.stderr.write(line)
        sys.stderr.flush()
    session = SessionDir.of(Path(sys.argv[1]))
    if id_of(session.log) == id_of(2) or os.fstat(2).st_nlink:
        return
    syslog.syslog(syslog.LOG_WARNING, line.strip())
    with contextlib.suppress(OSError, MonarchError):
        session.make()
        errors = open_private(session.log, os.O_WRONLY | os.O_APPEND)
        os.write(errors, line.encode())
        os.close(errors)
