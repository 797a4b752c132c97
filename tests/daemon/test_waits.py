"""Tests of how often readers wait for a copy that is being filled. After several waits have ended
without the data, readers stop waiting for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemon.patience import build_waiting
from support.draws import sized
from support.epoch import Reader, make_files
from support.session import IN_UNITS, MIB, Session, wait_until
from support.steps import Steps

from monarch_py.arrays import ENTRY
from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc.catalog import Catalog
from monarch_py.ipc.session import Segment, SessionDir
from monarch_py.native import Kind, State, ffi, lib

UNIT = 256 << 10
MAX_FILES = int(lib.MONARCH_MAX_FILES)
Factory = Callable[..., Session]


# --- answers ------------------------------------------------------------------------------------


@pytest.fixture
def clients() -> Any:
    return ffi.new("struct monarch_clients *")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalog with one file, which is ABSENT."""
    made = Catalog(SessionDir(tmp_path), ffi.new("uint64_t *"))
    entries = np.zeros(1, dtype=ENTRY)
    entries["path_len"], entries["ino"], entries["kind"], entries["size"] = 1, 7, Kind.FILE, 100
    made.add(entries, ffi.new("char[]", b"a"))
    return made


def answers(clients: Any, catalog: Catalog) -> tuple[int, bool]:
    """Makes a reader demand the file. Then lets the daemon's code answer each demand whose file is
    complete or will not be filled any more. Returns the number of readers that still wait, and
    whether this reader is one of them."""
    clients.demand[5] = (0 + 1) << 32 | 1
    waiting = int(lib.monarch_answer_settled(clients, catalog.c))
    return waiting, bool(clients.demand[5])


def test_a_reader_whose_request_has_not_been_taken_yet_waits_on(
    clients: Any, catalog: Catalog
) -> None:
    """If the file was opened after the daemon last read the requests of readers, the file is still
    ABSENT. The reader must then continue to wait."""
    assert answers(clients, catalog) == (0, False), (
        "the demand of an unwanted file must be answered"
    )
    lib.monarch_want_file(clients, 0)
    assert answers(clients, catalog) == (1, True)
    ids = np.zeros(64, dtype=np.uint64)
    taken = lib.monarch_take_bits(
        ffi.addressof(clients.wanted), 1, ffi.from_buffer("uint64_t[]", ids), 64
    )
    assert taken == 1
    assert answers(clients, catalog) == (0, False)
    catalog.want(ids[:taken])
    assert answers(clients, catalog) == (1, True)
    catalog.set_state(ids[:taken], State.BYPASS)
    assert answers(clients, catalog) == (0, False)


@pytest.mark.parametrize(
    ("size", "count", "threads"), [(4096, sized(300, 1000), 1), (131072, 300, 8)]
)
def test_a_reader_waits_once_for_a_file_of_one_unit(
    session_factory: Factory,
    slow_factory: Callable[..., SlowSource],
    epoch_reader: Path,
    size: int,
    count: int,
    threads: int,
) -> None:
    source = slow_factory()
    files = make_files(source.backing, count, size)
    session = session_factory(source.mountpoint, handover_size=0).start()
    session.wait_scanned()
    source.latency(open=0.0005, read=0.0005)
    words = (epoch_reader, session, "read", size, threads, source.mountpoint, files)
    with Reader(*words) as reader:
        reader.end()
    totals = session.totals()
    assert 0 < totals["waits"] <= count * 1.05


# --- hiccups ------------------------------------------------------------------------------------

# At each step, reads 10 bytes from the next file. The files take turns: the program first reads
# from unit 0 of each file, then from unit 1 of each file, and so on. If the word of a step is
# "fork", the program forks, and only the child continues.
READS = """
fds = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
def read(turn):
    n = turn % len(fds)
    assert os.pread(fds[n], 10, turn // len(fds) * (256 << 10))
turn, word = 0, step()
while word:
    if word == "fork" and os.fork():
        os.wait()
        break
    read(turn)
    turn += 1
    word = step()
"""


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose readers wait for only a small part of the usual time."""
    patience_s, debt_s = sized((0.05, 0.75), (0.1, 1.5))
    return build_waiting(tmp_path_factory.mktemp("hasty"), PATIENCE=patience_s, DEBT=debt_s)


@pytest.fixture
def waits_in_vain(session_factory: Factory, tmp_path: Path, hasty: Path) -> Iterator[Session]:
    """A session whose engine may read so little that nearly every wait of a reader ends without the
    data. The limit does not apply to the readers' own reads."""
    limits = {"operations": 1}
    session = session_factory(
        tmp_path / "source", preload=hasty, source_limits=limits, shared_tpool_size=1, **IN_UNITS
    )
    yield session


