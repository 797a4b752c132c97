"""A complete copy takes the place of its source file on an open descriptor, and never that of
another file, of a position or of a lock.

MONARCH_STRESS_SECONDS: how long the stress at the end runs, 4 by default. Before a release:

    MONARCH_STRESS_SECONDS=60 pytest tests/failures/test_promotion.py -k stress -s
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from csrc.building import build_program
from support.files import Files, digest, random_bytes
from support.session import MIB, Session, wait_until
from support.steps import Steps

from monarch_py.demo.slowsource import SlowSource
from monarch_py.tiers import tier_root

SIZE = 3 * MIB + 17
STRESS_SECONDS = float(os.environ.get("MONARCH_STRESS_SECONDS", "4"))


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
    made = session_factory(files.root).start()
    made.wait_scanned()
    return made


def wait_present(session: Session, count: int = 1) -> None:
    wait_until(lambda: session.status()["sources"][0]["present"] >= count, what=f"{count} copies")


# --- what is promoted ----------------------------------------------------------------------------

# usage: FLAGS FILE...   Reads each by offsets alone, before and after its copy is complete.
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


@pytest.mark.parametrize("flags", [0, os.O_CLOEXEC, os.O_NONBLOCK, os.O_NOFOLLOW | os.O_CLOEXEC])
def test_a_descriptor_used_with_offsets_alone_moves_to_the_copy(
    session: Session, files: Files, flags: int
) -> None:
    words = [flags, *(files.path(name) for name in "abc")]
    with Steps(session, BY_OFFSETS, *words) as program:
        (before,) = program.wait()
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
    """Before its exec a vfork'd child runs in its parent's memory: what it closes is its own."""
    script = BY_OFFSETS.replace("step(before)", "subprocess.run(['true']); step(before)")
    with Steps(session, script, os.O_CLOEXEC, files.path("a")) as program:
        program.wait()
        wait_present(session)
        program.go()
        assert program.wait()[0] == [files.digests["a"]]
        assert session.totals()["promotions"] == 1
        program.end()


def test_a_promoted_descriptor_outlives_its_copy(session: Session, files: Files) -> None:
    script = BY_OFFSETS + "step(sha(os.pread(fds[0], 1 << 30, 0)), look(fds[0]))"
    with Steps(session, script, os.O_CLOEXEC, files.path("a")) as program:
        (before,) = program.wait()
        wait_present(session)
        program.go()
        program.wait()
        session.forget()
        wait_until(lambda: not list((tier_root(session.tiers[0]) / "c").iterdir()), what="the end")
        program.go()
        assert program.wait() == [files.digests["a"], before[0]]
        program.end()


# --- who uses the position -----------------------------------------------------------------------

# Each takes the first bytes in some way, and the rest in the same way after a read with an offset
# that could have promoted the descriptor. FIRST and REST are the same function.
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


@pytest.mark.parametrize("way", WAYS)
def test_a_position_in_use_is_never_lost(session: Session, files: Files, way: str) -> None:
    if way == "a_raw_call" and os.uname().machine != "x86_64":
        pytest.skip("the number of read() is written down for x86-64 alone")
    with Steps(session, POSITION.format(way=WAYS[way]), files.path("a")) as program:
        program.wait()
        wait_present(session)
        program.go()
        whole, pread = program.wait()
        assert pread == [digest(content("a")[300:5300])]
        assert whole == files.digests["a"]
        program.end()


# --- locks and signals ---------------------------------------------------------------------------

# lock(fd) for a descriptor of the file; tells whoever could promote it to leave it.
LOCKS = {
    "flock": "fcntl.flock(fd, fcntl.LOCK_EX)",
    "posix": "fcntl.fcntl(fd, fcntl.F_SETLK, LOCK)",
    "posix_wait": "fcntl.fcntl(fd, fcntl.F_SETLKW, LOCK)",
    "ofd": "fcntl.fcntl(fd, 37, LOCK)",
    "lease": "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)",
}
# Locks for reading where the descriptor is not open for writing; F_WRLCK would be EBADF.
LOCKING = """
LOCK = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
signal.signal(signal.SIGIO, signal.SIG_IGN)  # a lease is broken by a signal
path, where = sys.argv[1:]
fd = os.open(path, 0)
reader = os.open(path, 0) if where == "another" else fd
os.pread(reader, 100, 0)
step()
if where == "of_the_copy":
    fd = os.open(path, 0)
{lock}
found = [sha(os.pread(reader, 5_000, 300)) for _ in range(3)]
step(found, os.readlink("/proc/self/fd/%d" % reader))
"""
# A second process's answer to "could you write-lock it?" by kind; 1: no, somebody holds it.
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


@pytest.mark.parametrize("where", ["the_same", "another", "of_the_copy"])
@pytest.mark.parametrize("kind", OTHERS)
def test_a_lock_outlives_all_promotions_that_could_have_been(
    session: Session, files: Files, kind: str, where: str
) -> None:
    """POSIX locks go with any close, dup2 or dup3 of any descriptor of the file."""
    script = LOCKING.format(lock=LOCKS[kind])
    other = OTHER.format(other=OTHERS[kind], lease=kind == "lease")
    with Steps(session, script, files.path("a"), where) as program:
        program.wait()
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
    with Steps(session, script, files.path("a")) as program:
        program.wait()
        wait_present(session)
        program.go()
        before, after = program.wait()
        assert before
        assert after == before
        assert session.totals()["promotions"] == 0
        program.end()


# --- in the middle of a promotion ----------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path, slowsource_binary: Path) -> Iterator[SlowSource]:
    mountpoint, backing = tmp_path / "mount", tmp_path / "backing"
    mountpoint.mkdir()
    backing.mkdir()
    with SlowSource(backing, mountpoint, binary=slowsource_binary, attr_timeout_s=0) as mounted:
        yield mounted


# What another thread does to the descriptor while a pread is about to replace it, and what must
# hold when both are done.
MEANWHILE = {
    "lseek": ("os.lseek(fd, 5000, 0)", "os.lseek(fd, 0, 1) == 5000"),
    "read": ("first = os.read(fd, 1000)", "first + os.read(fd, 1000) == DATA[:2000]"),
    "readv": (
        "first = bytearray(1000); os.readv(fd, [first])",
        "bytes(first) + os.read(fd, 1000) == DATA[:2000]",
    ),
    "dup": ("other = os.dup(fd); os.lseek(other, 5000, 0)", "os.lseek(fd, 0, 1) == 5000"),
    "dup2": ("os.dup2(fd, 200); os.lseek(200, 5000, 0)", "os.lseek(fd, 0, 1) == 5000"),
    "F_DUPFD": (
        "other = fcntl.fcntl(fd, fcntl.F_DUPFD, 100); os.lseek(other, 5000, 0)",
        "os.lseek(fd, 0, 1) == 5000",
    ),
    "fork": (
        "child = os.fork()\nif not child: os.lseek(fd, 5000, 0); os._exit(0)\nos.waitpid(child, 0)",
        "os.lseek(fd, 0, 1) == 5000",
    ),
    "F_SETFL": (
        "fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)",
        "fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK",
    ),
    "F_SETFD": ("os.set_inheritable(fd, True)", "os.get_inheritable(fd)"),
    "close_and_reopen": (
        "os.close(fd); again = os.open(other_path, os.O_RDWR)",
        "again == fd and os.pread(fd, 10, 0) == b'other'",
    ),
    "dup2_over_it": (
        "again = os.open(other_path, os.O_RDWR); os.dup2(again, fd)",
        "os.pread(fd, 10, 0) == b'other'",
    ),
    "close_range": (
        "libc.close_range(fd, fd, 0); again = os.open(other_path, os.O_RDWR)",
        "again == fd and os.pread(fd, 10, 0) == b'other'",
    ),
    "vfork": (
        "subprocess.run(['true']); os.close(fd); again = os.open(other_path, os.O_RDWR)",
        "again == fd and os.pread(fd, 10, 0) == b'other'",
    ),
}
DURING = """
DATA = open(sys.argv[2], "rb").read()
other_path = sys.argv[3]
fd = os.open(sys.argv[1], 0)
os.pread(fd, 100, 0)
step(fd)
def promote():
    try: os.pread(fd, 100, 0)
    except OSError: pass  # it may be closed by now
