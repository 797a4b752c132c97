"""Tests what the library knows about the working directory: whether it is near a source or far from
all sources."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import Made, ffi

UNKNOWN, FAR, NEAR = range(3)
AT_FDCWD = -100


@pytest.fixture
def sources(session: Made) -> Made:
    session.control.sources = 2
    for i, (path, alias) in enumerate(((b"/a/b", b""), (b"/c", b"/x/y"), (b"/unused", b""))):
        source = session.control.source[i]
        source.path, source.path_len = path, len(path)
        source.alias, source.alias_len = alias, len(alias)
    return session


@pytest.mark.parametrize(
    ("cwd", "is_near"),
    [("/", 1), ("/a", 1), ("/a/b", 1), ("/a/b/c", 1), ("/a/bc", 0), ("/a/c", 0), ("/ab", 0),
     ("/c", 1), ("/c/d", 1), ("/cd", 0), ("/x", 1), ("/x/y", 1), ("/x/y/z", 1), ("/x/yz", 0),
     ("/y", 0), ("/unused", 0), ("/home/user", 0)],
)  # fmt: skip
def test_a_directory_above_or_below_a_source_is_near(
    lib: Any, sources: Made, cwd: str, is_near: int
) -> None:
    """A source has a path and may have an alias. A directory is near the source if it is above or
    below the source's path or alias."""
    assert lib.cwd_is_near(sources.s, cwd.encode()) == is_near


@pytest.fixture
def somewhere(lib: Any, tmp_path: Path) -> Iterator[Path]:
    cwd = Path.cwd()
    (tmp_path / "data" / "d").mkdir(parents=True)
    lib.links_forget()
    yield tmp_path
    os.chdir(cwd)
    lib.links_forget()


def test_the_position_is_found_anew_after_each_move(
    lib: Any, session: Made, somewhere: Path
) -> None:
    """After each change of the working directory, the library determines anew whether the directory
    is near a source or far from all sources. A path is far only if it is relative to a far working
    directory and does not contain `..`."""
    session.control.sources = 1
    source, path = session.control.source[0], bytes(somewhere / "data")
    source.path, source.path_len = path, len(path)
    seen = set()
    for where, position in (
        (somewhere / "data", NEAR), (Path("/usr"), FAR), (somewhere / "data" / "d", NEAR),
        (somewhere, NEAR), (Path("/"), NEAR), (Path("/proc"), FAR),
    ):  # fmt: skip
        for by_descriptor in (False, True):
            if by_descriptor:
                fd = os.open(where, os.O_RDONLY)
                assert lib.cwd_fchdir(fd) == 0
                os.close(fd)
            else:
                assert lib.cwd_chdir(bytes(where)) == 0
            assert Path.cwd() == where
            assert lib.cwd_position() & 3 == UNKNOWN
            assert not lib.cwd_is_far(AT_FDCWD, b"f")
            lib.cwd_find(session.s)
            assert lib.cwd_position() & 3 == position
            assert lib.cwd_is_far(AT_FDCWD, b"f") == (position == FAR)
            for odd in (b"/f", b"../f", b"d/../../f"):
                assert not lib.cwd_is_far(AT_FDCWD, odd)
            assert not lib.cwd_is_far(5, b"f")
            assert lib.cwd_position() not in seen, "each move counts"
            seen.add(lib.cwd_position())
    assert lib.cwd_chdir(b"/none") == -1 and lib.cwd_fchdir(-1) == -1
    assert Path.cwd() == Path("/proc")


def test_a_position_that_is_found_during_a_move_is_forgotten(
    lib: Any, session: Made, somewhere: Path
) -> None:
    """The position says whether the working directory is near a source. A call that changes the
    working directory makes the position unknown. If another thread determines the position during
    this call, the position is unknown again after the call, because that thread may have examined
    the old directory."""
    session.control.sources = 1
    source, path = session.control.source[0], bytes(somewhere / "data")
    source.path, source.path_len = path, len(path)
    lib.cwd_watch(session.s)
    try:
        for where in (Path("/usr"), somewhere / "data"):
            fd = os.open(where, os.O_RDONLY)
            for move, to in ((lib.cwd_chdir, bytes(where)), (lib.cwd_fchdir, fd)):
                lib.cwd_find(session.s)
                assert lib.cwd_position() & 3 != UNKNOWN
                assert move(to) == 0
                assert lib.cwd_seen_within() & 3 == UNKNOWN
                assert lib.cwd_position() & 3 == UNKNOWN
            os.close(fd)
    finally:
        lib.cwd_watch(ffi.NULL)


def test_a_directory_that_was_removed_is_far(lib: Any, session: Made, somewhere: Path) -> None:
    session.control.sources = 1
    source, path = session.control.source[0], bytes(somewhere / "data")
    source.path, source.path_len = path, len(path)
    gone = somewhere / "data" / "gone"
    gone.mkdir()
    assert lib.cwd_chdir(bytes(gone)) == 0
    gone.rmdir()
    lib.cwd_find(session.s)
    assert lib.cwd_position() & 3 == FAR
