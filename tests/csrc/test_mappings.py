"""A live mapping of a file moves to the copy when the copy is finished. Nothing else in memory
changes."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from csrc.building import HERE, build_preload, build_program
from support.session import MIB, Session, wait_until
from support.steps import Steps

from monarch_py.demo.slowsource import SlowSource

# How long the threads and children of stress_mappings.c work [s].
STRESS_S = float(os.environ.get("MONARCH_STRESS_S", "2"))
# The file has four parts of this size [bytes], and some more bytes after them. The programs change
# the second part.
PART = MIB
SIZE = 4 * PART + 1234
# The rate of the source [bytes/s]. At this rate, a fill takes half a second, so there is enough
# time for steps that must come before the end of a fill.
RATE = 8e6


def content(size: int = SIZE) -> bytes:
    return array("Q", range(size // 8 + 1)).tobytes()[:size]


@pytest.fixture
def source(slowsource_binary: Path, tmp_path: Path) -> Iterator[SlowSource]:
    backing, mountpoint = tmp_path / "backing", tmp_path / "mount"
    backing.mkdir()
    mountpoint.mkdir()
    (backing / "big").write_bytes(content())
    with SlowSource(backing, mountpoint, binary=slowsource_binary) as mounted:
        yield mounted


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a library in which an mmap does not wait for the copy. In the usual library, it may
    wait for up to a second."""
    library = tmp_path_factory.mktemp("library") / "libmonarch.so"
    return build_preload(library, flags=["-DWHOLE_BYTES=0"])


@pytest.fixture
def session(source: SlowSource, session_factory: Callable[..., Session], library: Path) -> Session:
    session = session_factory(source.mountpoint, promote_mappings=True, preload=library).start()
    session.wait_scanned()
    source.rate(RATE)
    return session


# Helper code for the programs below. `at` is the address of the mapping. For each part of the
# mapping, where() returns whether the part lies on the source, on the copy or on neither.
TOOLS = """
import array, contextlib
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
V, N = ctypes.c_void_p, ctypes.c_size_t
libc.mmap.argtypes = [V, N, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = libc.mlock.argtypes = [V, N]
libc.mprotect.argtypes = libc.madvise.argtypes = [V, N, ctypes.c_int]
libc.mremap.argtypes = [V, N, N, ctypes.c_int]
READ, WRITE, SHARED, PRIVATE, FIXED, ANONYMOUS = 1, 2, 1, 2, 16, 32
PART = 1 << 20
size = os.stat(sys.argv[1]).st_size

def map_file(prot=READ, flags=SHARED):
    fd = os.open(sys.argv[1], os.O_RDONLY)
    at = libc.mmap(None, size, prot, flags, fd, 0)
    os.close(fd)
    assert at != ctypes.c_void_p(-1).value, ctypes.get_errno()
    return at

def parts():
    for line in open("/proc/self/maps"):
        words = line.split(None, 5)
        begin, end = (int(word, 16) for word in words[0].split("-"))
        yield begin, end, words[1], words[5].strip() if len(words) > 5 else ""

def where(at, n=size):
    # "neither" also means memory that the program has since mapped there.
    found, upto = [], at
    for begin, end, _, name in parts():
        if end <= at or begin >= at + n:
            continue
        if begin > upto:
            found.append("neither")
        found.append("source" if name == sys.argv[1] else "copy" if "/c/" in name else "neither")
        upto = end
    if upto < at + n:
        found.append("neither")
    return [kind for i, kind in enumerate(found) if i == 0 or found[i - 1] != kind]

def wait_for(condition, limit_s=20):
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < limit_s, (where(at), threads())
        time.sleep(0.001)

def threads():
    found = []
    for t in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            if open(f"/proc/self/task/{t}/comm").read().strip() == "monarch-maps":
                found.append(t)
    return found

def is_right(at, first=0, n=size):
    "compares every byte with the file's known content; first : a multiple of 8"
    data = ctypes.string_at(at + first, n)
    words = array.array("Q", range(first // 8, (first + n) // 8 + 1))
    return data == memoryview(words).cast("B")[:n]
"""


def program(session: Session, script: str) -> Steps:
    return Steps(session, TOOLS + script, session.source / "big")


# --- what programs do -------------------------------------------------------------------------

