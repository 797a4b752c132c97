"""Programs and users get the same results from the slow source as from the directory behind it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.slowsource import MOUNT_AND_READ, REPOSITORY

from monarch_py.demo.slowsource import SlowSource

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


def rename(old: Path, new: Path, flags: int) -> int:
    """Calls renameat2(2). Returns 0, or the number of the error."""
    libc = ctypes.CDLL(None, use_errno=True)
    at_cwd = -100
    failed = libc.renameat2(at_cwd, bytes(old), at_cwd, bytes(new), flags)
    return ctypes.get_errno() if failed else 0


def error_of(call: Callable[[], object]) -> object:
    """Returns the result of the call, or the name of its error."""
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def names_and_links(d: Path) -> Iterator[Any]:
    (d / "a").write_bytes(b"aaa")
    os.link(d / "a", d / "b")
    (d / "b").write_bytes(b"through b")
    yield (d / "a").read_bytes(), os.stat(d / "a").st_nlink, os.path.samefile(d / "a", d / "b")
    os.symlink("a", d / "s")
    yield os.readlink(d / "s"), (d / "s").read_bytes(), os.lstat(d / "s").st_size
    (d / "c").write_bytes(b"ccc")
    no_replace, exchange = 1, 2
    yield rename(d / "a", d / "c", no_replace), rename(d / "a", d / "c", exchange)
    yield (d / "a").read_bytes(), (d / "c").read_bytes(), rename(d / "c", d / "z", 0)
    (d / "sub").mkdir(mode=0o751)
    (d / "sub" / "x").touch()
    yield error_of((d / "sub").rmdir), error_of((d / "sub").mkdir), error_of((d / "q").unlink)
    os.mkfifo(d / "fifo", 0o640)
    for i in range(2000):
        (d / "sub" / f"{i:0120}").touch()
    yield len(os.listdir(d / "sub")), sorted(os.listdir(d))
    yield [(e.name, stat.S_IFMT(e.stat(follow_symlinks=False).st_mode)) for e in sorted_entries(d)]


def sorted_entries(d: Path) -> list[os.DirEntry[str]]:
    with os.scandir(d) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def attributes(d: Path) -> Iterator[Any]:
    (d / "f").write_bytes(bytes(10_000))
    os.chmod(d / "f", 0o640)
    os.utime(d / "f", ns=(1_000_000_001, 2_000_000_002))
    s = os.stat(d / "f")
    yield s.st_mode, s.st_size, s.st_atime_ns, s.st_mtime_ns, s.st_uid, s.st_gid, s.st_blocks
    os.truncate(d / "f", 5)
    yield (d / "f").read_bytes(), error_of(lambda: os.chown(d / "f", os.getuid(), os.getgid()))
    yield error_of(lambda: os.getxattr(d / "f", "user.a"))
    yield error_of(lambda: os.setxattr(d / "f", "user.a", b"1" * 300))
    yield error_of(lambda: os.getxattr(d / "f", "user.a"))
    yield error_of(lambda: os.listxattr(d / "f"))
    yield error_of(lambda: os.setxattr(d / "f", "user.a", b"2", os.XATTR_CREATE))
    yield error_of(lambda: os.removexattr(d / "f", "user.a"))
    yield error_of(lambda: os.listxattr(d / "f"))
    v = os.statvfs(d)
    yield v.f_bsize, v.f_blocks, v.f_files, v.f_namemax


def open_files(d: Path) -> Iterator[Any]:
    with (d / "f").open("w+b", buffering=0) as file:
        file.write(b"one")
        (d / "f").unlink()
        os.fchmod(file.fileno(), 0o600)
        file.truncate(5)
        s = os.fstat(file.fileno())
        yield s.st_nlink, s.st_size, s.st_mode, os.pread(file.fileno(), 10, 0)
    with (d / "g").open("ab", buffering=0) as one, (d / "g").open("ab", buffering=0) as two:
        one.write(b"1")
        two.write(b"22")
        one.write(b"333")
        yield (d / "g").read_bytes()
        fcntl.flock(one, fcntl.LOCK_EX)
        yield error_of(lambda: fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB))
    with (d / "h").open("w+b", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 8192)
        os.pwrite(file.fileno(), b"x", 1 << 20)
        yield os.fstat(file.fileno()).st_size, os.pread(file.fileno(), 2, (1 << 20) - 1)
        yield error_of(lambda: os.lseek(file.fileno(), 2 << 20, os.SEEK_DATA))
    yield error_of(lambda: os.open(d / "h", os.O_CREAT | os.O_EXCL))
    os.close(os.open(d / "h", os.O_WRONLY | os.O_TRUNC))
    yield os.stat(d / "h").st_size


@pytest.mark.parametrize("program", [names_and_links, attributes, open_files])
def test_a_program_gets_the_same_answers_as_in_the_backing_directory(
    source: SlowSource, program: Callable[[Path], Iterator[Any]]
) -> None:
    (source.backing / "plain").mkdir()
    (source.mountpoint / "mounted").mkdir()
    plain = list(program(source.backing / "plain"))
    assert list(program(source.mountpoint / "mounted")) == plain
    assert len(plain) > 3


def test_inode_numbers_and_times_are_those_of_the_backing_files(source: SlowSource) -> None:
    for name in ("a", "b"):
        (source.backing / name).write_bytes(b"x")
    (source.backing / "sub").mkdir()
    os.utime(source.backing / "a", ns=(123_456_789, 987_654_321))
    for name in ("a", "b", "sub", "."):
        here, there = os.stat(source.mountpoint / name), os.stat(source.backing / name)
        for field in ("st_ino", "st_mode", "st_size", "st_mtime_ns", "st_ctime_ns", "st_nlink"):
            assert getattr(here, field) == getattr(there, field), (name, field)
    assert {e.inode() for e in os.scandir(source.mountpoint)} == {
        e.inode() for e in os.scandir(source.backing)
    }


# ---- users ----


@needs_root
def test_what_another_user_makes_is_that_users(source: SlowSource) -> None:
    nobody = pwd.getpwnam("nobody")
    os.chmod(source.backing, 0o777)
    group_dir = source.backing / "group"
    group_dir.mkdir()
    os.chown(group_dir, 0, 12345)
    os.chmod(group_dir, 0o2777)
    (source.backing / "private").write_bytes(b"secret")
    os.chmod(source.backing / "private", 0o600)
    script = "echo x > f && mkdir d && ln -s f s && echo y > group/f && ! cat private 2>/dev/null"
    subprocess.run(
        ["sh", "-c", f"umask 027; {script}"],
        # The child process enters its working directory before it changes its user. Afterwards it
        # could not, because other users may not enter pytest's directories.
        cwd=source.mountpoint,
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        check=True,
    )
    mine = {"f": 0o640, "d": 0o750, "s": 0o777, "group/f": 0o640}
    for name, mode in mine.items():
        s = os.lstat(source.backing / name)
        assert s.st_uid == nobody.pw_uid, name
        assert s.st_gid == (12345 if name == "group/f" else nobody.pw_gid), name
        assert stat.S_IMODE(s.st_mode) == mode, name


def python_for(user: str) -> list[str]:
    """Returns the command of an interpreter that runs as `user`. Skips the test if the user may run
    no interpreter."""
    become = ["setpriv", f"--reuid={user}", f"--regid={user_group(user)}", "--clear-groups"]
    script = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); import monarch_py.demo"
    for python in (sys.executable, "/usr/bin/python3"):
        ran = subprocess.run([*become, python, "-c", script], capture_output=True, check=False)
        if ran.returncode == 0:
            return [*become, python]
    pytest.skip(f"the user {user} can run no interpreter here, or cannot read this checkout")


def user_group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


@needs_root
@pytest.mark.skipif(not shutil.which("fusermount3"), reason="fusermount3 is missing")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is missing")
def test_a_plain_user_can_mount(binary: Path) -> None:
    if os.stat("/dev/fuse").st_mode & 0o006 != 0o006:
        pytest.skip("/dev/fuse is closed to all but root")
    python = python_for("nobody")
    with tempfile.TemporaryDirectory() as home:
        shutil.copy(binary, home)
        for name in ("b", "m"):
            Path(home, name).mkdir()
        Path(home, "b", "f").write_text("read")
        for path in (home, f"{home}/b", f"{home}/m", f"{home}/b/f"):
            shutil.chown(path, "nobody", user_group("nobody"))
        ran = subprocess.run(
            [*python, "-c", MOUNT_AND_READ, str(REPOSITORY), home],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.stdout, ran.stderr) == ("read 1\n", "")
        assert not os.path.ismount(Path(home, "m"))
