"""Fixtures for the tests in all folders. Some fixtures need root, FUSE or a mount. If the machine
lacks what a fixture needs, the fixture skips the test and reports what is missing."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from support import draws, probing
from support.alone import MARK, AloneLast
from support.dataset import make_dataset
from support.epoch import build_reader
from support.files import make_tree
from support.mounts import Mounts
from support.session import Session
from support.signals import heed_signals
from support.slowsource import build_slowsource

from monarch_py.demo.slowsource import (
    SlowSource,
    find_slowsource,
    why_unavailable,
)
from monarch_py.storage.apart import spread_subdirectories
from monarch_py.util import hanging

# In CI, the run fails if a test is skipped because something is missing.
pytest_plugins = ["ci_plugin"]

# The time limit [s] of a test marked long. Some of these tests run another project's suite twice.
LONG_LIMIT_S = 2000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests that take minutes as well")


def pytest_configure(config: pytest.Config) -> None:
    heed_signals()
    draws.is_long = config.getoption("--long")
    hanging._ask = probing.ask


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> AloneLast:
    return AloneLast(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    long = [item for item in items if item.get_closest_marker("long")]
    if config.getoption("--long"):
        for item in long:
            item.add_marker(pytest.mark.timeout(LONG_LIMIT_S))
        return
    # These tests are deselected, not skipped: in CI, a skip means that something is missing.
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


def pytest_collection_finish() -> None:
    # The thousands of test objects live until the end of the run. So the garbage collector need not
    # visit them.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Spreads the tests' directories over the block groups of an ext4 file system. Tests create and
    remove thousands of files, which is slow in a single block group."""
    spread_subdirectories(tmp_path_factory.getbasetemp())


@pytest.fixture(params=[MARK])
def alone() -> None:
    """Makes a test run while no other test runs: `@pytest.mark.usefixtures("alone")`."""


@pytest.fixture(scope="session")
def slowsource_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        # The program is built from this checkout if possible, because an installed program may
        # be older.
        built: Path | None = build_slowsource(tmp_path_factory.mktemp("binary"))
    except (OSError, subprocess.CalledProcessError):
        built = find_slowsource()
    if reason := why_unavailable(built):
        pytest.skip(reason)
    assert built is not None
    return built


@pytest.fixture
def slow_factory(tmp_path: Path, slowsource_binary: Path) -> Iterator[Callable[..., SlowSource]]:
    """slow_factory(**settings) mounts a slow source over an empty directory, until the test's end.
    The settings are those of SlowSource."""
    with ExitStack() as stack:

        def mount(**settings: Any) -> SlowSource:
            mountpoint, backing = tmp_path / "mount", tmp_path / "backing"
            mountpoint.mkdir()
            backing.mkdir()
            return stack.enter_context(
                SlowSource(backing, mountpoint, binary=slowsource_binary, **settings)
            )

        yield mount


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    """Makes file systems that are mounted until the test's end."""
    place = tmp_path / "mounts"
    place.mkdir()
    with Mounts(place) as made:
        yield made


@pytest.fixture(scope="session")
def epoch_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program that reads an epoch with threads and checks every byte (support/epoch.py)."""
    return build_reader(tmp_path_factory.mktemp("reader"))


@pytest.fixture
def session_factory(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """session_factory(source, **settings) makes a session that ends with the test. The settings are
    those of Session."""
    with ExitStack() as stack:
        made = 0

        def make(source: Any, *, directory: Path | None = None, **settings: Any) -> Session:
            nonlocal made
            made += 1
            place = directory or tmp_path / f"session{made}"
            place.mkdir(exist_ok=True)
            return stack.enter_context(Session(place, source, **settings))

        yield make


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source directory that make_tree has made."""
    return make_tree(tmp_path / "source")


class SharedSession(Session):
    """A session on a slow source with a large dataset. The dataset has files of many formats."""

    def __init__(self, directory: Path, mounted: SlowSource, mountpoint: Path, **more: Any) -> None:
        super().__init__(directory, mountpoint, **more)
        self._mounted = mounted
        self._slow_down()

    def _slow_down(self) -> None:
        self._mounted.rate(200e6)
        self._mounted.latency(open=0.001, read=0.0005)

    @contextmanager
    def fast_source(self) -> Iterator[None]:
        """Removes the source's delays while the block runs."""
        self._mounted.rate(0)
        self._mounted.latency(open=0, read=0)
        try:
            yield
        finally:
            self._slow_down()

    def source_counts(self) -> dict[str, int]:
        return self._mounted.counts()


def find_dataset(base: Path) -> Path:
    """Returns the dataset's directory. The first worker of pytest makes the dataset. The other
    workers share it, because no test changes the dataset."""
    top = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    made = top / "dataset"
    with (top / "dataset.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make_dataset(top / "dataset.new")
            (top / "dataset.new").rename(made)
    return made


@pytest.fixture(scope="session")
def shared_session(
    tmp_path_factory: pytest.TempPathFactory, slowsource_binary: Path
) -> Iterator[SharedSession]:
    directory = tmp_path_factory.mktemp("shared")
    mountpoint = directory / "mount"
    mountpoint.mkdir()
    backing = find_dataset(tmp_path_factory.getbasetemp())
    with (
        SlowSource(backing, mountpoint, binary=slowsource_binary) as mounted,
        SharedSession(directory, mounted, mountpoint) as session,
    ):
        yield session.start()  # type: ignore[misc]
