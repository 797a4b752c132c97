"""A small source, a session on it, and a daemon that `monarch start` has started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest
from cli.sites import SiteSession, is_running
from support.command_line import run_monarch
from support.files import Files
from support.session import Session, wait_until

FILES = {"a": 70_000, "b": 20_000, "d/c": 5}
# The number of files in the directory `many`, which is beside `old_source`. One file is empty, the
# others contain 10 bytes each.
MANY = 3000
Factory = Callable[..., Session]


class Monarch(Protocol):
    def __call__(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]: ...


def make_source(root: Path) -> Path:
    for number, (name, size) in enumerate(FILES.items()):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(bytes([number]) * size)
    return root


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "dataset")


@pytest.fixture(scope="session")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same files as in `source`, shared by tests that do not change them. The files are old, so
    the daemon records their copies at once. If a file has only just changed, the daemon waits two
    seconds before it records the file's copy."""
    place = tmp_path_factory.mktemp("old")
    Files(place / "many").add_many(MANY - 1, 10).add("empty", 0)
    return make_source(place / "dataset")


@pytest.fixture
def session(session_factory: Factory, source: Path) -> Session:
    """A session on `source` without a daemon."""
    return session_factory(source)


@pytest.fixture
def served(session: Session) -> Session:
    session.start().wait_all_present()
    return session


@pytest.fixture
def monarch(tmp_path: Path) -> Monarch:
    """Returns a function that runs `monarch WORDS`. The command finds a configuration only in the
    words and the environment that are passed to the function."""
    shm = tmp_path / "empty-shm"
    shm.mkdir()

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        base = {k: v for k, v in os.environ.items() if not k.startswith("MONARCH_")}
        base.pop("LD_PRELOAD", None)
        more = {"MONARCH_SHM": str(shm), "COLUMNS": "200", **environment}
        return run_monarch(words, {**base, **more})

    return run


@pytest.fixture
def started(session: Session) -> Iterator[tuple[Session, int]]:
    """A session whose daemon `monarch start` has started, and the daemon's process ID."""
    done = session.monarch("start")
    assert done.returncode == 0, done.stderr
    pid = int(done.stdout.rpartition("process ")[2].rstrip(")\n"))
    yield session, pid
    if is_running(pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not is_running(pid), what="the end of the daemon that was started")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SiteSession]:
    session = SiteSession(tmp_path)
    yield session
    session.stop_all()
