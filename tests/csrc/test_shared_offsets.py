"""Reads return the same with the library as without it. The tests read with every kind of call,
through descriptors that are duplicated, inherited, repositioned and closed, while the copy of the
file is missing, queued, incomplete or complete.

MONARCH_STRESS_EXAMPLES: the number of random programs; by default 40, with --long 200.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from csrc.building import build_program
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import draws
from support.session import IN_UNITS, MIB, Session, wait_until

from monarch_py.demo.slowsource import SlowSource

HERE = Path(__file__).resolve().parent
EXAMPLES = int(os.environ.get("MONARCH_STRESS_EXAMPLES", draws.examples(40)))
UNIT = 256 << 10
PAGE = 4096
SIZES = (0, 1, PAGE - 1, PAGE, PAGE + 1, UNIT - 1, UNIT, UNIT + 1, 3 * UNIT, 5 * UNIT - 7)
# The number of a large file. The fill of this file keeps the only copying thread busy, so that
# fills of other files are queued.
BALLAST = len(SIZES)
BALLAST_SLOT = 7
# The rate of the source [bytes/s]. It is so low that a program finds its files in every state, and
# so high that many programs can be run.
RATE = 40e6

Op = tuple[object, ...]
Program = list[Op]


def numbered(size: int) -> bytes:
    """Returns `size` bytes in which each group of eight bytes contains its own index, so that data
    from a wrong offset are noticed."""
    return np.arange((size + 7) // 8, dtype="<u8").tobytes()[:size]


@pytest.fixture(scope="module")
def offsets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("offsets") / "offsets"
    return build_program(out, HERE / "offsets.c", flags=["-pthread"])


@pytest.fixture(scope="module")
def source(
    tmp_path_factory: pytest.TempPathFactory, slowsource_binary: Path
) -> Iterator[SlowSource]:
    directory = tmp_path_factory.mktemp("offsets_source")
    backing, mountpoint = directory / "backing", directory / "mount"
    backing.mkdir()
    mountpoint.mkdir()
    for number, size in enumerate((*SIZES, 24 * MIB)):
        (backing / str(number)).write_bytes(numbered(size))
    (backing / "records").write_bytes(numbered(6 * MIB + 8))
    with SlowSource(backing, mountpoint, binary=slowsource_binary) as mounted:
        mounted.rate(RATE)
        yield mounted


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, source: SlowSource) -> Iterator[Session]:
    directory = tmp_path_factory.mktemp("offsets_session")
    with Session(directory, source.mountpoint, shared_tpool_size=1, **IN_UNITS) as made:
        made.start().wait_scanned()
        yield made


# --- random programs ----------------------------------------------------------------------------


class Interpreter:
    """One process of offsets.c that runs program after program on the files of a directory."""

    def __init__(self, program: Path, root: Path, env: dict[str, str]) -> None:
        names = [str(root / str(number)) for number in range(len(SIZES) + 1)]
        self.process = subprocess.Popen(
            [str(program), "programs", *names],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, *_: object) -> None:
        # The interpreter ends when its standard input is closed.
        self.process.communicate()

    def run(self, program: Program, settle: Callable[[], object]) -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        lines = [" ".join(map(str, op)) for op in program]
        self.process.stdin.write("\n".join([*lines, "end\n"]))
        self.process.stdin.flush()
        said: list[str] = []
        while not said or not said[-1].startswith("status"):
            line = self.process.stdout.readline()
            assert line, "the interpreter has ended"
            if line == "settle\n":
                settle()
                self.process.stdin.write("go\n")
                self.process.stdin.flush()
            else:
                said.append(line.rstrip())
        return said


@pytest.fixture(scope="module")
def pair(
    offsets: Path, source: SlowSource, session: Session
) -> Iterator[tuple[Interpreter, Interpreter]]:
    """Returns two interpreters. One runs with the library on the slow source, the other runs
    without the library on the same files."""
    with (
        Interpreter(offsets, source.mountpoint, session.env()) as with_it,
        Interpreter(offsets, source.backing, session.env(preload=False)) as without,
    ):
        yield with_it, without


slots = st.integers(0, 5)
lengths = st.sampled_from(
    [0, 1, 7, 100, PAGE - 1, PAGE, 65536, UNIT - 1, UNIT, UNIT + 1, 2 * UNIT + 3, MIB, 2 * MIB]
)
more_than_memory = st.sampled_from([(2 << 30) - PAGE, (2 << 30) + 5])
places = st.one_of(
    st.sampled_from([0, 1, PAGE, UNIT - 1, UNIT, UNIT + 1, 3 * UNIT - 1, 5 * UNIT, 1 << 40, -1]),
    st.integers(0, 5 * UNIT),
)
parts = st.lists(lengths, max_size=4)
moves = st.sampled_from([-2 * UNIT, -UNIT, -PAGE, -1, 0, 1, PAGE, UNIT, 3 * UNIT, 1 << 40])


def op(what: str, *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[Op]:
    return st.tuples(st.just(what), *arguments)


opening = op(
    "o",
    slots,
    st.integers(0, len(SIZES) - 1),
    st.sampled_from([0, os.O_CLOEXEC, os.O_NONBLOCK]),
)
reading = st.one_of(
    op("r", slots, lengths),
    op("r", slots, more_than_memory),
    op("p", slots, lengths, places),
    st.tuples(slots, parts).map(lambda t: ("v", t[0], *t[1])),
    st.tuples(slots, places, parts).map(lambda t: ("w", t[0], t[1], *t[2])),
    # 0x40000000 is not a flag of preadv2.
    st.tuples(slots, places, st.sampled_from([0, 0, 0, 0x40000000]), parts).map(
        lambda t: ("x", t[0], t[1], t[2], *t[3])
    ),
)
moving = op("l", slots, moves, st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END, 99]))
numbering = st.one_of(
    op("d", slots, slots),
    op("D", slots, slots),
    op("F", slots, slots, st.integers(0, 1)),
    op("c", slots),
)
others = st.one_of(op("k", st.integers(0, 4)), op("s"), op("f", slots))
programs = st.tuples(
    st.booleans(),
    st.lists(opening, min_size=1, max_size=3),
    st.lists(st.one_of(reading, reading, moving, numbering, opening, others), max_size=24),
).map(lambda t: [*([("o", BALLAST_SLOT, BALLAST, 0)] if t[0] else []), *t[1], *t[2]])


# A program that reads a file of several units with every kind of call. Random programs may miss
# some of these operations. The examples below run this program in every state of the file's copy.
EVERYTHING: Program = [
    ("r", 0, UNIT + 1),
    ("v", 0, 100, 0, UNIT, 5),
    ("p", 0, UNIT, 3 * UNIT - 10),
    ("w", 0, UNIT - 50, 60, 70),
    ("x", 0, 2 * UNIT, 0, 10, UNIT),
    ("x", 0, -1, 0, 10, 20),
    ("k", 2),
    ("r", 0, 1000),
    ("l", 0, -500, os.SEEK_CUR),
    ("d", 0, 1),
    ("r", 1, 4096),
    ("r", 0, 2 * MIB),
    ("r", 0, 10),
    ("p", 0, 2 * MIB, 4 * UNIT),
    ("w", 0, -1, 10),
    ("p", 0, 10, -1),
    ("l", 0, -1, os.SEEK_SET),
]
LARGE = len(SIZES) - 1
FULL_OF_PARTS = 1025  # IOV_MAX is 1024


@example([("o", 0, LARGE, 0), *EVERYTHING])
@example([("o", BALLAST_SLOT, BALLAST, 0), ("o", 0, LARGE, 0), *EVERYTHING])
@example([("o", 0, LARGE, 0), ("s",), *EVERYTHING])
@example([("o", 0, LARGE, 0), ("p", 0, 100, 50), ("s",), ("p", 0, UNIT, 7), ("r", 0, 9), ("f", 0)])
@example([("o", 0, LARGE, 0), ("v", 0, *[1] * FULL_OF_PARTS), ("r", 0, 8)])
@example([("o", 0, LARGE, 0), ("v", 0, *[300] * (FULL_OF_PARTS - 1)), ("r", 0, 8)])
@given(programs)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_programs_get_what_they_would_get_without_the_library(
    pair: tuple[Interpreter, Interpreter], session: Session, program: Program
) -> None:
    with_it, without = pair
    session.forget()
    found = with_it.run(program, session.wait_idle)
    assert found == without.run(program, lambda: None)
    assert found[-1] == "status 0"


def test_those_programs_met_copies_in_the_making(
    pair: tuple[Interpreter, Interpreter], session: Session
) -> None:
    """Programs like those of the previous test read from incomplete copies. So the previous test
    does not merely compare the source with itself."""
    before = session.totals()

    def under_way() -> bool:
        report = session.status()
        return bool(report["pending"] or report["sources"][0]["present"])

    def met() -> bool:
        # The large file must still lack a complete copy when the program reads it. So the fill of
        # another file, the ballast, begins first, and the fill of the large file is queued behind
        # it. The program opens the large file only then: if the daemon learned of both files at the
        # same time, it might fill the ballast second. If the machine stalls, both files may be
        # filled before the read. Then the test tries again.
        session.forget()
        settled: list[object] = []

        def settle() -> None:
            settled.append(
                session.wait_idle() if settled else wait_until(under_way, what="the ballast's fill")
            )

        ballast: Program = [("o", BALLAST_SLOT, BALLAST, 0), ("s",)]
        pair[0].run([*ballast, ("o", 0, LARGE, 0), *EVERYTHING], settle)
        after = session.totals()
        assert after["fallbacks"] == before["fallbacks"]
        counters = ("waits", "bytes_while_filling")
        return all(after[counter] > before[counter] for counter in counters)

    wait_until(met, what="a read from a copy in the making")


# For a read of one of these sizes, the kernel returns EFAULT without accessing the file.
@pytest.mark.parametrize("n", [1 << 47, (1 << 63) - 1, -1])
@pytest.mark.parametrize("what", ["r", "p"])
def test_a_read_of_more_than_there_are_addresses(
    pair: tuple[Interpreter, Interpreter], session: Session, what: str, n: int
) -> None:
    program: Program = [("o", 0, LARGE, 0), (what, 0, n, *([5] if what == "p" else [])), ("f", 0)]
    session.forget()
    with_it, without = pair
    assert with_it.run(program, session.wait_idle) == without.run(program, lambda: None)


# --- one offset, many readers -------------------------------------------------------------------


@contextmanager
def queued(offsets: Path, source: SlowSource, session: Session) -> Iterator[None]:
    """While the context lasts, a large file that no reader waits for is being filled, and the fills
    of other files are queued behind it."""
    with Interpreter(offsets, source.mountpoint, session.env()) as other:
        other.run([("o", 0, BALLAST, 0)], lambda: None)
        wait_until(lambda: session.status()["pending"], what="a fill")
        yield


# Each case names the state of the copy, the number of processes, the number of threads per process,
# and the call.
READERS = [
    f"{state} {shape} {way}"
    for state in ("cold", "queued")
    for shape in ("1 8", "8 1", "3 3")
    for way in ("read", "readv")
]
# These cases cover each state, shape and call. They also cover each state with several threads and
# with several processes.
SOME_READERS = ["cold 1 8 readv", "cold 8 1 read", "queued 1 8 read", "queued 3 3 readv"]


@pytest.mark.parametrize("readers", draws.cases(READERS, short=SOME_READERS))
def test_every_record_is_delivered_once(
    offsets: Path,
    source: SlowSource,
    session: Session,
    readers: str,
) -> None:
    """Each record of 1000 bytes is returned to exactly one reader, even if the record spans two
    units."""
    state, processes, threads, way = readers.split()
    session.forget()
    words = [offsets, "records", source.mountpoint / "records", 1000, processes, threads, way]
    before = session.totals()
    if state == "queued":
        with queued(offsets, source, session):
            done = session.run([str(word) for word in words])
    else:
        done = session.run([str(word) for word in words])
    assert (done.returncode, done.stderr) == (0, "")
    size = 6 * MIB + 8
    count = (size + 999) // 1000
    clean = {"wrong": 0, "twice": 0, "lost": 0, "failed": 0, "offset": size}
    assert json.loads(done.stdout) == {"records": count, "calls": count, **clean}
    after = session.totals()
    assert after["bytes_while_filling"] > before["bytes_while_filling"]
    session.wait_idle()