thread = threading.Thread(target=promote)
thread.start()
step()
{meanwhile}
thread.join()
step(bool({holds}))
"""


@pytest.mark.parametrize("case", MEANWHILE)
def test_what_happens_to_a_descriptor_in_the_middle_of_its_promotion(
    session_factory: Callable[..., Session], source: SlowSource, tmp_path: Path, case: str
) -> None:
    """A slow answer of the source's holds the promotion up between its last look at the descriptor
    and the replacement."""
    behind = Files(source.backing)
    behind.add("a", SIZE)
    (tmp_path / "other").write_bytes(b"other")
    session = session_factory(source.mountpoint).start()
    session.wait_scanned()
    meanwhile, holds = MEANWHILE[case]
    script = DURING.format(meanwhile=meanwhile, holds=holds)
    words = [source.mountpoint / "a", behind.path("a"), tmp_path / "other"]
    with Steps(session, script, *words) as program:
        (fd,) = program.wait()
        wait_present(session)
        source.latency(getattr=0.4)
        source.reset()
        link = Path(f"/proc/{program.process.pid}/fd/{fd}")
        program.go()
        program.wait()
        wait_until(
            lambda: source.counts()["getattr"] or os.readlink(link) != str(words[0]),
            what="the middle of the promotion, or its end",
        )
        program.go()
        assert program.wait() == [True]
        source.latency(getattr=0)
        program.end()


# --- in the middle of a read ---------------------------------------------------------------------

READS = {
    "pread": "os.pread(fd, SIZE, 0)",
    "preadv": "into(lambda parts: os.preadv(fd, parts, 0))",
    "read": "os.read(fd, SIZE)",
    "readv": "into(lambda parts: os.readv(fd, parts))",
}
SWAPPED = """
import errno
SIZE, DATA, OTHER = int(sys.argv[2]), open(sys.argv[3], "rb").read(), sys.argv[4]
def into(call):
    parts = [bytearray(1000), bytearray(SIZE - 1000)]
    count = call(parts)
    return b"".join(parts)[:count]
