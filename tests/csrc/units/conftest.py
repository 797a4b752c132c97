"""Fixtures for the unit tests: the library's functions, and sessions in which tests call them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import Made, ffi, load, made
from csrc.units.place import Place


@pytest.fixture(scope="session")
def lib() -> Any:
    return load()


@pytest.fixture
def session(lib: Any) -> Iterator[Made]:
    with made(lib) as one:
        yield one


@pytest.fixture(scope="module")
def lasting(lib: Any) -> Iterator[Made]:
    """A session that all examples of a test share. So each example must set every field that it
    uses."""
    with made(lib) as one:
        yield one


@pytest.fixture
def place(lib: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The directory of the session that belongs to an empty configuration. The directory does not
    exist yet."""
    monkeypatch.setenv("MONARCH_SHM", str(tmp_path / "shm"))
    (tmp_path / "shm").mkdir()
    config = tmp_path / "c.yaml"
    config.touch()
    found = lib.place_of(bytes(config))
    assert found
    return Place(config, Path(os.fsdecode(ffi.string(found))))
