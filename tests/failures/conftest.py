"""Mounts that outlive the sessions on them, and a look at what a daemon costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.mounts import Mounts
from support.session import Session


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    place = tmp_path / "mounts"
    place.mkdir()
    with Mounts(place) as made:
        yield made


@pytest.fixture
def session_factory(
    mounts: Mounts, session_factory: Callable[..., Session]
) -> Callable[..., Session]:
    """As everywhere, but daemons end before the mounts below them go."""
    return session_factory
