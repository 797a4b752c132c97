"""Processes without the library create, remove and replace files. A program under the library finds
every existing file at once, and lists the changed directories correctly a second later."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.session import Session, wait_until
from support.told import directories, list_each, wait_told

from monarch_py.demo.slowsource import SlowSource

# The catalog may answer for a directory for this time [s] after the library has read the
# directory's attributes from the source.
LOOK_S = 1.0
# Checks with many different calls whether each path exists, and prints the result or the error.
ASK = """
import ctypes, errno, os, pathlib, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = ctypes.c_void_p
libc.closedir.argtypes = [ctypes.c_void_p]
top = sys.argv[1]
os.chdir(top)
top_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
def attempt(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]
def in_c(name, *args):
    return errno.errorcode[ctypes.get_errno()] if getattr(libc, name)(*args) else 0
def opened(path):
    found = libc.opendir(os.fsencode(path))
    return libc.closedir(found) if found else errno.errorcode[ctypes.get_errno()]
def handle(path):
    found, mount = ctypes.create_string_buffer((128).to_bytes(4, "little"), 136), ctypes.c_int()
    return in_c("name_to_handle_at", -100, os.fsencode(path), found, ctypes.byref(mount), 0)
def kind(path, **more):
    found = os.stat(path, **more)
    return found.st_ino, found.st_mode, found.st_size
def inside(path):
    os.chdir(path)
    try:
        return kind("."), kind(".."), os.access(".", os.F_OK), sorted(os.listdir()), \
            os.path.exists("f"), kind("../a"), os.getcwd()
    finally:
        os.fchdir(top_fd)
calls = {
    "stat": kind,
    "lstat": lambda p: kind(p, follow_symlinks=False),
    "fstatat": lambda p: kind(p, dir_fd=top_fd),
    "exists": os.path.exists, "lexists": os.path.lexists, "isdir": os.path.isdir,
    "access": lambda p: [os.access(p, m) for m in (os.F_OK, os.R_OK, os.R_OK | os.X_OK)],
    "faccessat": lambda p: os.access(p, os.R_OK, dir_fd=top_fd, follow_symlinks=False),
    "effective": lambda p: os.access(p, os.R_OK, effective_ids=True),
    "euidaccess": lambda p: in_c("euidaccess", os.fsencode(p), os.R_OK),
    "eaccess": lambda p: in_c("eaccess", os.fsencode(p), os.F_OK),
    "readlink": lambda p: os.readlink(p),
    "realpath": os.path.realpath,
    "handle": handle,
    "statvfs": lambda p: os.statvfs(p).f_bsize,
    "opendir": opened,
    "listdir": lambda p: sorted(os.listdir(p)),
    "open": lambda p: pathlib.Path(p).read_bytes(),
    "in it": inside,
}
for path in sys.argv[2:]:
    for spelled in (path, f"{top}/{path}", f"./{path}/", f"d/../{path}"):
        for name, call in calls.items():
            print(spelled, name, attempt(lambda: call(spelled)))
"""
# Lists every directory with different functions of Python. Also prints inodes and types.
LIST = """
import glob, os, pathlib, sys
top = sys.argv[1]
for way in (os.walk, lambda t: os.walk(t, followlinks=True), lambda t: os.walk(t, topdown=False)):
    for found in way(top):
        print(found)
for folder in sorted(d for d, _, _ in os.walk(top, followlinks=True)):
    st = os.stat(folder)
    print(folder, st.st_mtime_ns, st.st_ctime_ns, st.st_nlink, st.st_size)
    for e in os.scandir(folder):
        print(e.name, e.inode(), e.is_symlink(), e.is_dir(follow_symlinks=False))
print(sorted(glob.glob(top + "/**", recursive=True)), list(pathlib.Path(top).rglob("*")))
for path in sys.argv[2:]:
    try:
        print(path, os.listdir(path))
    except OSError as error:
        print(path, error.errno)
