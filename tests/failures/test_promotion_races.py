"""While one thread uses a descriptor, another thread's read promotes the descriptor, or is served
from a copy. Afterwards, the descriptor must have the right file and offset. Each read must return
bytes of only one file."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from csrc.building import build_program
from support.draws import cases
from support.files import Files
from support.session import IN_UNITS, MIB, Session, wait_until
from support.steps import Steps

from monarch_py.demo.slowsource import SlowSource

SIZE = 3 * MIB + 17


def wait_present(session: Session) -> None:
    wait_until(lambda: session.status()["sources"][0]["present"] >= 1, what="the copy")


# For each case: what another thread does to the descriptor while a pread is about to promote it,
# and what must hold when both threads are done.
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
    except OSError: pass  # another thread may have closed fd
thread = threading.Thread(target=promote)
thread.start()
step()
{meanwhile}
thread.join()
step(bool({holds}))
"""


# Without --long, only these cases are tested, one for each of the library's code paths: a move of
# the offset, a read, a duplicate, a child, other flags, and another file on the descriptor.
SOME_MEANWHILE = ["lseek", "read", "F_DUPFD", "fork", "F_SETFL", "dup2_over_it", "vfork"]


@pytest.mark.parametrize("case", cases(MEANWHILE, SOME_MEANWHILE))
def test_what_happens_to_a_descriptor_in_the_middle_of_its_promotion(
    session_factory: Callable[..., Session], source: SlowSource, tmp_path: Path, case: str
) -> None:
    """If another thread changes a descriptor during its promotion, the change is not lost. A slow
    getattr of the source holds up the promotion after the library has checked the descriptor for
    the last time, and before it replaces the descriptor."""
    behind = Files(source.backing)
    behind.add("a", SIZE)
    (tmp_path / "other").write_bytes(b"other")
    session = session_factory(source.mountpoint, **IN_UNITS).start()
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
step()
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
# During a read, another file gets the descriptor's number. The read may then return bytes of either
# file. Each case consists of the flags with which the other file was opened, of its offset, and of
# other results that the read may also have.
PUT_THERE = {
    "at_its_start": ("os.O_RDONLY", 0, "[]"),
    "behind_its_end": ("os.O_RDONLY", 2 * SIZE, "[b'']"),
    "to_write": ("os.O_WRONLY", 2 * SIZE, "[errno.EBADF]"),
}


# Without --long, only the pairs in EACH_SWAP are tried. They contain each call of READS once, and
# each case of PUT_THERE at least once.
SWAPS = [(call, other) for call in READS for other in PUT_THERE]
EACH_SWAP = [
    ("pread", "at_its_start"),
    ("preadv", "to_write"),
    ("read", "behind_its_end"),
    ("readv", "at_its_start"),
]


@pytest.mark.parametrize("case", cases(SWAPS, EACH_SWAP), ids="-".join)
def test_a_read_is_of_one_file_whatever_comes_to_its_number(
    session_factory: Callable[..., Session],
    source: SlowSource,
    tmp_path: Path,
    case: tuple[str, str],
) -> None:
    """A read returns bytes of only one file, even if another file is put on the descriptor's number
    during the read. In this test, the copy contains only the beginning of the file, and the daemon
    is suspended. So the library has to read the rest from the source."""
    call, other = case
    behind = Files(source.backing)
    behind.add("a", SIZE)
    (tmp_path / "other").write_bytes(os.urandom(SIZE))
    source.latency(read=0.3)
    session = session_factory(source.mountpoint, **IN_UNITS).start()
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
        program.wait()
        source.latency(read=0)
        program.go()
        length, is_first, is_other, offset = program.wait()
        program.end()
    assert is_first or is_other
    # A read that returns bytes of the first file must not move the offset of the other file.
    assert offset == at + (length if is_other and not is_first and "pread" not in call else 0)


# --- in the middle of a move of the offset --------------------------------------------------------

AT, LENGTH = 5000, 100_000


@pytest.fixture(scope="module")
def offset_race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [Path(__file__).with_name(name) for name in ("offset_race.c", "hold.c")]
    return build_program(tmp_path_factory.mktemp("race") / "race", *sources, flags=["-pthread"])