WORKERS = """
import os, sys, time
import numpy as np
def is_on_copy():
    name = [line.split()[-1] for line in open("/proc/self/maps") if hex(at)[2:] + "-" in line][0]
    assert name == sys.argv[1] or "/c/" in name, name
    return "/c/" in name
data = np.memmap(sys.argv[1], np.uint64, "r", shape=(int(sys.argv[2]) // 8,))
at = data.__array_interface__["data"][0]
expected = np.arange(len(data), dtype=np.uint64)
assert not is_on_copy()
ready, go = os.pipe(), os.pipe()
workers = 3
for _ in range(workers):
    if os.fork() == 0:
        break
else:
    workers = 0
    print("mapped", flush=True)
while not is_on_copy():  # goes on reading when the fill ends
    part = slice(np.random.randint(len(data)), None, 4096)
    assert (data[part] == expected[part]).all()
    time.sleep(0.002)
if not workers:
    for _ in range(3):
        assert os.read(ready[0], 1) == b"r"
    print("moved", flush=True)
    sys.stdin.readline()
    os.write(go[1], b"g" * 3)
else:
    os.write(ready[1], b"r")
    os.read(go[0], 1)
assert (data == expected).all()
if workers:
    os._exit(0)
for _ in range(3):
    assert os.wait()[1] == 0
print("read", flush=True)
"""


