"""Tests of promotion: a complete copy takes the place of its source file on an open descriptor,
unless the descriptor's offset is in use or the file is locked."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.draws import cases
from support.files import Files, digest, random_bytes
from support.session import IN_UNITS, MIB, Session, wait_until
from support.steps import Steps

from monarch_py.storage.tiers import tier_root

SIZE = 3 * MIB + 17


def content(name: str) -> bytes:
    return random_bytes(SIZE, (name, 0))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path / "source")
    for name in "abc":
        made.add(name, SIZE)
    return made


@pytest.fixture
def session(session_factory: Callable[..., Session], files: Files) -> Session:
    made = session_factory(files.root, **IN_UNITS).start()
    made.wait_scanned()
    return made


def wait_present(session: Session, count: int = 1) -> None:
    wait_until(lambda: session.status()["sources"][0]["present"] >= count, what=f"{count} copies")


@contextmanager
def opened_before_copies(
    session: Session, script: str, *words: object
) -> Iterator[tuple[Steps, list[Any]]]:
    """Runs `script` up to its first step() while the daemon is suspended, so that none of the files
    that the script opens has a copy yet. Then lets the daemon continue. Yields the program and the
    argument of the first step()."""
    assert session.daemon is not None
    session.daemon.send_signal(signal.SIGSTOP)
    with Steps(session, script, *words) as program:
        first = program.wait()
        session.daemon.send_signal(signal.SIGCONT)
        yield program, first


# --- what is promoted ----------------------------------------------------------------------------

# usage: FLAGS FILE...   Reads each file at explicit offsets before and after its copy is complete.
BY_OFFSETS = """
def look(fd):
    st = os.fstat(fd)
    seen = [getattr(st, "st_" + name) for name in
            ("dev", "ino", "mode", "nlink", "uid", "gid", "size", "mtime_ns", "ctime_ns")]
    return [seen, fcntl.fcntl(fd, fcntl.F_GETFD), fcntl.fcntl(fd, fcntl.F_GETFL)]
fds = [os.open(path, int(sys.argv[1])) for path in sys.argv[2:]]
for fd in fds:  # Python itself makes every descriptor close-on-exec
    os.set_inheritable(fd, not int(sys.argv[1]) & os.O_CLOEXEC)
before = [look(fd) for fd in fds]
for fd in fds:
    os.pread(fd, 1000, 0)
step(before)
parts = [[os.pread(fd, 1 << 18, at) for at in range(0, os.fstat(fd).st_size, 1 << 18)]
         for fd in fds]
step([sha(b"".join(part)) for part in parts], [look(fd) for fd in fds],
     [os.readlink(f"/proc/self/fd/{fd}") for fd in fds], [os.lseek(fd, 0, 1) for fd in fds])
"""


FLAGS = [0, os.O_CLOEXEC, os.O_NONBLOCK, os.O_NOFOLLOW | os.O_CLOEXEC]


@pytest.mark.parametrize("flags", cases(FLAGS, [0, os.O_NOFOLLOW | os.O_CLOEXEC]))
def test_a_descriptor_used_with_offsets_alone_moves_to_the_copy(
    session: Session, files: Files, flags: int
) -> None:
    words = [flags, *(files.path(name) for name in "abc")]
    with opened_before_copies(session, BY_OFFSETS, *words) as (program, (before,)):
        assert [bool(fd_flags & fcntl.FD_CLOEXEC) for _, fd_flags, _ in before] == [
            bool(flags & os.O_CLOEXEC)
        ] * 3
        wait_present(session, 3)
        program.go()
        digests, after, names, offsets = program.wait()
        assert digests == [files.digests[name] for name in "abc"]
        assert after == before
        assert {Path(name).parent for name in names} == {tier_root(session.tiers[0]) / "c"}
        assert offsets == [0, 0, 0]
        assert session.totals()["promotions"] == 3
        program.end()


def test_a_child_that_closes_everything_takes_nothing_from_its_parent(
    session: Session, files: Files
) -> None:
    """If a child of vfork closes all its descriptors before its exec, the parent's descriptors are
    still promoted, although the child runs in the parent's memory."""
    script = BY_OFFSETS.replace("step(before)", "subprocess.run(['true']); step(before)")
    with opened_before_copies(session, script, os.O_CLOEXEC, files.path("a")) as (program, _):
        wait_present(session)
        program.go()
        assert program.wait()[0] == [files.digests["a"]]
        assert session.totals()["promotions"] == 1
        program.end()


