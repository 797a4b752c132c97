"""The slow source, built from this checkout and mounted on a directory of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_py.demo.slowsource import (
    SlowSource,
    SlowSourceError,
    build_slowsource,
    find_slowsource,
    why_unavailable,
)


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        # The checkout's own source first: a package built earlier may be older.
        built = build_slowsource(tmp_path_factory.mktemp("binary"))
    except SlowSourceError as error:
        found = find_slowsource()
        if found is None:
            pytest.skip(str(error))
        built = found
    if reason := why_unavailable(built):
        pytest.skip(reason)
    return built


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
