"""Opens of small files while the daemon is filling these files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemon.old_files import OldFiles
from support.session import Session, wait_until

from monarch_py.daemon.copies.concurrency import FIRST
from monarch_py.demo.slowsource import SlowSource

LATENCY_S = 0.4
SIZE = 100_000
# Each line of its input is a path. For each path, opens and reads the file, and prints its digest.
READER = """
import hashlib, os, sys
for line in sys.stdin:
    fd = os.open(line.rstrip("\\n"), os.O_RDONLY)
    print(hashlib.sha256(os.read(fd, 1 << 20)).hexdigest(), flush=True)
    os.close(fd)
"""


class Reader:
    """One process that opens many files. From earlier opens, the process knows how long an open at
    the source takes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, path: Path) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()

    def end(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def read(self, path: Path) -> str:
        self.begin(path)
        return self.end()


@contextmanager
def reader(session: Session) -> Iterator[Reader]:
    argv = [sys.executable, "-c", READER]
    with subprocess.Popen(
        argv, env=session.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Reader(process)
        finally:
            process.kill()


@pytest.fixture
def slow(old_files: OldFiles, slowsource_binary: Path, tmp_path: Path) -> Iterator[SlowSource]:
    mountpoint = tmp_path / "mount"
    mountpoint.mkdir()
    backing = old_files.flat.wait_until_old().root
    with SlowSource(backing, mountpoint, binary=slowsource_binary) as mounted:
        yield mounted


def start(session_factory: Callable[..., Session], slow: SlowSource, **settings: object) -> Session:
    session = session_factory(slow.mountpoint, prefetch="none", **settings).start()
    session.wait_scanned()
    return session


def order(session: Session, *paths: Path) -> None:
    wanted = [[0, path.name] for path in paths]
    entries = session.connection.ask("look", paths=wanted)["entries"]
    session.connection.ask("warm", entries=entries, ticket="test")


def begin_fill(session: Session, slow: SlowSource, *paths: Path) -> None:
    """Orders fills of these files, and waits until each of the fills has begun to read from the
    source."""
    reads = slow.counts()["read"]
    order(session, *paths)
    wait_until(lambda: slow.counts()["read"] >= reads + len(paths), what="the fills")


def test_an_open_waits_for_a_fill_under_way(
    session_factory: Callable[..., Session], slow: SlowSource, old_files: OldFiles
) -> None:
    session, files = start(session_factory, slow), old_files.flat
    first, second, *_ = (slow.mountpoint / name for name in sorted(files.digests))
    slow.latency(open=LATENCY_S, read=LATENCY_S)
    with reader(session) as program:
        assert program.read(first) == files.digests[first.name]
        before = slow.counts()
        begin_fill(session, slow, second)
        assert program.read(second) == files.digests[second.name]
    after = slow.counts()
    assert after["open"] - before["open"] == 1  # by the fill
    assert after["bytes_read"] - before["bytes_read"] == SIZE
    totals = session.totals()
    assert (totals["hits"], totals["misses"], totals["fallbacks"]) == (1, 1, 0)


def test_an_open_waits_for_a_fill_whose_turn_has_not_come(
    session_factory: Callable[..., Session], slow: SlowSource, old_files: OldFiles
) -> None:
    """The fill of a file is still queued when a program opens the file. Then the daemon begins the
    fill at once, and the program waits for it instead of opening the file at the source."""
    session = start(session_factory, slow, shared_tpool_size=FIRST + 1)
    files = old_files.flat
    names = sorted(files.digests)[: FIRST + 2]
    first, *others, last = (slow.mountpoint / name for name in names)
    slow.latency(open=LATENCY_S, read=LATENCY_S)
    with reader(session) as program:
        assert program.read(first) == files.digests[first.name]
        before = slow.counts()
        slow.latency(read=60)
        # At first, at most FIRST fills may be in flight. `others` has FIRST files, so their fills
        # reach this limit, and the fill of `last` is queued.
        begin_fill(session, slow, *others)
        slow.latency(open=LATENCY_S, read=LATENCY_S)
        order(session, last)
        wait_until(lambda: session.status()["sources"][0]["filling"] == FIRST + 1, what="the order")
        assert slow.counts()["open"] - before["open"] == FIRST
        assert program.read(last) == files.digests[last.name]
        slow.latency(read=0)
    after = slow.counts()
    assert after["open"] - before["open"] == FIRST + 1  # by the fills
    totals = session.totals()
    assert (totals["hits"], totals["misses"], totals["fallbacks"]) == (1, 1, 0)


def test_an_open_waits_no_longer_than_the_source_takes(
    session_factory: Callable[..., Session], slow: SlowSource, old_files: OldFiles
) -> None:
    session, files = start(session_factory, slow), old_files.flat
    first, second, third, *_ = (slow.mountpoint / name for name in sorted(files.digests))
    slow.latency(open=LATENCY_S / 4)
    with reader(session) as program:
        program.read(first)
        slow.latency(read=60)
        begin_fill(session, slow, second)
        opens = slow.counts()["open"]
        program.begin(second)
        # The fill takes a minute, but the program opens the source's file after 0.1 to 0.2 s.
        wait_until(lambda: slow.counts()["open"] > opens, timeout=20, what="an open of the source")
        slow.latency(read=0)
        # A new reader, which does not know yet how long the source takes, opens a file for which no
        # fill was ordered.
        with reader(session) as other:
            assert other.read(third) == files.digests[third.name]