def test_a_copy_that_is_gone_takes_no_place(session: Session, files: Files) -> None:
    with opened_before_copies(session, BY_OFFSETS, os.O_CLOEXEC, files.path("a")) as (program, _):
        wait_present(session)
        for copy in (tier_root(session.tiers[0]) / "c").iterdir():
            copy.unlink()
        program.go()
        digests, _, names, _ = program.wait()
        assert (digests, names) == ([files.digests["a"]], [str(files.path("a"))])
        assert session.totals()["promotions"] == 0
        program.end()


def test_a_promoted_descriptor_outlives_its_copy(session: Session, files: Files) -> None:
    script = BY_OFFSETS + "step(sha(os.pread(fds[0], 1 << 30, 0)), look(fds[0]))"
    opening = opened_before_copies(session, script, os.O_CLOEXEC, files.path("a"))
    with opening as (program, (before,)):
        wait_present(session)
        program.go()
        program.wait()
        session.forget()
        wait_until(
            lambda: not list((tier_root(session.tiers[0]) / "c").iterdir()), what="no copies"
        )
        program.go()
        assert program.wait() == [files.digests["a"], before[0]]
        program.end()


# --- descriptors whose offset is in use ----------------------------------------------------------

# Each entry defines take(n), which reads n bytes at the descriptor's offset. The program takes the
# first bytes, makes a pread, which could promote the descriptor, and then takes the rest.
WAYS = {
    "read": "fd = os.open(path, 0)\ndef take(n): return os.read(fd, n)",
    "readv": """fd = os.open(path, 0)
def take(n):
    part = bytearray(n); return bytes(part[:os.readv(fd, [part])])""",
    "preadv2": """fd = os.open(path, 0)
class Part(ctypes.Structure): _fields_ = [("at", ctypes.c_void_p), ("n", ctypes.c_size_t)]
def take(n):
    room = ctypes.create_string_buffer(n)
    part = Part(ctypes.addressof(room), n)
    done = libc.preadv2(fd, ctypes.byref(part), 1, ctypes.c_long(-1), 0)
    return room.raw[:done]""",
    "lseek": """fd = os.open(path, 0)
at = 0
def take(n):
    global at
    data = os.pread(fd, n, os.lseek(fd, 0, os.SEEK_CUR)); at += len(data)
    assert os.lseek(fd, len(data), os.SEEK_CUR) == at; return data""",
    "fdopen": """fd = os.open(path, 0)
file = os.fdopen(fd, "rb")
def take(n): return file.read(n)""",
    "fopen": """libc.fopen.restype = ctypes.c_void_p
libc.fread.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
libc.fileno.argtypes = [ctypes.c_void_p]
file = libc.fopen(path.encode(), b"r")
fd = libc.fileno(file)
def take(n):
    room = ctypes.create_string_buffer(n)
    done = libc.fread(room, 1, n, file)
    return room.raw[:done]""",
    "c_fdopen": """libc.fdopen.restype = ctypes.c_void_p
libc.fread.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
fd = os.open(path, 0)
file = libc.fdopen(fd, b"r")
def take(n):
    room = ctypes.create_string_buffer(n)
    done = libc.fread(room, 1, n, file)
    return room.raw[:done]""",
    "sendfile": """fd = os.open(path, 0)
def take(n):
    sink = os.memfd_create("sink")
    while n and (done := os.sendfile(sink, fd, None, n)): n -= done
    data = os.pread(sink, 1 << 30, 0); os.close(sink); return data""",
    "copy_file_range": """fd = os.open(path, 0)
def take(n):
    sink = os.open(os.path.dirname(path) + "/../sink", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    while n and (done := os.copy_file_range(fd, sink, n)): n -= done
    data = os.pread(sink, 1 << 30, 0); os.close(sink); return data""",
    "splice": """fd = os.open(path, 0)
out, into = os.pipe()
def take(n):
    data = b""
    while n > len(data) and (
            done := libc.splice(fd, None, into, None, min(n - len(data), 65536), 0)):
        data += os.read(out, done)
    return data""",
    "a_raw_call": """fd = os.open(path, 0)
def take(n):
    room = ctypes.create_string_buffer(n)
    done = libc.syscall(ctypes.c_long(0), fd, room, ctypes.c_size_t(n))
    return room.raw[:done]""",
    "a_duplicate": "fd = os.open(path, 0)\nother = os.dup(fd)\n"
    "def take(n): return os.read(other, n)",
    "a_child": """fd = os.open(path, 0)
def take(n):
    out, into = os.pipe()
    if not (child := os.fork()):
        data = os.read(fd, n)
        while data: data = data[os.write(into, data):]
        os._exit(0)
    os.close(into)
    data = b"".join(iter(lambda: os.read(out, 1 << 16), b""))
    os.close(out); os.waitpid(child, 0); return data""",
    "a_program_that_inherits_it": """fd = os.open(path, 0)
def take(n):
    words = ["dd", "status=none", "bs=%d" % n, "count=1", "iflag=fullblock"]
    return subprocess.run(words, stdin=fd, stdout=subprocess.PIPE, check=True).stdout""",
}
POSITION = """
path = sys.argv[1]
{way}
pieces = [take(10_000)]
step()
pread = [sha(os.pread(fd, 5_000, 300))]
while pieces[-1]: pieces.append(take(1 << 20))
step(sha(b"".join(pieces)), pread)
"""


