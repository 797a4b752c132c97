"""Forks ranks of `monarch` from a process that has imported MPI and Monarch's modules.

Importing these in a new interpreter takes most of a rank's time. So mpiexec starts rank_stub.py for
each rank, and the stub lets this server fork the process that runs the command.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import marshal
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from support.forking import MOST_DESCRIPTORS, end_as, enter, fork_function, run_command

STUB = Path(__file__).with_name("rank_stub.py")
# The environment variable that sets how long ranks wait for each other [s].
JOIN_LIMIT = "TESTED_JOIN_LIMIT_S"
LARGEST_REQUEST = 1 << 20
# The descriptor of the server's listening socket (see `fork_function`).
LISTENER = 3
PR_SET_PDEATHSIG = 1
# The name of a namespace in /proc -> its flag for setns(2).
NAMESPACES = {"net": 0x40000000, "uts": 0x04000000, "ipc": 0x08000000, "mnt": 0x00020000}


@cache
def rank_program() -> list[str]:
    """Returns a command prefix that does the same as `python -m monarch_py`, but in a process that
    the server forks."""
    directory = TemporaryDirectory(prefix="ranks")
    atexit.register(directory.cleanup)
    path = f"{directory.name}/socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        fork_function("cluster.rank_server", listener.fileno())
    return [sys.executable, "-IS", str(STUB), path]


def main() -> None:
    """Runs the server until its parent ends. The parent ends with the test's process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    import mpi4py

    import monarch_py.cluster.nodes  # noqa: F401

    mpi4py.rc(initialize=False, finalize=False)
    from mpi4py import MPI  # noqa: F401

    gc.collect()
    gc.freeze()
    listener = socket.socket(fileno=LISTENER)
    while True:
        stub, _ = listener.accept()
        if not os.fork():
            listener.close()
            end_as(partial(_keep, stub))
        stub.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _keep(stub: socket.socket) -> None:
    """Forks the process of a rank, and sends it the signals that the stub has received. If the stub
    ends, the process is killed. If the process ends, the stub gets the exit status."""
    data, fds, *_ = socket.recv_fds(stub, LARGEST_REQUEST, MOST_DESCRIPTORS)
    request = marshal.loads(data)
    pid = os.fork()
    if not pid:
        stub.close()
        _become(request, *fds)
    for fd in fds:
        os.close(fd)
    with DefaultSelector() as either:
        either.register(end := os.pidfd_open(pid), EVENT_READ)
        either.register(stub, EVENT_READ)
        while end not in {key.fd for key, _ in either.select()}:
            (number,) = stub.recv(1) or (signal.SIGKILL,)
            os.kill(pid, number)
            if number == signal.SIGKILL:
                break
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        stub.send(str(status).encode())


def _become(request: Mapping[str, Any], *fds: int) -> NoReturn:
    """Turns the forked process into the command of a rank."""
    *own, stub = fds
    _enter_namespaces(request["pid"], stub)
    environment = request["environment"]
    if limit := environment.pop(JOIN_LIMIT, ""):
        from monarch_py.cluster import join_timeout

        join_timeout.JOIN_LIMIT_S = float(limit)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["directory"])
    _renumber(own, request["numbers"])
    # The inherited stream objects were made for the server's descriptors. If the server writes to
    # files, these objects buffer whole blocks. The rank writes to pipes, and must write each line
    # at once. So it gets new stream objects.
    sys.stdout, sys.stderr = (
        open(fd, "w", buffering=1, closefd=False)  # noqa: SIM115
        for fd in (1, 2)
    )
    end_as(lambda: _run_to_its_end(request["words"]))


def _run_to_its_end(words: Sequence[str]) -> None:
    try:
        run_command(words)
    except SystemExit as ended:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # exit(3) calls a handler of MPI, which tells mpiexec that the rank ends.
        ctypes.CDLL(None).exit(ended.code)


def _enter_namespaces(pid: int, stub: int) -> None:
    flags = 0
    for name, flag in NAMESPACES.items():
        if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}"):
            flags |= flag
    if flags:
        enter(stub, flags)


def _renumber(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Duplicates each descriptor in `fds` to the number at the same index in `numbers`. Closes all
    other descriptors from 3 on."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, MOST_DESCRIPTORS) for fd in fds]
    os.closerange(3, MOST_DESCRIPTORS)
    for fd, number in zip(high, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
