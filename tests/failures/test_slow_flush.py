"""A promotion closes the source's file, and on this source a close is slow. Only two threads wait
for the close: the promoting thread, and a thread that locks the same file."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.files import Files, digest
from support.session import IN_UNITS, MIB, Session, wait_until
from support.steps import Steps

from monarch_py.demo.slowsource import SlowSource

SIZE, FLUSH_S = MIB + 17, 4.0
# The program's arguments are two files, A and B. When A has a copy, a thread reads A. Meanwhile the
# main thread locks B and forks. It then uses and closes the descriptor from which the thread reads,
# and locks A through another descriptor. The program reports how long each call took.
PROGRAM = """
a, b = (os.open(path, os.O_RDONLY) for path in sys.argv[1:3])
again = os.open(sys.argv[1], os.O_RDONLY)
def lock(fd):
    fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_RDLCK, 0, 0, 0, 0))
def fork():
    child = os.fork()
    if not child:
        os._exit(0)
def timed(call, *arguments):
    begin = time.monotonic()
    call(*arguments)
    return time.monotonic() - begin
os.pread(a, 10, 0)
step()
took, got = [], []
reader = threading.Thread(
    target=lambda: took.append(timed(lambda: got.append(sha(os.pread(a, 10, 0))))))
reader.start()
step()
waits = [timed(fcntl.flock, b, fcntl.LOCK_SH), timed(lock, b), timed(fork),
         timed(os.pread, a, 10, 0), timed(os.lseek, a, 5, 0), timed(os.close, a)]
waits.append(timed(lock, again))
reader.join()
step(got + took + waits)
os.wait()  # when the child ends, the kernel closes its descriptors
step()
"""
# Prints whether another process has a lock on the file.
LOCKED = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
asked = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
print(struct.unpack("hhqqi", fcntl.fcntl(fd, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)
"""


@pytest.mark.usefixtures("alone")
def test_nobody_waits_for_the_close_of_a_file_that_a_copy_has_replaced(
    session_factory: Callable[..., Session], slow_factory: Callable[..., SlowSource]
) -> None:
    source = slow_factory(flush=True)
    files, path = Files(source.backing), {}
    for name in "ab":
        files.add(name, SIZE)
        path[name] = source.mountpoint / name
    session = session_factory(source.mountpoint, prefetch="on_demand", **IN_UNITS).start()
    session.wait_scanned()
    with Steps(session, PROGRAM, path["a"], path["b"]) as program:
        program.wait()
        wait_until(lambda: session.status()["sources"][0]["present"] >= 1, what="a copy")
        session.wait_idle()
        source.reset()
        source.latency(fsync=FLUSH_S)
        program.go()
        program.wait()
        wait_until(lambda: source.counts()["fsync"] == 1, what="the close")
        program.go()
        ((got, read, *waits, lock),) = program.wait()
        assert got == digest(files.root.joinpath("a").read_bytes()[:10])
        assert max(waits) < FLUSH_S / 3, waits
        assert read > FLUSH_S * 0.9
        # At the slow close, the kernel drops the process's locks on the file. So a new lock has to
        # wait until the close has ended.
        assert lock > FLUSH_S / 3
        source.latency(fsync=0)
        program.go()
        program.wait()
        assert session.python(LOCKED, path["a"], preload=False) == "True\n"
        program.go()
        program.end()
