"""The daemon's process: how it is started and detached, and what it runs."""

import contextlib
import errno
import gc
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import syslog
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from monarch_py import __version__
from monarch_py.config import Config, load_config
from monarch_py.daemon.control import Control
from monarch_py.daemon.orphan import OrphanWatch
from monarch_py.daemon.server import Daemon
from monarch_py.errors import MonarchError, SessionError
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir, full_shm, hold, id_of, open_private
from monarch_py.native import lib
from monarch_py.peers.membership import Cluster
from monarch_py.scan import take
from monarch_py.util.processes import Identity
from monarch_py.util.signals import handle

__all__ = ["STAY", "StartupInfo", "end_process", "ignore_the_jobs", "serve", "spawn", "wait_for"]

log = logging.getLogger("monarch.daemon")

# A starting daemon must answer within this time [s]. It takes less than a second, but for slow
# sources and tiers.
START_LIMIT_S = 60.0
# Interval between checks whether the daemon has ended [s].
END_PAUSE_S = 0.1
# A daemon whose start is given up must end within this time, or it is killed [s].
GIVE_UP_LIMIT_S = 5.0
# The descriptors that a daemon may have open, if the administrator allows as many.
DESCRIPTORS = 65536
# How much of the previous daemon's log is kept [bytes].
KEPT_LOG = 1 << 20
# The one word on the command line of a daemon that several runs share.
SHARED = "shared"
# Sent over the lifeline to a daemon that is to outlive the process that started it.
STAY = b"s"
# Variables of the job's environment that the daemon does not get.
HIDDEN = ("LD_PRELOAD", "MONARCH_CONFIG", "MONARCH_DISABLE")
LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
# Signals that end a daemon in good order. A launcher may send several, to each process of a step.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class StartupInfo:
    """What a process that starts the daemons of several nodes tells each of them.

    The others are descriptors that the daemon inherits.  listener : the socket at which the other
    nodes' daemons reach this one;  record : see scan.give;  lifeline : the reading end of a pipe;
    the daemon ends if the pipe closes before it has said STAY
    """

    cluster: Cluster
    listener: int
    record: int | None = None
    lifeline: int | None = None


@contextlib.contextmanager
def _session_lock(session: SessionDir, config_file: Path) -> Iterator[None]:
    """Holds the session's lock: a session has one daemon. SessionError when another daemon holds
    it."""
    session.make()
    try:
        fd = hold(session.lock, config_file)
    except SessionError as error:
        raise SessionError(f"a daemon serves this configuration already ({error})") from error
    _begin_log(session)  # only now: before, it may be a running daemon's
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if id_of(session.lock) == id_of(fd):  # else it is another daemon's
                session.socket.unlink(missing_ok=True)
                session.lock.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.close(fd)


def _begin_log(session: SessionDir) -> None:
    """Begins an empty log. The end of the previous one is kept: it may tell why that daemon
    died."""
    if not session.log.exists():
        return
    with contextlib.suppress(OSError):
        said = session.log.read_bytes()[-KEPT_LOG:]
        if said:
            session.log_before.write_bytes(said)
    os.truncate(session.log, 0)