@pytest.mark.parametrize("call", cases(["read", "readv"], ["read"]))
@pytest.mark.parametrize("preload", [True, False])
def test_the_offset_that_moves_is_that_of_the_file_that_is_read(
    session_factory: Callable[..., Session],
    tmp_path: Path,
    offset_race: Path,
    call: str,
    preload: bool,
) -> None:
    """If another file is put on the descriptor's number during a read, the read moves the offset of
    the file whose bytes it returns (see offset_race.c)."""
    files = Files(tmp_path / "source")
    files.add("a", SIZE)
    other = tmp_path / "other"
    other.write_bytes(os.urandom(SIZE))
    session = session_factory(files.root, **IN_UNITS).start()
    session.wait_scanned()
    done = subprocess.run(
        [offset_race, call, files.path("a"), other, str(AT), str(LENGTH)],
        env=session.env(preload),
        capture_output=True,
        timeout=60,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(f"seccomp filters cannot notify a listener here: {done.stderr.decode()}")
    assert (done.returncode, done.stderr) == (0, b"")
    line, data = done.stdout.split(b"\n", 1)
    is_held, offset, length = map(int, line.split())
    assert bool(is_held) == preload, "the read moves no offset by itself"
    assert length == LENGTH
    first, second = files.path("a").read_bytes(), other.read_bytes()
    assert (offset, data) in [
        (AT, first[:LENGTH]),
        (AT + LENGTH, second[AT : AT + LENGTH]),
    ]


# --- a thread of lower priority is in the middle of a promotion ----------------------------------


def check_race(
    session_factory: Callable[..., Session], tmp_path: Path, name: str, *words: str
) -> None:
    """Runs the program `name`.c, which opens a file. Sends it a line when the file has a copy. The
    program's output must show that it has held up one system call (hold.c), and that it has not
    found the error for which it tests."""
    sources = [Path(__file__).with_name(source) for source in (f"{name}.c", "hold.c")]
    program = build_program(tmp_path / "race", *sources, flags=["-pthread"])
    files = Files(tmp_path / "source")
    files.add("a", SIZE)
    session = session_factory(files.root, **IN_UNITS).start()
    session.wait_scanned()
    with subprocess.Popen(
        [program, *words, files.path("a")],
        env=session.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() in ("open\n", "opened\n")
        wait_present(session)
        said, errors = process.communicate("\n", timeout=60)
    if process.returncode == 77:
        pytest.skip(f"the program needs a seccomp listener and a real-time priority: {errors}")
    assert (process.returncode, said, errors) == (0, "1 0\n", "")


def test_who_waits_leaves_the_processor_to_who_is_waited_for(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """A close waits for a thread that is promoting the descriptor. While it waits, it must let this
    thread use the processor, even if the thread has a lower real-time priority (see
    priority_race.c)."""
    check_race(session_factory, tmp_path, "priority_race")


# --- while the library checks a descriptor that was closed unseen ---------------------------------


def test_a_file_that_comes_to_the_number_meanwhile_is_known(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """A read notices that its descriptor was closed. Meanwhile, another file is opened on the
    descriptor's number. The library must track this new file and promote it later (see
    untrack_race.c)."""
    sources = [Path(__file__).with_name(name) for name in ("untrack_race.c", "hold.c")]
    program = build_program(tmp_path / "race", *sources, flags=["-pthread"])
    files = Files(tmp_path / "source")
    files.add("a", SIZE)
    files.add("b", SIZE)
    session = session_factory(files.root, **IN_UNITS).start()
    session.wait_scanned()
    with subprocess.Popen(
        [program, files.path("a"), files.path("b")],
        env=session.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        is_held = process.stdout.readline()
        if not is_held and process.wait() == 77:
            pytest.skip("seccomp filters cannot notify a listener here")
        assert is_held == "1\n"
        wait_until(lambda: session.status()["sources"][0]["present"] == 2, what="the copies")
        name, _ = process.communicate("\n")
    assert process.returncode == 0
    assert session.tiers[0] in Path(name).parents


# --- a fork in the middle of a read ---------------------------------------------------------------


@pytest.mark.parametrize("call", ["pread", "read"])
def test_the_child_of_a_fork_has_the_programs_descriptors_alone(
    session_factory: Callable[..., Session], tmp_path: Path, call: str
) -> None:
    """A child that is forked during a read inherits none of the library's own descriptors (see
    fork_race.c)."""
    check_race(session_factory, tmp_path, "fork_race", call)
