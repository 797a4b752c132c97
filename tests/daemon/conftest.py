"""Fixtures that the daemon's tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon.engine_site import Engine
from daemon.old_files import OldFiles
from daemon.planned_site import Factory, Site

from monarch_py.demo.slowsource import SlowSource


@pytest.fixture(scope="session", autouse=True)
def old_files(tmp_path_factory: pytest.TempPathFactory) -> OldFiles:
    return OldFiles(tmp_path_factory.mktemp("old"))


@pytest.fixture
def site(session_factory: Factory, slow_factory: Callable[..., SlowSource], tmp_path: Path) -> Site:
    return Site(session_factory, slow_factory(), tmp_path)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(tmp_path)
    yield made
    made.close()