def read_until(session: Session, program: Steps, name: str, value: int) -> int:
    """Lets the program read on until the total called `name` has reached `value`. Returns how many
    waits were counted by then."""
    totals = session.totals()

    def is_counted() -> bool:
        nonlocal totals
        program.go()
        program.wait()
        totals = session.totals()
        return bool(totals[name] >= value)

    wait_until(is_counted, what=f"{name}: {value}", every=0.0 if name == "fallbacks" else 0.1)
    return int(totals["waits"])


@pytest.mark.parametrize(("files", "most"), [(1, 2), (10, 8)], ids=["a file", "all"])
@pytest.mark.usefixtures("alone")
def test_waiting_begins_again_after_a_while(
    waits_in_vain: Session, tmp_path: Path, files: int, most: int
) -> None:
    """After two waits of a process for a file have ended without the data, the process reads this
    file from the source. After eight such waits in total, it reads all files from the source. After
    some time it waits again, and so does a child that was forked in the meantime."""
    made = make_files(tmp_path / "source", files, 64 * MIB // files)
    session = waits_in_vain.start()
    session.wait_scanned()
    with Steps(session, READS, *made.values()) as program:
        program.wait()
        waits = read_until(session, program, "fallbacks", most)
        assert waits >= most
        program.go()
        program.wait()
        assert session.totals()["waits"] == waits, "the reader waited again too soon"
        waits = read_until(session, program, "waits", waits + 1)
        program.go("fork")
        program.wait()
        read_until(session, program, "waits", waits + 1)
        program.go("")
        program.end()


# Maps the next file at each step.
MAPS = """
for path in sys.argv[1:]:
    step()
    fd = os.open(path, os.O_RDONLY)
    mmap.mmap(fd, 0, prot=mmap.PROT_READ).close()
step()
"""


@pytest.mark.usefixtures("alone")
def test_mappings_wait_in_vain_for_so_long_in_all(
    session_factory: Factory, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A program that maps a file waits for the file's copy. The total time of waits that end
    without a copy is limited. In this test, the limit allows two waits of 0.2 s each."""
    library = build_waiting(tmp_path_factory.mktemp("wasting"), PATIENCE=0.2, WASTE=0.5)
    files = make_files(tmp_path / "source", 6, 4 * MIB)
    limits = {"operations": 1}
    session = session_factory(
        tmp_path / "source", preload=library, source_limits=limits, shared_tpool_size=1, **IN_UNITS
    ).start()
    session.wait_scanned()
    waits = []
    with Steps(session, MAPS, *files.values()) as program:
        program.wait()
        for _ in files:
            program.go()
            program.wait()
            waits.append(session.totals()["waits"])
        program.end()
    assert waits[0] > 0
    assert waits[2:] == [waits[1]] * 4


# --- requests -----------------------------------------------------------------------------------


def take(clients: Any, most: int, files: int = MAX_FILES) -> list[int]:
    ids = np.zeros(most, dtype=np.uint64)
    where = ffi.from_buffer("uint64_t[]", ids)
    taken: list[int] = ids[
        : lib.monarch_take_bits(ffi.addressof(clients.wanted), files, where, most)
    ].tolist()
    return taken


def test_every_request_among_all_files_is_taken_once(clients: Any) -> None:
    rng = np.random.default_rng(16)
    wanted = np.unique(rng.integers(0, MAX_FILES, 5000)).tolist()
    for entry in wanted:
        assert lib.monarch_want_file(clients, entry)
        assert not lib.monarch_want_file(clients, entry), "a second request counts as new"
    taken: list[int] = []
    while some := take(clients, 1000):
        assert len(some) <= 1000
        taken += some
    assert sorted(taken) == wanted
    assert all(lib.monarch_want_file(clients, entry) for entry in wanted[:100])


def test_a_request_of_a_client_that_was_killed_in_the_middle_is_found_by_the_next(
    clients: Any,
) -> None:
    clients.wanted.word[77] = 1 << 5  # as if the client had died before it set the bit in `summary`
    entry = 77 * 64 + 5
    assert take(clients, 64) == []
    assert lib.monarch_want_file(clients, entry)
    assert take(clients, 64) == [entry]


def test_more_files_are_wanted_at_once_than_the_engine_takes_orders(
    session_factory: Factory, tmp_path: Path
) -> None:
    """In one turn, the daemon's loop passes at most 2,048 orders for fills to the engine. If there
    are more requests, the turn must not lose the rest of them."""
    files = make_files(tmp_path / "source", sized(2500, 5000), 16)
    session = session_factory(tmp_path / "source").start()
    session.wait_scanned()
    ids = np.arange(len(files) + 64, dtype=np.uint64)
    segment = Segment.open(session.paths.clients, writable=True)
    clients = segment.as_struct("struct monarch_clients")
    for entry in ids.tolist():
        lib.monarch_want_file(clients, entry)
    lib.monarch_ring_doorbell(clients)
    wait_until(
        lambda: session.status()["sources"][0]["present"] == len(files), what="the end of all fills"
    )
