"""Fixtures of the trials: the reader program, and sessions on mounts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.mounts import Mounts
from support.session import Session
from trials.reading import build_reader


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_reader(tmp_path_factory.mktemp("trials"))


@pytest.fixture
def session_factory(
    mounts: Mounts, session_factory: Callable[..., Session]
) -> Callable[..., Session]:
    """The fixture of tests/conftest.py. Here it also requires `mounts`, so that the daemons end
    before the file systems that they use are unmounted."""
    return session_factory