def test_a_memmap_opened_once_ends_on_the_tier_also_in_forked_workers(
    source: SlowSource, session: Session
) -> None:
    pytest.importorskip("numpy")
    words = [sys.executable, "-c", WORKERS, str(session.source / "big"), str(SIZE)]
    with subprocess.Popen(
        words, env=session.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "mapped\n"
            assert process.stdout.readline() == "moved\n"
            source.reset()
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "read\n"
        finally:
            process.kill()
    assert source.counts()["read"] == 0
    assert session.totals()["promotions"] == 4


# This test takes a long time, because it loads torch three times. So it runs only with --long. In
# the other runs, the case `writable` below tests mappings of the kind that torch makes: private and
# writable.
@pytest.mark.long
def test_torch_load_with_mmap(
    source: SlowSource, session_factory: Callable[..., Session], library: Path
) -> None:
    """A program reads correct values from private, writable mappings of tensors during a fill. A
    later program reads nothing from the source. The library never replaces such mappings."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")
    torch.save({"a": torch.arange(3 * MIB)}, source.backing / "tensors")
    session = session_factory(source.mountpoint, promote_mappings=True, preload=library).start()
    session.wait_scanned()
    source.rate(4 * RATE)
    script = (
        "import sys, torch, time\n"
        "expected = torch.arange(3 << 20)\n"
        "for _ in range(2):\n"
        "    a = torch.load(sys.argv[1], mmap=True, weights_only=True)['a']\n"
        "    for _ in range(5):\n"
        "        assert torch.equal(a, expected)\n"
        "        time.sleep(0.2)\n"
        "    a += 1\n"
        "    assert torch.equal(a, expected + 1)\n"
    )
    session.python(script, session.source / "tensors")
    source.reset()
    session.python(script, session.source / "tensors")
    assert source.counts()["read"] == 0


# --- what happens to the mapping during the fill ----------------------------------------------

# The program maps a file of several parts, and changes the second part during the fill. Each case
# consists of the code that makes the change, and a list of what the parts must map at the end: the
# source, the copy or neither. Adjacent parts with the same answer count once. At the end, middle()
# also checks the content of the second part. The code of a case may replace middle(), or set it to
# None if there is nothing to check.
CHANGES = {
    "nothing": ("", ["copy"]),
    "munmap": ("libc.munmap(at + PART, PART); middle = None", ["copy", "neither", "copy"]),
    "munmap_of_the_beginning": (
        "libc.munmap(at, 2 * PART); middle = None",
        ["neither", "copy"],
    ),
    "munmap_and_reuse": (
        "libc.munmap(at + PART, PART)\n"
        "flags = PRIVATE | ANONYMOUS | FIXED\n"
        "libc.mmap(at + PART, PART, READ | WRITE, flags, -1, 0)\n"
        "middle = mine()",
        ["copy", "neither", "copy"],
    ),
    "map_over": (
        "flags = PRIVATE | ANONYMOUS | FIXED\n"
        "libc.mmap(at + PART, PART, READ | WRITE, flags, -1, 0)\n"
        "middle = mine()",
        ["copy", "neither", "copy"],
    ),
    "mremap": (
        "free = libc.mmap(None, PART, 0, PRIVATE | ANONYMOUS, -1, 0)\n"
        "to = libc.mremap(at + PART, PART, PART, 3, V(free))\n"
        "assert to == free\n"
        "middle = lambda: where(to, PART) == ['source'] and is_right(to - PART, PART,"
        " PART)",
        ["copy", "neither", "copy"],
    ),
    "write": (
        "libc.mprotect(at + PART, PART, READ | WRITE)\n"
        "middle = mine()\n"
        "libc.mprotect(at + PART, PART, READ)",
        ["copy", "source", "copy"],
    ),
    "no_access": (
        "libc.mprotect(at + PART, PART, 0); middle = None",
        ["copy", "source", "copy"],
    ),
    "mlock": ("assert libc.mlock(at + PART, 100) == 0", ["copy", "source", "copy"]),
    "dontfork": ("libc.madvise(at + PART, PART, 10)", ["copy", "source", "copy"]),
    "random": ("libc.madvise(at + PART, PART, 1)", ["copy"]),
    "willneed": ("libc.madvise(at + PART, PART, 3)", ["copy"]),
}
CHANGE = """
at = map_file(READ, PRIVATE)
middle = lambda: is_right(at, PART, PART)
def mine():
    ctypes.memset(at + PART, 77, PART)
    return lambda: ctypes.string_at(at + PART, PART) == bytes([77]) * PART
assert where(at) == ["source"], where(at)
%s
wait_for(lambda: "copy" in where(at))
wait_for(lambda: not threads())
assert middle is None or middle()
assert is_right(at, 2 * PART, size - 2 * PART)
step(where(at), [flags for flags in open("/proc/self/smaps") if flags.startswith("VmFlags")
                 and " rr" in flags] != [])
"""


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_program_changes_is_respected(session: Session, name: str) -> None:
    change, expected = CHANGES[name]
    with program(session, CHANGE % change) as running:
        found, reads_at_random = running.wait()
        assert found == expected
        assert reads_at_random == (name == "random")


NEVER = {
    "writable": "READ | WRITE, PRIVATE",
    "executable": "READ | 4, PRIVATE",
    "locked": "READ, SHARED | 0x2000",
}


@pytest.mark.parametrize("name", NEVER)
def test_what_is_never_replaced(session: Session, name: str) -> None:
    script = f"at = map_file({NEVER[name]})\nstep(where(at), threads())\n"
    script += "assert is_right(at)\nstep(where(at), threads())\n"
    with program(session, script) as running:
        first = running.wait()
        running.go()
        session.wait_idle()
        assert first[1] == []
        assert running.wait() == first


TWO = """
at, again = map_file(READ, SHARED), map_file(READ, PRIVATE)
ends = [os.fork() for _ in range(2)]
wait_for(lambda: where(at) == where(again) == ["copy"])
flags = [f for b, e, f, _ in parts() if b in (at, again)]
assert sorted(flags) == ["r--p", "r--s"], flags
assert is_right(at) and is_right(again)
wait_for(lambda: not threads())
if 0 in ends:
    os._exit(0)
while True:
    try:
        assert os.wait()[1] == 0
    except ChildProcessError:
        break
step()
"""


def test_several_mappings_in_several_processes(session: Session) -> None:
    with program(session, TWO) as running:
        running.wait()
    assert session.totals()["promotions"] == 8


# --- the thread -------------------------------------------------------------------------------

THREAD = """
before = os.listdir("/proc/self/fd")
assert not threads()
at = map_file()
wait_for(threads)
status = open(f"/proc/self/task/{threads()[0]}/status").read()
blocked = int([line for line in status.splitlines() if line.startswith("SigBlk")][0].split()[1], 16)
# SIGKILL and SIGSTOP cannot be blocked. libc does not block its own signal 33.
assert blocked == ~(1 << 32 | 1 << 8 | 1 << 18) & (1 << 64) - 1, hex(blocked)
%s
wait_for(lambda: os.listdir("/proc/self/fd") == before)
step(where(at))
"""


def test_the_thread_comes_and_goes(session: Session) -> None:
    script = THREAD % 'os.setuid(os.getuid())\nwait_for(lambda: where(at) == ["copy"])'
    script += "wait_for(lambda: not threads())\nstep()\n"
    with program(session, script) as running:
        assert running.wait() == [["copy"]]
        running.go()
        running.wait()


def test_calls_that_want_one_thread(session: Session) -> None:
    """The kernel refuses to unshare the user namespace of a process with several threads. The call
    succeeds under the library nevertheless, because the library first ends its own thread. This
    thread would have replaced the mapping, so the mapping stays on the source."""
    script = (
        THREAD % "assert libc.unshare(0x10000000) == 0, ctypes.get_errno()\nassert not threads()"
    )
    with Steps(session, "step(libc.unshare(0x10000000))", preload=False) as plain:
        if plain.wait() != [0]:
            pytest.skip("user namespaces are disabled: raise sysctl user.max_user_namespaces")
    with program(session, script) as running:
        assert running.wait() == [["source"]]


RAW_FORK = """
at = map_file()
child = libc.syscall(57 if os.uname().machine == "x86_64" else 220, 17, 0, 0, 0, 0)
if child == 0:
    other = map_file()
    assert libc.munmap(at, PART) == 0
    wait_for(lambda: where(other) == ["copy"])
    wait_for(lambda: where(at) == ["neither", "copy"])
    assert is_right(other) and is_right(at, PART, size - PART)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
wait_for(lambda: where(at) == ["copy"])
step()
"""


def test_the_child_of_a_fork_that_nobody_saw(session: Session) -> None:
    with program(session, RAW_FORK) as running:
        running.wait()


# --- when mappings stay on the source ---------------------------------------------------------


def test_a_changed_file_is_left_alone(session: Session) -> None:
    script = """
at = map_file()
os.close(os.open(sys.argv[1], os.O_RDWR))
wait_for(lambda: not threads())
step(where(at))
"""
    with program(session, script) as running:
        assert running.wait() == [["source"]]


@pytest.mark.parametrize("again", [False, True], ids=["dead", "started_again"])
def test_without_its_daemon_it_stays_on_the_source(session: Session, again: bool) -> None:
    script = """
at = map_file()
step()
if sys.argv[2:] == ["again"]:
    wait_for(lambda: not threads())
assert is_right(at)
assert libc.munmap(at, PART) == 0
step(where(at))
"""
    with Steps(session, TOOLS + script, session.source / "big", *["again"][:again]) as running:
        running.wait()
        session.kill()
        if again:
            session.start()
        running.go()
        assert running.wait() == [["neither", "source"]]
    assert not again or session.totals()["promotions"] == 0


def test_it_is_off_unless_asked_for(
    source: SlowSource, session_factory: Callable[..., Session], library: Path
) -> None:
    session = session_factory(source.mountpoint, promote_mappings=False, preload=library).start()
    session.wait_scanned()
    source.rate(RATE)
    script = (
        'at = map_file()\nassert where(at) == ["source"] and not threads()\nstep()\nstep(where(at))'
    )
    with program(session, script) as running:
        running.wait()
        source.rate(0)
        session.wait_all_present()
        running.go()
        assert running.wait() == [["source"]]


# --- numbers ----------------------------------------------------------------------------------

SOON = """
times = []
for path in sys.argv[1:]:
    size = os.stat(path).st_size
    sys.argv[1] = path
    at = map_file()
    assert where(at) == ["source"]
    while True:  # until an open is served from the copy, which is then complete
        fd = os.open(path, os.O_RDONLY)
        served = "/c/" in os.readlink(f"/proc/self/fd/{fd}")
        os.close(fd)
        complete = time.monotonic()
        if served:
            break
        time.sleep(0.0005)
    wait_for(lambda: where(at) == ["copy"])
    times.append(time.monotonic() - complete)
step(times)
"""


def test_it_moves_within_50_ms(
    source: SlowSource, session_factory: Callable[..., Session], library: Path
) -> None:
    """The median time from the end of a fill to the move of the mapping is below 50 ms. Single
    moves may take longer, because the machine may be busy with something else."""
    paths = [source.mountpoint / f"f{i}" for i in range(7)]
    for path in paths:
        (source.backing / path.name).write_bytes(content(5 * MIB))
    session = session_factory(source.mountpoint, promote_mappings=True, preload=library).start()
    session.wait_scanned()
    source.rate(100e6)
    with Steps(session, TOOLS + SOON, *paths) as running:
        (times,) = running.wait()
    print(f"median {1000 * statistics.median(times):.1f} ms, longest {1000 * max(times):.1f} ms")
    assert statistics.median(times) < 0.05


def test_threads_and_children_that_map_and_change(
    session_factory: Callable[..., Session], tmp_path: Path, library: Path
) -> None:
    """Threads and child processes map files and change the mappings. They find every word as
    expected, also in memory that has replaced a part of a mapping."""
    files = tmp_path / "files"
    files.mkdir()
    built = build_program(tmp_path / "mappings", HERE / "stress_mappings.c", flags=["-pthread"])
    subprocess.run([built, "make", files], check=True)
    session = session_factory(files, promote_mappings=True, preload=library).start()
    session.wait_scanned()
    words = [str(built), "stress", str(files), str(STRESS_S), "1"]

    def stress() -> bool:
        """Runs the program once. Returns whether all runs together have had enough promotions. On a
        busy machine, one run may be too short for that."""
        with subprocess.Popen(
            words, env=session.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                while process.poll() is None:
                    session.forget()  # drops all copies, so that all files are filled again
                    try:
                        process.wait(0.2)
                    except subprocess.TimeoutExpired:
                        continue
                said, errors = process.communicate()
            finally:
                process.kill()
        promotions = session.totals()["promotions"]
        print(said, "promotions:", promotions)
        assert (process.returncode, errors) == (0, ""), errors
        assert re.search(r"moves=[1-9]", said)
        return bool(promotions > 5 * STRESS_S)

    wait_until(stress, what="promotions")