"""


def same(session: Session, script: str, *args: str | Path) -> str:
    """Runs a Python script with and without the library, checks that the output is the same, and
    returns it."""
    argv = [sys.executable, "-I", "-S", "-c", script, *map(str, args)]
    with_it, without = (session.run(argv, preload=preload) for preload in (True, False))
    assert (with_it.returncode, with_it.stderr) == (0, "")
    assert with_it.stdout.splitlines() == without.stdout.splitlines()
    return str(with_it.stdout)


def make(root: Path) -> None:
    (root / "d" / "sub").mkdir(parents=True)
    (root / "e").mkdir()
    for name in ("a", "b", "d/x", "d/y", "d/sub/z", "e/old"):
        (root / name).write_text(f"the content of {name}")
    (root / "to_d").symlink_to("d")
    (root / "to_later").symlink_to("later")
    (root / "to_below").symlink_to("d/later/f")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session over a source with a tree for each test. All files have copies."""
    top = tmp_path_factory.mktemp("new_names")
    for tree in ("exist", "list"):
        make(top / "source" / tree)
    for i in range(12):
        (top / "source" / "poll" / f"{i:02d}" / "old").mkdir(parents=True)
    with Session(top, top / "source", prefetch="eager") as session:
        session.start()
        wait_told(session)
        session.wait_all_present()
        yield session


@pytest.fixture(scope="module")
def slow(
    tmp_path_factory: pytest.TempPathFactory, slowsource_binary: Path
) -> Iterator[tuple[Session, SlowSource]]:
    """A session over a source that counts the operations on it. The kernel caches none of the
    source's names and attributes."""
    top = tmp_path_factory.mktemp("slow_names")
    backing, mountpoint = top / "backing", top / "mount"
    mountpoint.mkdir()
    make(backing)
    with (
        SlowSource(backing, mountpoint, binary=slowsource_binary, attr_timeout=0) as source,
        Session(top, mountpoint) as session,
    ):
        session.start()
        wait_told(session, directories(mountpoint))
        yield session, source


def test_what_is_made_around_the_library_exists_at_once(session: Session) -> None:
    top = session.source / "exist"
    for name in ("new", "d/new", "e/new/deep"):
        (top / name).mkdir(parents=True)
        (top / name / "f").write_text(f"in {name}")
    (top / "later").mkdir()
    (top / "later" / "f").write_text("later")
    (top / "d" / "later").mkdir()
    (top / "d" / "later" / "f").write_text("later")
    (top / "d" / "fresh").write_text("fresh")
    (top / ".hidden").mkdir()
    (top / "new" / "back").symlink_to("../d/fresh")
    asked = ["new", "new/f", "new/back", "d/new", "d/new/f", "d/fresh", "e/new", "e/new/deep/f"]
    asked += ["to_later", "to_later/f", "to_below", "to_d/fresh", "to_d/new", ".hidden"]
    asked += ["nothing", "new/nothing", "d/x/below", "n" * 300]
    said = same(session, ASK, top, *asked)
    assert "new stat (" in said
    # The daemon may have found some of the names since the first run. The results must still be the
    # same.
    assert same(session, ASK, top, *asked) == said


def test_listings_are_the_sources_a_second_later(session: Session) -> None:
    top = session.source / "list"
    later = time.monotonic() + LOOK_S
    (top / "new").mkdir()
    (top / "new" / "f").touch()
    (top / "d" / "fresh").touch()
    (top / "d" / "y").unlink()
    (top / "fresh").write_text("replaced")
    os.replace(top / "fresh", top / "a")
    shutil.rmtree(top / "e")
    (top / "e").mkdir()
    (top / "e" / "other").touch()
    (top / "to_d").unlink()
    (top / "to_d").symlink_to("e")
    shutil.rmtree(top / "d" / "sub")
    time.sleep(max(0, later - time.monotonic()))
    said = same(session, LIST, top, top / "to_d", top / "d" / "sub", top / "new")
    assert "'other'" in said and "'y'" not in said


POLL = """
import os, sys, time
folders = sorted(e.path for e in os.scandir(sys.argv[1]))
end = time.monotonic() + 30
while os.path.exists(sys.argv[1]) and time.monotonic() < end:
    for folder in folders:
        try:
            before, names = os.stat(folder).st_mtime_ns, os.listdir(folder)
            print(before, os.stat(folder).st_mtime_ns, folder, len(names), flush=True)
        except FileNotFoundError:
            pass
"""


