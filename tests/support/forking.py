"""Forks processes of `monarch` from a server process that has imported the daemon's modules.

In most tests, a daemon runs for less time than the import takes. `python -m support.forking FD` is
the server process: it answers requests on the socket FD until the socket's other end is closed.
Each test process has one server.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any, NoReturn

from monarch_py.daemon.starting import HIDDEN, _command, written
from monarch_py.ipc.session import SessionDir, open_private

LARGEST_REQUEST = 1 << 20
# The numbers of all descriptors of the server process are below this limit. A forked process closes
# all descriptors below it.
MOST_DESCRIPTORS = 64
ASKING = threading.Lock()
# The last argument of the server's command line reserves space: a forked process overwrites the
# command line with its own words.
ROOM_FOR_WORDS = "-" * 1024
# The network namespace of the calling thread, and the flag of network namespaces for setns(2).
NETWORK, CLONE_NEWNET = "/proc/thread-self/ns/net", 0x40000000
# Environment variables that are read only when a program starts. A command that needs other values
# of these variables cannot run in a forked process.
READ_AT_START = ("COVERAGE", "GLIBC", "LD_", "MALLOC", "OPENBLAS", "PYTHON")


class Child:
    """A process that the present process has forked, with the interface of subprocess.Popen."""

    def __init__(self, pid: int, words: Sequence[str]) -> None:
        self.pid, self.args = pid, list(words)
        self.returncode: int | Any = None  # as in Popen
        self._end = os.pidfd_open(pid)

    def __del__(self) -> None:
        os.close(self._end)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._look()
        return self.returncode

    def _look(self) -> int | None:
        return _status_of(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        with DefaultSelector() as ended:
            ended.register(self._end, EVENT_READ)
            ended.select(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forked(Child):
    """A process that the server has forked. Only the server, its parent, can wait for it."""

    def _look(self) -> int | None:
        status: int | None = _ask({"wait": self.pid})
        return status


Process = subprocess.Popen[bytes] | Forked


def fork_monarch(
    words: Sequence[str], environment: Mapping[str, str], out: int, err: int
) -> Forked | None:
    """Runs `monarch WORDS` with the descriptors `out` and `err` as its standard output and error.
    Returns None if the environment requires a newly started program."""
    if _is_read_at_start(environment):
        return None
    request = {"words": list(words), "environment": dict(environment), "directory": os.getcwd()}
    return Forked(_ask(request, out, err), words)


def fork_told_daemon(
    config: Path, startup: Mapping[str, Any], listener: int, log: int
) -> Forked | None:
    """Runs a daemon of a cluster as `monarch_py.daemon.starting.spawn` does. The daemon runs in the
    network namespace of the calling thread. Returns None under the same condition as fork_monarch.

    startup : the fields of StartupInfo, except the listener
    listener : the descriptor of the socket at which the daemon listens
    log : the descriptor of the daemon's log
    """
    environment = {k: v for k, v in os.environ.items() if k not in HIDDEN}
    if _is_read_at_start(environment):
        return None
    with ExitStack() as stack:
        null = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, null)
        fds = [null, log, listener]
        if os.readlink(NETWORK) != os.readlink("/proc/self/ns/net"):
            fds.append(os.open(NETWORK, os.O_RDONLY))
            stack.callback(os.close, fds[-1])
        request = {
            "daemon": str(config),
            "startup": dict(startup),
            "environment": environment,
            "directory": "/",
        }
        return Forked(_ask(request, *fds), ["serve", str(config)])


def fork_function(module: str, *fds: int) -> Forked:
    """Runs the function `main` of a module in a forked process. In that process, the descriptors
    `fds` have the numbers from 3 on."""
    request = {"module": module, "environment": dict(os.environ), "directory": os.getcwd()}
    return Forked(_ask(request, 2, 2, *fds), [module])


def _is_read_at_start(environment: Mapping[str, str]) -> bool:
    changed = set(environment.items()) ^ set(os.environ.items())
    return any(name.startswith(READ_AT_START) for name, _ in changed)


@cache
def _server(_tester: int) -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.forking", str(its.fileno()), ROOM_FOR_WORDS],
            pass_fds=[its.fileno()],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
        )
    atexit.register(_end, ours, process)
    return ours


def _end(server: socket.socket, process: subprocess.Popen[bytes]) -> None:
    server.close()
    process.wait()


def _ask(request: dict[str, Any], *fds: int) -> Any:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    with ASKING:
        server = _server(os.getpid())
        server.sendmsg([json.dumps(request).encode()], rights)
        return json.loads(server.recv(LARGEST_REQUEST))


def _become(request: dict[str, Any], *fds: int) -> NoReturn:
    """Turns the forked process into the command or the daemon.

    fds : the process's standard output and error, followed by further descriptors that it inherits
    """
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, MOST_DESCRIPTORS) for fd in fds]
    os.closerange(3, MOST_DESCRIPTORS)
    for number, fd in enumerate(high, start=1):
        os.dup2(fd, number)
        os.close(fd)
    if "daemon" in request:
        end_as(lambda: _run_told_daemon(request, *range(3, 1 + len(fds))))
    if "module" in request:
        end_as(import_module(request["module"]).main)
    end_as(lambda: run_command(request["words"]))


def end_as(run: Callable[[], object]) -> NoReturn:
    """Calls `run`, and then ends this process. The exit status is that of a program that ends as
    `run` has ended: by returning, by SystemExit, or by another exception."""
    status: Any = 1
    try:
        run()
        status = 0
    except SystemExit as ended:
        status = 0 if ended.code is None else ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        if not isinstance(status, int):
            print(status, file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status if isinstance(status, int) else 1)


def _status_of(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _show_as(words: Sequence[str]) -> None:
    """Makes /proc show these words as the process's command line, by which tests find daemons."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = (int(fields[number - 3]) for number in (48, 49))
    data = "\0".join(words).encode()[: end - begin - 1]
    ctypes.memmove(begin, data.ljust(end - begin, b"\0"), end - begin)


