"""On a slow source, a read waits in the kernel for another thread's read of the same open file.
Meanwhile, calls of other threads on the descriptor must return at once. The reads must return the
same bytes as without the library (see read_under_way.c). In another test, a mapping waits for a
copy (see map_under_way.c)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from csrc.building import build_program
from support.draws import cases
from support.epoch import make_files
from support.session import IN_UNITS, MIB, Session, wait_until

from monarch_py.demo.slowsource import SlowSource

# REQUEST: the size of the kernel's requests to the source [bytes]. LATENCY_S: the time that each of
# these requests takes [s].
REQUEST, LATENCY_S = 128 << 10, 0.5
FIRST = 4 * REQUEST
# A call must take less than this time [us]. If it waited for the reads, it would take 1.5 s or
# more.
AT_ONCE_US = 700_000
LITTLE_WORK_US = 100_000
OVER = 75  # the program's exit status if a read ended before the program saw the read wait
Done = subprocess.CompletedProcess[str]
WHAT = ["close", "dup2", "lock", "signal", "fork"]


def build(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    out = tmp_path_factory.mktemp("under_way") / name
    return build_program(out, Path(__file__).with_name(f"{name}.c"), flags=["-pthread"])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory, "read_under_way")


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory, "map_under_way")


@pytest.fixture(scope="module")
def source(
    tmp_path_factory: pytest.TempPathFactory, slowsource_binary: Path
) -> Iterator[SlowSource]:
    directory = tmp_path_factory.mktemp("under_way_source")
    backing, mountpoint = directory / "backing", directory / "mount"
    mountpoint.mkdir()
    make_files(backing, 2, 2 * MIB)
    (backing / "same").write_bytes((backing / "1").read_bytes())
    with SlowSource(backing, mountpoint, binary=slowsource_binary) as mounted:
        yield mounted


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, source: SlowSource) -> Iterator[Session]:
    with Session(tmp_path_factory.mktemp("under_way_session"), source.mountpoint) as made:
        made.start().wait_scanned()
        source.latency(read=LATENCY_S)
        yield made


@pytest.fixture
def in_units(tmp_path: Path, source: SlowSource, session: Session) -> Iterator[Session]:
    """Yields a session in which an mmap waits for one or two seconds until its file has a copy.
    Until the test ends, the source's latency is a quarter of LATENCY_S."""
    with Session(tmp_path, source.mountpoint, **IN_UNITS) as made:
        made.start().wait_scanned()
        source.latency(read=LATENCY_S / 4)
        yield made
        source.latency(read=LATENCY_S)


def do_meanwhile(
    session: Session, source: SlowSource, program: Path, what: str, first: int, limit_us: int
) -> None:
    """Runs the program with and without the library. In each run, the program makes the call `what`
    while its reads wait for the source. Checks that the reads return the same bytes in both runs,
    and that the call takes less than `limit_us`."""

    def try_once(preload: bool) -> Done | None:
        if preload:
            session.forget()
        file, other = source.mountpoint / ("1" if preload else "same"), source.mountpoint / "2"
        done = session.run([program, what, file, other, str(first)], preload=preload)
        return None if done.returncode == OVER else done

    def run(preload: bool) -> str:
        done = wait_until(lambda: try_once(preload), timeout=60, what="reads that wait")
        assert done.returncode == 0, done.stderr
        took_us, worked_us = map(int, done.stderr.split())
        assert took_us < limit_us
        assert worked_us < LITTLE_WORK_US
        return done.stdout

    with ThreadPoolExecutor() as pool:
        found = pool.map(run, (True, False))
        assert next(found) == next(found)


# `close` is tried only with --long, because the case `dup2` covers it: dup2 also closes the
# descriptor whose number it takes.
@pytest.mark.parametrize("what", cases(WHAT, ["dup2", "lock", "signal", "fork"]))
def test_nobody_waits_for_a_read_that_waits(
    session: Session, source: SlowSource, program: Path, what: str
) -> None:
    do_meanwhile(session, source, program, what, FIRST, AT_ONCE_US)


@pytest.mark.usefixtures("alone")
def test_a_close_that_proc_tells_nothing_waits_a_second_at_most(
    session: Session, source: SlowSource, program: Path
) -> None:
    do_meanwhile(session, source, program, "close_without_proc", 14 * REQUEST, 2_500_000)


@pytest.mark.parametrize("what", ["close", "dup2"])
def test_a_mapping_is_of_the_file_that_its_descriptor_was_of(
    in_units: Session, source: SlowSource, maps: Path, what: str
) -> None:
    file, other = source.mountpoint / "1", source.mountpoint / "2"
    done = in_units.run([maps, what, file, other])
    assert done.stderr == "waited\n"
    assert done.returncode == 0
    assert bytes.fromhex(done.stdout) == (source.backing / "1").read_bytes()[:64]


MAPS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
V, N, I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
libc.mmap.argtypes = [V, N, I, I, I, ctypes.c_long]
SIZE, PAGE = 2 << 20, 4096

def mapped(name, prot, flags, at=None, offset=0):
    fd = os.open(os.path.join(sys.argv[1], name), os.O_RDONLY)
    at = libc.mmap(at, SIZE - offset, prot, flags, fd, offset)
    assert at != V(-1).value, os.strerror(ctypes.get_errno())
    for line in open("/proc/self/maps"):
        if int(line.split("-")[0], 16) == at:
            words = line.split(None, 5)
            place = "copy" if "/c/" in words[5] else words[5].strip()
            print(words[1], int(words[2], 16), place, ctypes.string_at(at, 64).hex())

free = libc.mmap(None, 2 * SIZE, 0, 34, -1, 0)  # PRIVATE | ANONYMOUS
mapped("1", 1, 1)  # READ, SHARED
mapped("2", 3, 2)  # READ | WRITE, PRIVATE
mapped("same", 1, 2 | 16, free + SIZE, 16 * PAGE)  # READ, PRIVATE | FIXED
"""


def test_a_mapping_that_waited_is_as_it_was_asked_for(
    in_units: Session, source: SlowSource
) -> None:
    source.latency(read=LATENCY_S / 32)
    lines = in_units.python(MAPS, source.mountpoint).splitlines()
    assert in_units.totals()["waits"] >= 3
    for line, name, right in zip(
        lines, ("1", "2", "same"), ("r--s 0", "rw-p 0", "r--p 65536"), strict=True
    ):
        at = int(right.split()[1])
        content = (source.backing / name).read_bytes()[at : at + 64].hex()
        assert line == f"{right} copy {content}"