def is_said(file: Path, end: str) -> bool:
    return f"{end}\n" in file.read_text()


def test_a_directory_has_the_time_of_the_listing_that_it_tells(
    session: Session, tmp_path: Path
) -> None:
    """While a directory changes, a program never sees the mtime of one listing together with the
    names of another. Python's importer, for example, lists a directory again only if its mtime has
    changed."""
    source = session.source / "poll"
    truth = {(str(f), f.stat().st_mtime_ns): 1 for f in sorted(source.iterdir())}
    said = tmp_path / "said"
    argv = [sys.executable, "-I", "-S", "-c", POLL, str(source)]
    with said.open("w") as out, subprocess.Popen(argv, env=session.env(), stdout=out) as poll:
        for folder in sorted(source.iterdir()):
            wait_until(partial(is_said, said, f"{folder} 1"), what="the first listing")
            (folder / "new").mkdir()
            truth[str(folder), folder.stat().st_mtime_ns] = 2
        for folder in sorted(source.iterdir()):
            wait_until(partial(is_said, said, f"{folder} 2"), what="the listing of now")
        os.rename(source, tmp_path / "gone")
    assert poll.returncode == 0
    for line in said.read_text().splitlines():
        before, after, path, names = line.split(" ")
        if before == after:
            assert int(names) == truth[path, int(before)], line


def test_the_kernels_memory_of_a_sources_attributes_hides_nothing(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    tmp_path: Path,
) -> None:
    """The kernel caches the old times of a directory for a minute, as it may do for NFS. Without
    the library, opendir nevertheless sees new names in the directory. A program under the library
    sees them too."""
    slow = slow_factory(attr_timeout=60)
    backing = tmp_path / "backing"
    make(backing)
    session = session_factory(slow.mountpoint).start()
    wait_told(session, directories(slow.mountpoint))
    later = time.monotonic() + LOOK_S
    os.stat(slow.mountpoint / "d")  # the kernel caches these attributes
    (backing / "d" / "fresh").touch()
    (backing / "new").mkdir()
    time.sleep(max(0, later - time.monotonic()))
    script = "import os, sys; print([sorted(os.listdir(p)) for p in sys.argv[1:]])"
    said = same(session, script, slow.mountpoint, slow.mountpoint / "d", slow.mountpoint / "e")
    assert "'new'" in said and "'fresh'" in said
    assert list_each(session, [os.fsencode(slow.mountpoint / "e")]) == 1  # e is unchanged


def test_what_is_not_there_costs_the_source_what_it_costs_without_us(
    slow: tuple[Session, SlowSource],
) -> None:
    session, source = slow
    script = """
import os, sys
for i in range(50):
    for path in (f"no{i}", f"d/no{i}", f"no/no{i}", f"d/.no{i}", f"a/no{i}"):
        path = os.path.join(sys.argv[1], path)
        assert not os.path.exists(path) and not os.path.lexists(path)
        assert not os.access(path, os.R_OK)
        for call in (os.open, os.readlink, os.listdir):
            try:
                call(path, *[0] * (call is os.open))
                raise SystemExit(path)
            except OSError:
                pass
"""
    counts = []
    for preload in (True, False):
        source.reset()
        session.python(script, source.mountpoint, preload=preload)
        counts.append(sum(source.counts().values()))
    # With the library, each process also reads the attributes of the source's root, which may need
    # two more operations.
    assert 250 < counts[0] <= counts[1] + 2


def test_a_directory_that_is_listed_over_and_over_is_looked_at_once_a_second(
    slow: tuple[Session, SlowSource],
) -> None:
    session, source = slow
    time.sleep(LOOK_S)
    script = """
import os, sys, time
start = time.monotonic()
for i in range(3000):
    os.listdir(sys.argv[1] + "/d"), os.stat(sys.argv[1] + "/d")
print(time.monotonic() - start)
"""
    source.reset()
    taken = float(session.python(script, source.mountpoint))
    # To read the attributes of `d`, the kernel requests the attributes of the root and of `d` from
    # the source.
    looks = int(taken / LOOK_S) + 1
    assert 0 < sum(source.counts().values()) <= 2 * looks + 2
