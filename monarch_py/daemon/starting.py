"""Starts the daemon's process, and waits for its end.

This module does not import the daemon, so that commands that start or end a daemon are fast.
"""

import contextlib
import errno
import os
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from monarch_py.errors import SessionError
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir, full_shm, open_private
from monarch_py.peers.membership import Cluster
from monarch_py.util.limits import met_limit
from monarch_py.util.processes import Identity, end
from monarch_py.util.signals import handle
from monarch_py.util.units import MIB, format_size

# A starting daemon must answer within this time [s]. It usually answers within a second, but may
# take longer with slow sources and tiers.
START_LIMIT_S = 60.0
# The time between two checks of whether the daemon has ended [s].
END_PAUSE_S = 0.1
# A daemon whose start has failed is killed if it has not ended within this time [s].
GIVE_UP_LIMIT_S = 5.0
# The smallest limit on the address space with which a daemon starts [bytes]. A daemon with few
# files and 17 threads occupies 280 MiB. It briefly needs another 100 MiB when a thread first
# allocates memory. With a lower limit, threads fail while they start, and CPython waits for them
# forever.
LEAST_ADDRESSES = 512 * MIB
# The kinds of daemons, as command-line arguments. SHARED: several `monarch run` commands share the
# daemon. AUTOSTARTED: a program's first open of a dataset's file has started the daemon.
SHARED, AUTOSTARTED = "shared", "autostarted"
# This message on the lifeline (see StartupInfo) tells a daemon to outlive the process that started
# it.
STAY = b"s"
# Environment variables of the job that are not passed on to the daemon.
HIDDEN = ("LD_PRELOAD", "MONARCH_CONFIG", "MONARCH_DISABLE")
# The beginning of a line that the logger has written.
LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
# Signals that end a daemon properly. A launcher may send several of them to each process of a job
# step.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class StartupInfo:
    """What a daemon of a cluster receives from the process that starts it.

    listener, record and lifeline are file descriptors that the daemon inherits.

    listener : the socket to which the daemons of the other nodes connect
    record : the list of the sources' files (`scan.record`), if one node has made it for all
    lifeline : the read end of a pipe from the process that starts the daemons. If the pipe is
        closed before the daemon has read STAY from it, the daemon ends
    began : when the scan for `record` began, on this node's time.monotonic() [s]
    """

    cluster: Cluster
    listener: int
    record: int | None = None
    lifeline: int | None = None
    began: float = 0.0


def ignore_the_jobs() -> None:
    """Makes this process ignore SIGUSR1 and SIGUSR2. A job may request these signals for its
    training processes (Slurm's --signal), but they also reach this process."""
    handle((signal.SIGUSR1, signal.SIGUSR2), signal.SIG_IGN)


def _command(config_file: Path, words: list[str]) -> list[str]:
    """Returns the daemon's command line. The option -I makes Python ignore the job's PYTHON*
    variables, and import nothing from the working directory. Python then does not find this
    package, so its path is passed as an argument.

    The process does four things before it imports the daemon. It leaves its parent's process group
    (see `spawn`). It turns off the garbage collector, which would take a tenth of the start time
    and find nothing. It raises the soft limit on the address space, which the import of numpy
    needs. It keeps numpy from starting a thread for each processor, because the daemon multiplies
    no matrices.
    """
    package = str(Path(__file__).resolve().parents[2])
    code = (
        "import gc, os, resource, sys; os.setpgid(0, 0); gc.disable();"
        " resource.setrlimit(resource.RLIMIT_AS, resource.getrlimit(resource.RLIMIT_AS)[1:] * 2);"
        " sys.path.insert(0, sys.argv.pop(1));"
        " os.environ.setdefault('OPENBLAS_NUM_THREADS', '1');"
        " from monarch_py.daemon.lifecycle import main; main()"
    )
    return [sys.executable, "-I", "-c", code, package, os.path.abspath(config_file), *words]


def spawn(
    config_file: Path, *, detach: bool, startup: StartupInfo | None = None, kind: str = ""
) -> "subprocess.Popen[bytes]":
    """Starts a daemon and waits until it answers. The daemon inherits only the descriptors in
    `startup`, so it keeps no pipe of this process open.

    The daemon gets its own process group, so that neither Ctrl-C nor the closing of a terminal ends
    it. But it stays in this process's session (setsid). Linux may divide the processors among
    sessions (see autogroup in sched(7)). In measurements, a daemon in its own session got as much
    processor time as the complete job. But single threads of that daemon waited for 0.1 s or more
    on one processor, while most of its threads ran on another.

    detach : whether the daemon is to outlive this process. If so, this process does not wait for
        its end
    kind : as in `lifecycle.serve`

    Raises SessionError if the daemon does not start. The message contains the last line that the
    daemon has written.
    """
    refuse_few_addresses()
    session = SessionDir.of(config_file)
    session.make()
    words, inherited = [kind] if kind else [], []
    with contextlib.ExitStack() as stack:
        if startup is not None:
            told = written(msgspec.json.encode(startup))
            stack.callback(os.close, told)
            words = [str(told)]
            fds = (told, startup.listener, startup.record, startup.lifeline)
            inherited = [fd for fd in fds if fd is not None]
        process = _start(_command(config_file, words), session, inherited)
    try:
        _wait_until_up(process, session)
    # If a signal ends this process during the wait, the daemon must be ended too, because no other
    # process would end it.
    except BaseException:
        end(process, GIVE_UP_LIMIT_S)
        raise
    if detach:
        # Popen's destructor warns of a process that still runs, unless `returncode` is set.
        process.returncode = 0
    return process


def refuse_few_addresses() -> None:
    """Raises SessionError if the limit on the address space is too low for a daemon."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    if resource.RLIM_INFINITY != limit < LEAST_ADDRESSES:
        raise SessionError(
            f"the daemon cannot start: the address space is limited to {format_size(limit)}, but a"
            f" daemon needs {format_size(LEAST_ADDRESSES)}; raise the limit with `ulimit -v"
            f" {LEAST_ADDRESSES >> 10}` or more, or raise the job's limit"
        )


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
            pass_fds=fds,
        )
    finally:
        os.close(errors)


def wait_for(process: "subprocess.Popen[bytes]", session: SessionDir) -> None:
    """Waits until the daemon ends. If this process receives one of the signals ENDING, it sends
    SIGTERM to the daemon. If the daemon has failed, raises SessionError with the last line that the
    daemon has written. If threads of an ended daemon hang in a source, the daemon's exit status is
    not available. The daemon is then assumed to have ended properly."""
    handle(ENDING, lambda *_: process.terminate())
    daemon = Identity.of(process.pid)
    while process.poll() is None and not (daemon.has_ended and daemon.wait(0)):
        time.sleep(END_PAUSE_S)
    if status := process.poll():
        raise SessionError(f"the daemon has ended: {_last_words(session, status)}")


def written(data: bytes) -> int:
    """Returns a descriptor from which `data` can be read. The data lie in a file without a name,
    which is freed when its last descriptor is closed. Raises OSError if there is no memory."""
    fd = os.memfd_create("monarch-start", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
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
    # Lines that the logger has written, which begin with a timestamp, do not contain the reason.
    said = [line for line in lines if not LOGGED.match(line)]
    if not said:
        # The log is a file in shared memory. If shared memory is full, or if the process may not
        # write files, the log lacks the reason.
        size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        limit = "" if size else met_limit(errno.EFBIG)
        return full_shm() or limit or f"it ended with status {status}; see {session.log}"
    return said[-1].removeprefix("monarch: ")