# These entries of WAYS cover all code paths in the library. Each of the other entries takes the
# code path of one of these entries: `readv` takes that of `read`, fdopen in C takes that of
# `fopen`, and a forked child takes that of a program that inherits the descriptor.
SOME_WAYS = [
    "read",
    "preadv2",
    "lseek",
    "fopen",
    "sendfile",
    "splice",
    "a_raw_call",
    "a_duplicate",
    "a_program_that_inherits_it",
]


@pytest.mark.parametrize("way", cases(WAYS, SOME_WAYS))
def test_a_position_in_use_is_never_lost(session: Session, files: Files, way: str) -> None:
    if way == "a_raw_call" and os.uname().machine != "x86_64":
        pytest.skip("a_raw_call uses the system call number of read() on x86-64")
    with Steps(session, POSITION.format(way=WAYS[way]), files.path("a")) as program:
        program.wait()
        wait_present(session)
        program.go()
        whole, pread = program.wait()
        assert pread == [digest(content("a")[300:5300])]
        assert whole == files.digests["a"]
        program.end()


# forkpty(3) forks inside libc, where the library does not see the fork. Parent and child share the
# offset of the descriptor that the child uses.
FORKED_UNSEEN = """
fd = os.open(sys.argv[1], 0)
os.pread(fd, 1000, 0)
step()
child, terminal = os.forkpty()
if not child:
    for at in range(0, os.fstat(fd).st_size, 1 << 18): os.pread(fd, 1 << 18, at)
    os.lseek(fd, 5000, 0)
    os._exit(0)
os.waitpid(child, 0)
step(os.lseek(fd, 0, 1))
"""


def test_a_child_of_a_fork_inside_libc_shares_the_position(session: Session, files: Files) -> None:
    with opened_before_copies(session, FORKED_UNSEEN, files.path("a")) as (program, _):
        wait_present(session)
        program.go()
        assert program.wait() == [5000]
        assert session.totals()["promotions"] == 0
        program.end()


# --- locks and signals ---------------------------------------------------------------------------

# Kinds of locks on the file of `fd`; each of them must prevent a promotion.
LOCKS = {
    "flock": "fcntl.flock(fd, fcntl.LOCK_EX)",
    "posix": "fcntl.fcntl(fd, fcntl.F_SETLK, LOCK)",
    "posix_wait": "fcntl.fcntl(fd, fcntl.F_SETLKW, LOCK)",
    "ofd": "fcntl.fcntl(fd, 37, LOCK)",
    "lease": "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)",
}
# The locks are shared: the descriptor is not open for writing, so F_WRLCK would fail with EBADF.
LOCKING = """
LOCK = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel sends SIGIO to break a lease
path, where = sys.argv[1:]
fd = os.open(path, 0)
reader = os.open(path, 0) if where == "another" else fd
step()  # no read so far: the copy may be complete, and a read would then promote the descriptor
if where == "of_the_copy":
    fd = os.open(path, 0)
{lock}
found = [sha(os.pread(reader, 5_000, 300)) for _ in range(3)]
step(found, os.readlink("/proc/self/fd/%d" % reader))
"""
# For each kind of lock: how a second process tries to take a conflicting lock.
OTHERS = {
    "flock": "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
    "posix": "fcntl.fcntl(fd, fcntl.F_SETLK, LOCK)",
    "posix_wait": "fcntl.fcntl(fd, fcntl.F_SETLK, LOCK)",
    "ofd": "fcntl.fcntl(fd, 37, LOCK)",
    "lease": "os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))",
}
OTHER = """
LOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
path = sys.argv[1]
fd = os.open(path, 0 if {lease} else os.O_RDWR)
try: {other}; step("taken")
except BlockingIOError: step("held")
"""


WHERE = ["the_same", "another", "of_the_copy"]
# These cases cover each kind of lock. For a POSIX lock, all values of WHERE are tried, because the
# kernel drops the lock when the process closes any descriptor of the file, not only the locked one.
SOME_LOCKS = [
    ("flock", "of_the_copy"),
    ("posix", "the_same"),
    ("posix", "another"),
    ("posix_wait", "of_the_copy"),
    ("ofd", "another"),
    ("lease", "the_same"),
]


