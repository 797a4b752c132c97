"""Even in the first epoch, the source serves every byte only once, no matter how programs read the
files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon.patience import build_waiting
from support.draws import cases, sized
from support.epoch import Reader, make_files
from support.session import IN_UNITS, MIB, Session

from monarch_py.demo.slowsource import SlowSource

UNIT = 256 << 10
MANY, SMALL = sized(8, 16), sized(150, 300)
Factory = Callable[..., Session]


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose readers do not give up on a daemon that gets no CPU time on a busy
    machine."""
    return build_waiting(tmp_path_factory.mktemp("patient"), PATIENCE=60, SILENCE=60)


@pytest.fixture
def source(slow_factory: Callable[..., SlowSource]) -> SlowSource:
    """A source that drops a file's pages from the page cache at each open, as a file system under
    load may do."""
    mounted = slow_factory()
    mounted.rate(200e6)
    mounted.latency(read=0.0005)
    return mounted


def served_share(session: Session, source: SlowSource, size: int, *readers: Reader) -> float:
    """Waits until all readers and fills have ended. Returns the number of bytes that the source has
    served, relative to `size`. Asserts that the fills have read each byte once, and that the
    programs have read none. FUSE itself may have read more bytes from the source."""
    for reader in readers:
        reader.end()
    session.wait_idle()
    print(source.counts(), {n: session.totals()[n] for n in ("waits", "fallbacks", "promotions")})
    assert session.status()["sources"][0]["filling"] == 0
    totals = session.totals()
    assert totals["source_bytes_read_by_fills"] == size
    assert (totals["source_bytes_read_by_programs"], totals["fallbacks"]) == (0, 0)
    return source.counts()["bytes_read"] / size


@pytest.fixture
def start(session_factory: Factory, source: SlowSource, preload: Path) -> Factory:
    """Returns a function that starts a session with the given settings, and resets the source's
    counters after the scan."""

    def started(**more: float) -> Session:
        session = session_factory(source.mountpoint, preload=preload, **IN_UNITS | more).start()
        session.wait_scanned()
        source.reset()
        return session

    return started


@pytest.mark.parametrize("way", cases(["read", "pread", "readv"], short=["readv"]))
def test_sequential_readers_of_large_files(
    start: Factory, source: SlowSource, epoch_reader: Path, way: str
) -> None:
    files = make_files(source.backing, MANY, 4 * MIB)
    session = start()
    with Reader(epoch_reader, session, way, UNIT, 8, source.mountpoint, files) as reader:
        # FUSE reads up to 128 KiB ahead. Each open may drop these bytes from the page cache, so
        # that they are read again.
        assert served_share(session, source, MANY * 4 * MIB, reader) <= 1.04


def test_random_reads_of_large_files(
    start: Factory, source: SlowSource, epoch_reader: Path
) -> None:
    files = make_files(source.backing, 4, 12 * MIB)
    session = start()
    with Reader(epoch_reader, session, "random", 65536, 8, source.mountpoint, files) as reader:
        assert served_share(session, source, 4 * 12 * MIB, reader) <= 1.05


@pytest.mark.long  # Runs only with --long. The next test always runs, and covers this case.
@pytest.mark.parametrize("way", ["read,late", "random,late"])
def test_many_readers_of_one_file(
    start: Factory, source: SlowSource, epoch_reader: Path, way: str
) -> None:
    """Each reader has a descriptor of its own. All descriptors are open before the first read
    begins the fill. If a reader opened the file after that, FUSE would drop the file's pages from
    the page cache, and the source would serve these bytes again."""
    files = make_files(source.backing, 1, 24 * MIB)
    session = start(fill_after=0.0001)
    with Reader(epoch_reader, session, way, 100_000, 9, source.mountpoint, files) as reader:
        assert served_share(session, source, 24 * MIB, reader) <= 1.02


def test_many_processes_that_read_one_file(
    start: Factory, source: SlowSource, epoch_reader: Path
) -> None:
    """The fills read each byte once. But FUSE may read some bytes again: at each open, it throws
    away the pages of every read in flight."""
    in_flight, threads = 4, 3
    files = make_files(source.backing, 1, 24 * MIB)
    session = start(shared_tpool_size=in_flight)
    words = (epoch_reader, session, "read", 100_000, threads, source.mountpoint, files)
    with Reader(*words) as one, Reader(*words) as two, Reader(*words) as three:
        thrown_away = 3 * threads * in_flight * UNIT
        served = served_share(session, source, 24 * MIB, one, two, three)
    assert served <= 1 + thrown_away / (24 * MIB)


@pytest.mark.parametrize("way", cases(["read", "pread"], short=["pread"]))
def test_small_files_read_whole(
    start: Factory, source: SlowSource, epoch_reader: Path, way: str
) -> None:
    """Each read asks for more bytes than the file has, like reads of programs that do not know the
    file's size."""
    size = 100_000
    files = make_files(source.backing, SMALL, size)
    # The fill begins with the first read. If it began before the reader's open() has ended, FUSE
    # would drop the pages that the fill has just read, and they would be read again.
    session = start(fill_after=0.0001)
    with Reader(epoch_reader, session, way, MIB, 4, source.mountpoint, files) as reader:
        assert served_share(session, source, SMALL * size, reader) == 1.0
    assert session.totals()["fills"] == SMALL


def test_small_files_that_are_filled_from_the_open_on(
    start: Factory, source: SlowSource, epoch_reader: Path
) -> None:
    """Here a fill may begin while the reader's open() is under way. FUSE's open() then throws away
    the pages that the fill has just read, and the source serves these bytes again. On a busy
    machine, a fifth of all bytes were served twice."""
    size = 100_000
    files = make_files(source.backing, SMALL, size)
    session = start(handover_size=0)
    with Reader(epoch_reader, session, "read", MIB, 4, source.mountpoint, files) as reader:
        # Each open() throws away at most the pages that one fill has read, so the source serves
        # each byte at most twice.
        assert served_share(session, source, SMALL * size, reader) <= 2
    assert session.totals()["fills"] == SMALL


def test_a_reader_that_stops_half_way(start: Factory, source: SlowSource) -> None:
    """A reader stops in the middle of the file, and the fill goes on to the file's end. Together
    they get each byte from the source only once. As in the tests above, the fill begins with the
    first read."""
    (path,) = make_files(source.backing, 1, 16 * MIB).values()
    session = start(fill_after=0.0001)
    script = "import os,sys; fd=os.open(sys.argv[1],0); [os.read(fd, 1 << 18) for _ in range(20)]"
    words = [sys.executable, "-I", "-S", "-c", script, str(source.mountpoint / path.name)]
    subprocess.run(words, env=session.env(), check=True, timeout=60)
    assert served_share(session, source, 16 * MIB) <= 1.02