@contextlib.contextmanager
def _told_in_a_sentence() -> Iterator[None]:
    """Raises SessionError for an error of the system that keeps a daemon from starting."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC and (full := full_shm()):
            raise SessionError(full) from error
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        raise SessionError(f"the daemon cannot start: {what}") from error
    except MemoryError as error:
        raise SessionError(
            f"the daemon cannot start: {error or 'there is no memory'}; raise the limits on"
            " memory and threads (ulimit -v, -u), or those of the job"
        ) from error


def serve(
    config_file: Path, startup: StartupInfo | None = None, *, is_shared: bool = False
) -> None:
    """Runs a daemon in this process until SIGTERM, SIGINT or `monarch stop`.

    is_shared : the daemon belongs to the runs that share it, and ends when none is left (`orphan`)

    ConfigError, SessionError, TierError as the name says.
    """
    os.umask(0o077)  # the shell's umask may close our own files to us
    lib.monarch_limit_malloc()
    _allow_descriptors()
    with contextlib.ExitStack() as stack:
        with _told_in_a_sentence():
            config = load_config(config_file)
            session = SessionDir.of(config.file)
            stack.enter_context(_session_lock(session, config.file))
            ignore_the_jobs()
            # A signal that comes before the daemon is ready ends it once it is: ended half-made, it
            # would leave tiers that look as if it had been killed.
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
            watch = OrphanWatch(session) if is_shared else None
            daemon = _daemon(config, session, startup, awaits_job=is_shared)
            control = _control(daemon, session)
        handle(ENDING, lambda *_: daemon.stop_soon())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        if startup is not None and startup.lifeline is not None:
            hear = threading.Thread(target=_hear, args=(startup.lifeline, daemon), daemon=True)
            hear.start()
        if watch is not None:
            watch.begin(daemon.stop_now)
        log.info("process %d serves %s (version %s)", os.getpid(), config.file, __version__)
        # All that was loaded stays loaded: the garbage collector need not look at it while programs
        # run.
        gc.freeze()
        control.begin()
        daemon.run()
        log.info("the daemon has ended")
        _raise_if_lost(daemon)
        # The daemon has ended well. One more signal, of which Python would die, must not change
        # that.
        handle(ENDING, signal.SIG_IGN)


def _raise_if_lost(daemon: Daemon) -> None:
    if daemon.lost is not None:
        raise SessionError(
            f"the daemon has ended because {daemon.lost} was removed or replaced (by rm, a job's"
            " epilogue or logind's RemoveIPC); start another with `monarch start`"
        )


def ignore_the_jobs() -> None:
    """Ignores signals that are meant for the training (Slurm's --signal): they reach all processes
    that run beside it."""
    handle((signal.SIGUSR1, signal.SIGUSR2), signal.SIG_IGN)


def end_process(status: int = 0) -> NoReturn:
    """Ends a process whose daemon has ended. Nobody needs what its threads still work out (a plan's
    placement, a look at a file system that hangs), but the interpreter would wait for them."""
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(status)


def _allow_descriptors() -> None:
    """Raises the soft limit on descriptors, which suits programs that use select(): a daemon has a
    connection for each peer. A daemon that may not raise it has fewer connections."""
    with contextlib.suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _daemon(
    config: Config, session: SessionDir, startup: StartupInfo | None, *, awaits_job: bool
) -> Daemon:
    if startup is None:
        return Daemon(config, session, awaits_job=awaits_job)
    scanned = None if startup.record is None else take(startup.record)
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


def _command(config_file: Path, words: list[str]) -> list[str]:
    """The daemon's command line. -I keeps the job's PYTHON* variables and working directory away
    from the daemon; the package is then found by its own path, wherever it was installed."""
    package = str(Path(__file__).resolve().parents[2])
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1));"
        " from monarch_py.daemon.lifecycle import main; main()"
    )
    return [sys.executable, "-I", "-c", code, package, str(config_file), *words]


def spawn(
    config_file: Path,
    *,
    detach: bool,
    startup: StartupInfo | None = None,
    is_shared: bool = False,
) -> "subprocess.Popen[bytes]":
    """Starts a daemon and waits until it answers. The daemon has a session of its own, and nothing
    of ours is left open in it, so that neither a shell's `wait` nor a pipe's reader waits for it.

    detach : the daemon outlives this process, which does not wait for it;  is_shared : as for
    `serve`

    SessionError, with the daemon's last words, when it does not come up.
    """
    session = SessionDir.of(config_file)
    session.make()
    words, inherited = [SHARED] if is_shared else [], []
    with contextlib.ExitStack() as stack:
        if startup is not None:
            told = _written(msgspec.json.encode(startup))
            stack.callback(os.close, told)
            words = [str(told)]
            fds = (told, startup.listener, startup.record, startup.lifeline)
            inherited = [fd for fd in fds if fd is not None]
        process = _start(_command(config_file, words), session, inherited)
    try:
        _wait_until_up(process, session)
    except BaseException:  # also at a signal that ends us: nobody else knows of the process
        process.terminate()
        try:
            process.wait(GIVE_UP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    if detach:
        process.returncode = 0  # not ours to wait for: it outlives us
    return process


def _start(command: list[str], session: SessionDir, fds: list[int]) -> "subprocess.Popen[bytes]":
    errors = open_private(session.log, os.O_WRONLY | os.O_APPEND)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={k: v for k, v in os.environ.items() if k not in HIDDEN},
            cwd="/",
            start_new_session=True,
            pass_fds=fds,
        )
    finally:
        os.close(errors)


def wait_for(process: "subprocess.Popen[bytes]", session: SessionDir) -> None:
    """Waits until the daemon ends; a signal to this process makes it end. SessionError, with the
    daemon's last words, when it did not end well. A daemon whose threads wait for a source that
    does not answer counts as ended: its status is not known until the source answers."""
    handle(ENDING, lambda *_: process.terminate())
    daemon = Identity.of(process.pid)
    while process.poll() is None and not (daemon.has_ended and daemon.wait(0)):
        time.sleep(END_PAUSE_S)
    if status := process.poll():
        raise SessionError(f"the daemon has ended: {_last_words(session, status)}")


def _written(data: bytes) -> int:
    """A descriptor from which `data` can be read. The memory behind it has no name, and is freed
    with its last holder."""
    fd = os.memfd_create("monarch-cluster", os.MFD_CLOEXEC)
    os.pwrite(fd, data, 0)
    return fd


def _wait_until_up(process: "subprocess.Popen[bytes]", session: SessionDir) -> None:
    connection = DaemonConnection(session)
    limit = time.monotonic() + START_LIMIT_S
    while not connection.serves(process.pid):
        if process.poll() is not None:
            words = _last_words(session, process.returncode)
            raise SessionError(f"the daemon did not start: {words}")
        if time.monotonic() > limit:
            raise SessionError(
                f"the daemon did not answer within {START_LIMIT_S:.0f} s; see {session.log}"
            )
        time.sleep(0.005)


def _last_words(session: SessionDir, status: int) -> str:
    try:
        lines = session.log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    # Lines of the logger begin with their time, and do not tell why the daemon ended.
    said = [line for line in lines if not LOGGED.match(line)]
    if not said:
        # The log lies in shared memory: when that is full, the log holds no reason.
        return full_shm() or f"it ended with status {status}; see {session.log}"
    return said[-1].removeprefix("monarch: ")


class _Log(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.10 takes none
    """Writes to standard error, and drops a line that cannot be written, without a traceback."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def main() -> None:
    """The daemon's process, as `spawn` starts it."""
    logging.basicConfig(
        handlers=[_Log()], level=logging.INFO, format="%(asctime)s %(name)s: %(message)s"
    )
    try:
        words = sys.argv[2:]
        is_shared = words == [SHARED]
        with _told_in_a_sentence():
            startup = None
            if words and not is_shared:  # the number of the descriptor that `spawn` has written to
                with open(int(words[0]), "rb") as file:
                    startup = msgspec.json.decode(file.read(), type=StartupInfo)
        serve(Path(sys.argv[1]), startup, is_shared=is_shared)
    except MonarchError as error:
        _say_last(f"monarch: {error}\n")
        end_process(error.exit_status)
    end_process()


def _say_last(line: str) -> None:
    """Writes a line to standard error, which is the log. If the log was removed with its session,
    the line goes to the system's log, and into a new log, where whoever looks for the reason
    expects it."""
    with contextlib.suppress(OSError):  # shared memory is full, and the log lies there
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
