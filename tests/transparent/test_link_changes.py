"""A change of a symbolic link is not a change of its target: programs still get the copy of the
target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.session import Session

# Changes each of the named links by a different call. A call may fail: an ordinary user, for
# example, may not set trusted attributes. A failed call must not change the target either.
CHANGES = """
import ctypes, os, sys
libc, source = ctypes.CDLL(None), sys.argv[1].encode()
times, here, no_follow = (ctypes.c_long * 4)(1, 1, 1, 1), os.open(source, os.O_RDONLY), 0x100
calls = {
    "lchown": lambda path, name: libc.lchown(path, -1, -1),
    "lchmod": lambda path, name: libc.lchmod(path, 0o777),
    "lutimes": lambda path, name: libc.lutimes(path, times),
    "lsetxattr": lambda path, name: libc.lsetxattr(path, b"trusted.a", b"b", 1, 0),
    "lremovexattr": lambda path, name: libc.lremovexattr(path, b"trusted.a"),
    "fchownat": lambda path, name: libc.fchownat(here, name, -1, -1, no_follow),
    "fchmodat": lambda path, name: libc.fchmodat(here, name, 0o777, no_follow),
    "utimensat": lambda path, name: libc.utimensat(here, name, times, no_follow),
    "rename": lambda path, name: libc.rename(path, path + b".new"),
    "renameat": lambda path, name: libc.renameat(here, name, here, name + b".new"),
    "unlink": lambda path, name: libc.unlink(path),
    "unlinkat": lambda path, name: libc.unlinkat(here, name, 0),
    "remove": lambda path, name: libc.remove(path),
    "link": lambda path, name: libc.link(path, path + b".new"),
    "rename_over": lambda path, name: os.symlink("x", path + b".new")
        or libc.rename(path + b".new", path),
}
if len(sys.argv) == 2:
    print(*calls)
for name in map(str.encode, sys.argv[2:]):
    calls[name.decode()](os.path.join(source, name), name)
"""
READ = """
import sys
for path in sys.argv[1:]:
    open(path, "rb").read()
"""


def test_a_targets_copy_stays(session_factory: Callable[..., Session], tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "files").mkdir(parents=True)
    session = session_factory(source, prefetch="eager")
    calls = session.python(CHANGES, source, preload=False).split()
    files = [source / "files" / call for call in calls]
    for call, file in zip(calls, files, strict=True):
        file.write_bytes(b"x" * 1000)
        (source / call).symlink_to(f"files/{call}")
    session.start().wait_idle()
    session.python(CHANGES, source, *calls)
    before = session.totals()["hits"]
    session.python(READ, *files)
    assert session.totals()["hits"] == before + len(files)