@pytest.mark.parametrize(
    "case", cases(((kind, where) for kind in OTHERS for where in WHERE), SOME_LOCKS), ids="-".join
)
def test_a_lock_outlives_all_promotions_that_could_have_been(
    session: Session, files: Files, case: tuple[str, str]
) -> None:
    """While a file is locked, none of its descriptors is promoted, and the lock is kept. A
    promotion would drop POSIX locks, because the kernel drops them at a close, dup2 or dup3 of any
    descriptor of the file."""
    kind, where = case
    script = LOCKING.format(lock=LOCKS[kind])
    other = OTHER.format(other=OTHERS[kind], lease=kind == "lease")
    with opened_before_copies(session, script, files.path("a"), where) as (program, _):
        wait_present(session)
        program.go()
        found, name = program.wait()
        assert found == [digest(content("a")[300:5300])] * 3
        with Steps(session, other, files.path("a"), preload=False) as stranger:
            assert stranger.wait() == ["held"]
        assert name == str(files.path("a"))
        assert session.totals()["promotions"] == 0
        program.go()
        program.end()


SETTINGS = {
    "F_SETFL": ("fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)", "fcntl.fcntl(fd, fcntl.F_GETFL)"),
    "F_SETSIG": ("fcntl.fcntl(fd, 10, signal.SIGUSR1)", "fcntl.fcntl(fd, 11)"),
    "F_SETOWN": ("fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())", "fcntl.fcntl(fd, fcntl.F_GETOWN)"),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_what_was_set_on_a_description_stays(session: Session, files: Files, kind: str) -> None:
    change, ask = SETTINGS[kind]
    script = f"""
fd = os.open(sys.argv[1], 0)
os.pread(fd, 100, 0)
step()
{change}
before = {ask}
os.pread(fd, 100, 0)
step(before, {ask})
"""
    with opened_before_copies(session, script, files.path("a")) as (program, _):
        wait_present(session)
        program.go()
        before, after = program.wait()
        assert before
        assert after == before
        assert session.totals()["promotions"] == 0
        program.end()


# --- a process that sees other files under the same names ----------------------------------------

# usage: PLANTED SOURCE TIER FILE...
# If PLANTED/root is a process's root, the process sees other files under the names of the copies.
MOVED = """
import errno
planted, source, tier, *paths = sys.argv[1:]
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
def own_mounts():
    assert libc.unshare(CLONE_NEWNS) == 0
    assert libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0
def hide(there, by):
    assert libc.mount(by.encode(), there.encode(), None, MS_BIND, None) == 0
fds = [os.open(path, 0) for path in paths]
os.pread(fds[0], 100, 0)
os.read(fds[1], 100)
step()
{move}
def name_opens():
    try: return sha(open(paths[2], "rb").read())
    except OSError as error: return error.errno
named = name_opens()
parts = [os.pread(fds[0], 1 << 22, 0), os.read(fds[1], 1 << 22)]
mapped = mmap.mmap(fds[2], 0, prot=mmap.PROT_READ)
step([sha(part) for part in [*parts, mapped]], named)
"""
MOVES = {
    "mount": "own_mounts(); hide(tier, planted + '/root' + tier)",
    "chroot": "os.chroot(planted + '/root')",
    "chroot_with_the_source": """
own_mounts()
hide(planted + '/root' + source, source)
os.chroot(planted + '/root')
""",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its root or mounts")
@pytest.mark.parametrize("move", MOVES)
def test_a_descriptor_from_before_has_its_file(
    session: Session, files: Files, tmp_path: Path, move: str
) -> None:
    """After a chroot or a mount, the paths of the copies lead to other files. A descriptor that was
    opened before still reads its own file."""
    copies = tier_root(session.tiers[0]) / "c"
    planted = tmp_path / "planted"
    words = [planted, files.root, copies, *(files.path(name) for name in "abc")]
    there, not_there = digest(content("c")), errno.ENOENT
    with Steps(session, MOVED.format(move=MOVES[move]), *words) as program:
        program.wait()
        assert session.run(["sha256sum", files.path("c")]).returncode == 0
        wait_present(session, 3)
        hidden = planted / "root" / copies.relative_to("/")
        hidden.mkdir(parents=True)
        for copy in copies.iterdir():
            (hidden / copy.name).write_bytes(bytes(SIZE))
        (planted / "root" / files.root.relative_to("/")).mkdir(parents=True)
        program.go()
        digests, named = program.wait()
        assert digests == [digest(content("a")), digest(content("b")[100:]), there]
        assert named == (not_there if move == "chroot" else there)
        program.end()
