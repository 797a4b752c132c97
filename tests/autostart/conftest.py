"""Sessions that have no daemon until a program under the library starts one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from autostart.started import Started, started
from csrc.building import build_program
from support.files import Files
from support.session import Session

HERE = Path(__file__).parent


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(5, 3000)


@pytest.fixture
def site(session_factory: Callable[..., Session], files: Files) -> Iterator[Started]:
    yield from started(lambda: session_factory(files.root, autostart=True, idle_exit="60s"))


@pytest.fixture
def short_lived(session_factory: Callable[..., Session], files: Files) -> Iterator[Started]:
    """A session whose daemon ends 2 s after the end of the last program that used it. The daemon of
    the fixture `site` ends only after 60 s."""
    yield from started(lambda: session_factory(files.root, autostart=True, idle_exit="2s"))


@pytest.fixture
def unwished(session_factory: Callable[..., Session], files: Files) -> Iterator[Started]:
    yield from started(lambda: session_factory(files.root, autostart=False))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_program(tmp_path_factory.mktemp("places") / "places", HERE / "places.c")
