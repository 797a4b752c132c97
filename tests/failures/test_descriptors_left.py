"""The library leaves no descriptor of its own open, even if the program closes a descriptor while
the library is working with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.files import Files
from support.session import MIB, Session

# A thread maps a file while its copy is being made. Meanwhile another thread closes the descriptor.
MAP_AND_CLOSE = """
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
found = []
def map_it(fd):
    found.append(libc.mmap(None, 4096, 1, 1, fd, 0))
def waits_or_has_ended(thread):
    try:
        with open(f"/proc/self/task/{thread.native_id}/syscall") as file:
            return file.read().split()[0] == "202"
    except (FileNotFoundError, ProcessLookupError):
        return True
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    thread = threading.Thread(target=map_it, args=(fd,))
    thread.start()
    while not waits_or_has_ended(thread):
        time.sleep(0.001)
    libc.close(fd)
    thread.join()
fds = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
       and os.path.exists(f"/proc/self/fd/{fd}")]
print(len(found), [name for name in fds if not name.endswith("/fd")])
"""


def test_a_descriptor_that_is_closed_while_mmap_waits(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    files = Files(tmp_path / "source").add_many(3, 4 * MIB)
    session = session_factory(files.root, source_limits={"bandwidth": MIB}).start()
    session.wait_scanned()
    said = session.python(MAP_AND_CLOSE, *(files.path(name) for name in files.digests))
    assert said == "3 []\n"