fd = os.open(sys.argv[1], 0)
os.pread(fd, 100, 0)
other = os.open(OTHER, {flags})
os.lseek(other, {at}, 0)
step()
def read():
    global got
    try: got = {call}
    except OSError as error: got = error.errno
thread = threading.Thread(target=read)
thread.start()
step()
os.dup2(other, fd)
thread.join()
data = open(OTHER, "rb").read()
is_read = isinstance(got, bytes)
step(
    len(got) if is_read else 0,
    is_read and len(got) > 0 and got == DATA[:len(got)],
    got in {answers} or (is_read and len(got) > 0 and got == data[:len(got)]),
    os.lseek(fd, 0, 1),
)
"""
# How the other file is opened, where it stands, and what a read of it may say besides its bytes.
PUT_THERE = {
    "at_its_start": ("os.O_RDONLY", 0, "[]"),
    "behind_its_end": ("os.O_RDONLY", 2 * SIZE, "[b'']"),
    "to_write": ("os.O_WRONLY", 2 * SIZE, "[errno.EBADF]"),
}


@pytest.mark.parametrize("other", PUT_THERE)
@pytest.mark.parametrize("call", READS)
def test_a_read_is_of_one_file_whatever_comes_to_its_number(
    session_factory: Callable[..., Session],
    source: SlowSource,
    tmp_path: Path,
    call: str,
    other: str,
) -> None:
    """The copy has the beginning, and the daemon stands still: the rest would come from the
    source, but another file is on the number by then."""
    behind = Files(source.backing)
    behind.add("a", SIZE)
    (tmp_path / "other").write_bytes(os.urandom(SIZE))
    source.latency(read=0.3)
    session = session_factory(source.mountpoint).start()
    session.wait_scanned()
    assert session.daemon is not None
    words = [source.mountpoint / "a", str(SIZE), behind.path("a"), tmp_path / "other"]
    flags, at, answers = PUT_THERE[other]
    script = SWAPPED.format(call=READS[call], flags=flags, at=at, answers=answers)
    with Steps(session, script, *words) as program:
        program.wait()
        session.daemon.send_signal(signal.SIGSTOP)
        program.go()
        program.wait()
        program.go()
        length, is_first, is_other, offset = program.wait()
        program.end()
    assert is_first or is_other
    # A read of the first file leaves the other one's offset alone.
    assert offset == at + (length if is_other and not is_first and "pread" not in call else 0)


# --- stress --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stress_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("promotion_stress.c")
    return build_program(tmp_path_factory.mktemp("stress") / "stress", source, flags=["-pthread"])


def test_stress_of_numbers_that_come_and_go(
    session_factory: Callable[..., Session], tmp_path: Path, stress_program: Path
) -> None:
    """See promotion_stress.c. Copies are dropped again and again, so that there is always another
    to promote."""
    for name in ("source", "scratch"):
        (tmp_path / name).mkdir()
    subprocess.run([stress_program, "make", tmp_path / "source"], check=True)
    session = session_factory(tmp_path / "source").start()
    session.wait_scanned()
    words = [str(stress_program), "run", *(str(tmp_path / name) for name in ("source", "scratch"))]
    words.append(str(STRESS_SECONDS))
    clears = 0
    with subprocess.Popen(
        words, env=session.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:

            def turn() -> bool:
                nonlocal clears
                session.forget()
                clears += 1
                return process.poll() is not None

            wait_until(turn, timeout=STRESS_SECONDS + 60, what="the end", every=0.05)
        finally:
            if process.poll() is None:
                process.kill()
        assert process.stdout is not None
        assert process.stderr is not None
        said, complaints = process.stdout.read(), process.stderr.read()
    totals = session.totals()
    counts = {name: totals[name] for name in ("promotions", "fallbacks", "waits")}
    print(said.strip(), counts, f"{clears} times cleared")
    assert (process.returncode, complaints) == (0, "")
    found = json.loads(said)
    assert found.pop("wrong") == 0
    assert totals["promotions"] > 20 * STRESS_SECONDS
    assert min(found.values()) > 0, "something was never done"
