"""Fixtures that the tests of handovers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from handovers.ground import (
    MANY,
    SIZE,
    SLOW,
    Directory,
    Ground,
    present,
    read,
)
from support.epoch import make_files
from support.session import Session, wait_until

from monarch_py.demo.slowsource import SlowSource


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory, slowsource_binary: Path) -> Iterator[Ground]:
    place = tmp_path_factory.mktemp("ground")
    backing, mountpoint = place / "backing", place / "mount"
    for path in (backing, mountpoint):
        path.mkdir()
    with (
        SlowSource(backing, mountpoint, binary=slowsource_binary, keep_pages=True) as mounted,
        Session(place, mountpoint) as session,
    ):
        yield Ground(mounted, session)


@pytest.fixture
def source(ground: Ground) -> Directory:
    return ground.next()


@pytest.fixture
def session(ground: Ground, source: Directory) -> Session:
    """The session that all tests share. In the directory of the test that requests the session,
    only file 1 has a copy."""
    # The engine accepts no handed-over descriptor before the daemon has granted it room, and the
    # daemon grants room only when a program uses files. So the daemon opens the first file itself.
    read(ground.session, source, "read", 1)
    wait_until(lambda: present(ground.session) == 1, what="the first copy")
    source.reset()
    return ground.session


@pytest.fixture
def own_source(slow_factory: Callable[..., SlowSource]) -> SlowSource:
    """Makes a source for a session that only this test uses."""
    mounted = slow_factory(keep_pages=True)
    make_files(mounted.backing, MANY, SIZE)
    mounted.latency(**SLOW)
    return mounted
