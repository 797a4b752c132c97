"""Slow sources, and mounts that outlive the sessions on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.mounts import Mounts
from support.session import Session

from monarch_py.demo.slowsource import SlowSource


@pytest.fixture
def source(tmp_path: Path, slowsource_binary: Path) -> Iterator[SlowSource]:
    """Its kernel remembers no attributes."""
    mountpoint, backing = tmp_path / "mount", tmp_path / "backing"
    mountpoint.mkdir()
    backing.mkdir()
    with SlowSource(backing, mountpoint, binary=slowsource_binary, attr_timeout=0) as mounted:
        yield mounted


@pytest.fixture
def session_factory(
    mounts: Mounts, session_factory: Callable[..., Session]
) -> Callable[..., Session]:
    """As everywhere, but daemons end before the mounts below them go."""
    return session_factory
