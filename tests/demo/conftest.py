"""Builds the slow source from this checkout, and mounts it for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_py.demo.slowsource import SlowSource


@pytest.fixture(scope="session")
def binary(slowsource_binary: Path) -> Path:
    return slowsource_binary


@pytest.fixture
def backing(tmp_path: Path) -> Path:
    path = tmp_path / "backing"
    path.mkdir()
    return path


@pytest.fixture
def source(binary: Path, backing: Path, tmp_path: Path) -> Iterator[SlowSource]:
    mountpoint = tmp_path / "mount"
    mountpoint.mkdir()
    with SlowSource(backing, mountpoint, binary=binary) as mounted:
        yield mounted
