"""Copies that are made through the descriptors of programs that have read the files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from handovers.ground import (
    MANY,
    SIZE,
    UNMET,
    WAYS,
    Directory,
    Factory,
    present,
    read,
    reading,
)
from support.draws import cases
from support.epoch import content, make_files
from support.files import digest
from support.session import Session, wait_until
from support.watch import open_by

from monarch_py.demo.slowsource import SlowSource


def has_copies(session: Session, number: int) -> bool:
    return present(session) == number


@pytest.mark.parametrize("way", WAYS)
def test_the_source_sees_one_open_and_every_byte_once(
    session: Session, source: Directory, way: str
) -> None:
    seeds = range(2, MANY + 1)
    read(session, source, way, *seeds)
    wait_until(lambda: present(session) == MANY, what="copies of all files")
    counts = source.counts()
    # On a busy machine, the daemon may close a handed-over descriptor before it orders the fill of
    # the file. To fill the file, the daemon then opens it itself.
    assert len(seeds) <= counts["open"] <= len(seeds) + 1
    assert counts["bytes_read"] <= (len(seeds) + 1) * SIZE
    source.reset()
    read(session, source, way, *seeds)
    assert source.counts()["open"] == source.counts()["bytes_read"] == 0


def takers(session: Session) -> int:
    """Returns how many of the daemon's threads receive descriptors from programs."""
    names = Path("/proc", str(session.status()["pid"]), "task").glob("*/comm")
    return [name.read_text() for name in names].count("monarch-take\n")


def test_no_more_threads_than_descriptors_that_come_at_once(
    session_factory: Factory, own_source: SlowSource
) -> None:
    """Programs hand over one descriptor after the other. While one thread of the daemon receives a
    descriptor, another waits for the next one, so few threads are enough."""
    session = session_factory(own_source.mountpoint).start()
    session.wait_scanned()
    for seed in range(1, MANY + 1):
        read(session, own_source, "read", seed)
        wait_until(partial(has_copies, session, seed), what="the copy")
    assert 1 <= takers(session) <= 3


@pytest.mark.parametrize(
    "way", cases(["read", "parts", "backwards", "mmap", "unseen"], short=["parts", "mmap"])
)
def test_files_that_no_scan_has_met_are_opened_once(
    session_factory: Factory, own_source: SlowSource, way: str
) -> None:
    settings = {"prefetch": "on_demand", "scan_rate": UNMET}
    with session_factory(own_source.mountpoint, **settings).start() as session:
        own_source.reset()
        read(session, own_source, way, *range(1, MANY + 1))
        wait_until(lambda: present(session) == MANY, what="copies of all files")
        counts = own_source.counts()
        assert counts["open"] == MANY
        assert counts["bytes_read"] == MANY * SIZE
        own_source.reset()
        read(session, own_source, way, *range(1, MANY + 1))
        assert own_source.counts()["open"] == 0


def test_a_file_that_is_opened_through_a_link_is_copied_under_its_own_path(
    session_factory: Factory, own_source: SlowSource
) -> None:
    """If the copy were recorded under the path that the program has used, an open of the file's own
    path would not find the copy."""
    made = own_source.backing / "own"
    make_files(made, 3, SIZE)
    (own_source.backing / "directory").symlink_to("own")
    (made / "file").symlink_to("3")
    settings = {"prefetch": "on_demand", "scan_rate": UNMET}
    used = [own_source.mountpoint / name for name in ("own/1", "directory/2", "own/file")]
    own = [own_source.mountpoint / f"own/{seed}" for seed in (1, 2, 3)]
    digests = [digest(content(seed, SIZE)) for seed in (1, 2, 3)]
    with session_factory(own_source.mountpoint, **settings).start() as session:
        assert session.python(reading("read"), *used).split() == digests
        wait_until(lambda: present(session) == 3, what="copies of the three files")
        own_source.reset()
        assert session.python(reading("read"), *own).split() == digests
        assert own_source.counts()["open"] == 0


def test_who_reads_headers_has_no_file_copied(session: Session, source: Directory) -> None:
    source.reset()
    script = "import os, sys\nfor p in sys.argv[1:]: os.read(os.open(p, os.O_RDONLY), 4096)"
    close = "\nfor fd in range(3, 64):\n try: os.close(fd)\n except OSError: pass"
    session.python(script + close, *(source.mountpoint / str(seed) for seed in (2, 3, 4)))
    session.wait_idle()
    assert present(session) == 1
    assert source.counts()["open"] == 3


def test_a_file_that_was_half_read_is_copied_when_it_is_closed(
    session: Session, source: Directory
) -> None:
    script = "import os, sys\nfd = os.open(sys.argv[1], 0)\nos.read(fd, 60_000)\nos.close(fd)"
    session.python(script, source.mountpoint / "2")
    wait_until(lambda: present(session) == 2, what="the copy")
    assert source.counts()["open"] == 1
    read(session, source, "read", 2)


def test_a_file_that_changes_after_it_was_read_is_served_as_it_is(
    session: Session, source: Directory
) -> None:
    """After a program has read a file, the file is changed before its copy is made, or while the
    copy is being made. The next open reads the new content."""
    script = (
        "import os, sys\nfor p in sys.argv[1:]:\n fd = os.open(p, 0)\n"
        " assert len(os.read(fd, 1 << 20)) == 100_000\n"
        " with open(p, 'r+b') as f: f.write(b'new')\n os.close(fd)\n"
        " assert open(p, 'rb').read(3) == b'new', p"
    )
    session.python(script, *(source.mountpoint / str(seed) for seed in range(2, MANY + 1)))
    session.wait_idle()
    check = "import sys\nfor p in sys.argv[1:]: assert open(p, 'rb').read(3) == b'new', p"
    session.python(check, *(source.mountpoint / str(seed) for seed in range(2, MANY + 1)))


def test_a_mount_that_keeps_no_pages_is_learnt(
    session_factory: Factory, slow_factory: Callable[..., SlowSource]
) -> None:
    """If a mount keeps no pages of files in memory, the daemon must read from the source again to
    copy a file that a program has read. The daemon notices this, and then reads the files before
    the programs do."""
    source, many = slow_factory(direct=True), 80
    make_files(source.backing, many, SIZE)
    source.latency(open=0.002, read=0.0005)
    with session_factory(source.mountpoint, prefetch="on_demand").start() as session:
        session.wait_scanned()
        read(session, source, "parts", *range(1, 51))
        wait_until(lambda: present(session) == 50, what="copies of the first files")
        source.reset()
        read(session, source, "parts", *range(51, many + 1))
        wait_until(lambda: present(session) == many, what="copies of all files")
        assert source.counts()["bytes_read"] <= (many - 50 + 1) * SIZE


def test_descriptors_are_closed_when_their_copies_are_made(
    session: Session, source: Directory
) -> None:
    read(session, source, "read", *range(2, MANY + 1))
    wait_until(lambda: present(session) == MANY, what="copies of all files")
    inside = str(source.mountpoint) + "/"
    pid = int(session.status()["pid"])
    wait_until(
        lambda: not [path for path in open_by(pid) if path.startswith(inside)],
        what="the daemon to have no file of the source open",
    )