def run_command(words: Sequence[str]) -> None:
    from monarch_py.__main__ import main
    from monarch_py.daemon import starting

    starting._start = _fork_daemon  # type: ignore[assignment]
    _show_as([sys.executable, "-m", "monarch_py", *words])
    sys.argv = ["monarch", *words]
    main()


def _fork_daemon(command: list[str], session: SessionDir, fds: Sequence[int]) -> Child:
    """Replaces `monarch_py.daemon.starting._start`: forks the daemon instead of starting a
    program."""
    errors = open_private(session.log, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if pid := os.fork():
        os.close(errors)
        return Child(pid, command)
    try:
        # Keeps the parent's objects alive, because their finalizers would close descriptor numbers
        # that the child uses for other files.
        gc.freeze()
        os.setsid()
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for number, fd in enumerate((null, null, errors)):
            os.dup2(fd, number, inheritable=True)
        for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *fds}:
            with suppress(OSError):
                os.close(number)
        for name in HIDDEN:
            os.environ.pop(name, None)
        _leave_signals()
        logging.root.handlers.clear()
        _run_daemon(command)
    finally:
        os._exit(1)


def _leave_signals() -> None:
    """Resets handled signals to their defaults; ignored signals stay ignored, as in a newly started
    program."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run_daemon(command: Sequence[str]) -> None:
    from monarch_py.daemon.lifecycle import main

    _show_as(command)
    # the command is: ... -c CODE PACKAGE WORDS...; the daemon reads only the words
    code = command.index("-c")
    sys.argv = ["-c", *command[code + 3 :]]
    main()


def enter(namespace: int, flags: int = CLONE_NEWNET) -> None:
    """Moves the calling thread into a namespace.

    namespace : a descriptor of the namespace, which this function closes
    flags : the kinds of namespaces, as for setns(2)
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, flags) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)


def _enter_tests_network() -> None:
    """Enters the network namespace of the test's process. The server may have been started by a
    thread that was in the network of a test's node. The processes that the server forks must not be
    in that network."""
    theirs = f"/proc/{os.getppid()}/ns/net"
    if os.readlink(theirs) != os.readlink("/proc/self/ns/net"):
        enter(os.open(theirs, os.O_RDONLY))


def _run_told_daemon(request: dict[str, Any], listener: int, network: int | None = None) -> None:
    os.setsid()
    if network is not None:
        enter(network)
    told = json.dumps({**request["startup"], "listener": listener})
    _run_daemon(_command(Path(request["daemon"]), [str(written(told.encode()))]))


def _serve(requests: socket.socket) -> None:
    while True:
        data, fds, *_ = socket.recv_fds(requests, LARGEST_REQUEST, 4)
        if not data:
            return
        request = json.loads(data)
        if pid := request.get("wait"):
            requests.send(json.dumps(_status_of(pid)).encode())
            continue
        pid = os.fork()
        if not pid:
            _become(request, *fds)
        for fd in fds:
            os.close(fd)
        requests.send(json.dumps(pid).encode())


if __name__ == "__main__":
    import monarch_py.__main__
    import monarch_py.cli.lifecycle
    import monarch_py.daemon.lifecycle  # noqa: F401
    from monarch_py.config.schema import Config
    from monarch_py.yaml_files.keys import declared

    # This process imports these modules and reads the declared keys once for all processes that it
    # forks. Otherwise each daemon or command would have to do so itself.
    for name in ("difflib", "encodings.ascii", "encodings.utf_8_sig", "numpy.ma"):
        import_module(name)
    declared(Config)
    # The garbage collectors of forked processes then skip all objects that exist now.
    gc.collect()
    gc.freeze()
    _enter_tests_network()
    _serve(socket.socket(fileno=int(sys.argv[1])))
