"""In the first epoch too every byte leaves the source once, whoever reads it and how."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.epoch import Reader, make_files
from support.session import MIB, Session

from monarch_py.demo.slowsource import SlowSource

UNIT = 256 << 10
Factory = Callable[..., Session]


@pytest.fixture
def source(slow_factory: Callable[..., SlowSource]) -> SlowSource:
    """Without a page in its cache from one open to the next, as a file system under load."""
    mounted = slow_factory()
    mounted.rate(200e6)
    mounted.latency(read=0.0005)
    return mounted


def served_share(session: Session, source: SlowSource, size: int, *readers: Reader) -> float:
    """Bytes that the source has served when all have read and all is filled, of those there are."""
    for reader in readers:
        reader.end()
    session.wait_idle()
    print(source.counts(), {n: session.totals()[n] for n in ("waits", "fallbacks", "promotions")})
    assert session.status()["sources"][0]["filling"] == 0
    return source.counts()["bytes_read"] / size


def start(session_factory: Factory, source: SlowSource, **more: float) -> Session:
    session = session_factory(source.mountpoint, **more).start()
    session.wait_scanned()
    source.reset()
    return session


@pytest.mark.parametrize("way", ["read", "pread", "readv"])
def test_sequential_readers_of_large_files(
    session_factory: Factory, source: SlowSource, epoch_reader: Path, way: str
) -> None:
    files = make_files(source.backing, 16, 4 * MIB)
    session = start(session_factory, source)
    with Reader(epoch_reader, session, way, UNIT, 8, source.mountpoint, files) as reader:
        assert served_share(session, source, 16 * 4 * MIB, reader) <= 1.02


def test_random_reads_of_large_files(
    session_factory: Factory, source: SlowSource, epoch_reader: Path
) -> None:
    files = make_files(source.backing, 4, 12 * MIB)
    session = start(session_factory, source)
    with Reader(epoch_reader, session, "random", 65536, 8, source.mountpoint, files) as reader:
        assert served_share(session, source, 4 * 12 * MIB, reader) <= 1.05


@pytest.mark.parametrize("way", ["read,late", "random,late"])
def test_many_readers_of_one_file(
    session_factory: Factory, source: SlowSource, epoch_reader: Path, way: str
) -> None:
    """Each with a descriptor of its own. All are open before the first read begins the fill: FUSE
    throws away at an open() what was just read for another, and reads it again."""
    files = make_files(source.backing, 1, 24 * MIB)
    session = start(session_factory, source, fill_after=0.0001)
    with Reader(epoch_reader, session, way, 100_000, 9, source.mountpoint, files) as reader:
        assert served_share(session, source, 24 * MIB, reader) <= 1.02


def test_many_processes_that_read_one_file(
    session_factory: Factory, source: SlowSource, epoch_reader: Path
) -> None:
    files = make_files(source.backing, 1, 24 * MIB)
    session = start(session_factory, source)
    words = (epoch_reader, session, "read", 100_000, 3, source.mountpoint, files)
    with Reader(*words) as one, Reader(*words) as two, Reader(*words) as three:
        assert served_share(session, source, 24 * MIB, one, two, three) <= 1.05


@pytest.mark.parametrize("way", ["read", "pread"])
def test_small_files_read_whole(
    session_factory: Factory, source: SlowSource, epoch_reader: Path, way: str
) -> None:
    """In a call that asks for more than there is, as programs do that do not know the size."""
    size = 100_000
    files = make_files(source.backing, 300, size)
    # A fill that begins while the reader's open() is under way may be asked for again by FUSE
    # itself, whose open() throws away the pages that were just read. So it begins with the read.
    session = start(session_factory, source, fill_after=0.0001)
    with Reader(epoch_reader, session, way, MIB, 4, source.mountpoint, files) as reader:
        assert served_share(session, source, 300 * size, reader) == 1.0
    assert session.totals()["fills"] == 300


def test_small_files_that_are_filled_from_the_open_on(
    session_factory: Factory, source: SlowSource, epoch_reader: Path
) -> None:
    """The few bytes more are FUSE's, see the test before this one."""
    size = 100_000
    files = make_files(source.backing, 300, size)
    session = start(session_factory, source)
    with Reader(epoch_reader, session, "read", MIB, 4, source.mountpoint, files) as reader:
        assert served_share(session, source, 300 * size, reader) <= 1.05
    # The reader itself has had every byte from a copy.
    assert session.totals()["fallbacks"] == 0


def test_a_reader_that_stops_half_way(session_factory: Factory, source: SlowSource) -> None:
    """What it has read and what is filled behind it are the same bytes."""
    (path,) = make_files(source.backing, 1, 16 * MIB).values()
    session = start(session_factory, source)
    script = "import os,sys; fd=os.open(sys.argv[1],0); [os.read(fd, 1 << 18) for _ in range(20)]"
    words = [sys.executable, "-I", "-S", "-c", script, str(source.mountpoint / path.name)]
    subprocess.run(words, env=session.env(), check=True, timeout=60)
    assert served_share(session, source, 16 * MIB) <= 1.02
