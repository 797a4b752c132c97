"""Fixtures: a slow source, and sessions that end before the file systems that they use are
unmounted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.mounts import Mounts
from support.session import Session

from monarch_py.demo.slowsource import SlowSource


@pytest.fixture
def source(tmp_path: Path, slowsource_binary: Path) -> Iterator[SlowSource]:
    """Yields a slow source whose attributes the kernel does not cache."""
    mountpoint, backing = tmp_path / "mount", tmp_path / "backing"
    mountpoint.mkdir()
    backing.mkdir()
    with SlowSource(backing, mountpoint, binary=slowsource_binary, attr_timeout=0) as mounted:
        yield mounted


@pytest.fixture
def session_factory(
    mounts: Mounts, session_factory: Callable[..., Session]
) -> Callable[..., Session]:
    """Returns the usual factory of sessions. Its daemons end before `mounts` unmounts the file
    systems that they use."""
    return session_factory
