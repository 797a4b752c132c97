"""The process that mpiexec starts for a rank. It lets rank_server.py fork the process that runs
`monarch`.

    python -IS rank_stub.py SOCKET WORDS...

The stub sends its environment, descriptors and namespaces to the server, passes signals on, and
ends in the same way as the forked process. To start fast, it imports only modules that an
interpreter has already loaded or that are built in.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import sys

PASSED_ON = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM)


def main() -> None:
    path, *words = sys.argv[1:]
    numbers = [0, 1, 2, *(int(os.environ[name]) for name in ("PMI_FD",) if name in os.environ)]
    request = {
        "words": words,
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "pid": os.getpid(),
        "numbers": numbers,
    }
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    server.connect(path)
    fds = [*numbers, os.pidfd_open(os.getpid())]
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
    server.sendmsg([marshal.dumps(request)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    # The forked process has duplicates of these descriptors. mpiexec notices the end of that
    # process only when all processes have closed these descriptors, so the stub must close its own.
    for number in numbers[3:]:
        os.close(number)
    for number in PASSED_ON:
        _signal.signal(number, lambda got, _: server.send(bytes([got])))
    status = int(server.recv(16) or b"1")
    if status < 0:
        if -status != _signal.SIGKILL:
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
