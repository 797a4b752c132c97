"""The daemon looks up files whose fill has failed because they had changed, and retries the fills.

The daemon's loop does not run here: each test takes the steps that it is about.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.epoch import make_files
from support.session import Session, wait_until

from monarch_py.config.load import load_config
from monarch_py.daemon.fill.failures import TRIES, FailedFills
from monarch_py.daemon.server import Daemon
from monarch_py.ipc import word
from monarch_py.native import Reason, State

NEW_BYTES = 200


class Changed:
    """A daemon with one file, which has grown to NEW_BYTES since the scan."""

    def __init__(self, daemon: Daemon, path: Path) -> None:
        self.daemon, self.path = daemon, path
        wait_until(self._is_scanned, what="the scan")
        self.entry = daemon.scanner.find(0, path.name)
        self.ids = np.array([self.entry], dtype=np.uint64)
        path.write_bytes(bytes(NEW_BYTES))

    def _is_scanned(self) -> bool:
        self.daemon.scanner.step()
        return self.daemon.scanner.scanned

    @property
    def failed(self) -> FailedFills:
        return self.daemon.filler.failed

    @property
    def state(self) -> State:
        return State(int(self.daemon.shared.catalog.states(self.ids)[0]))

    @property
    def size(self) -> int:
        return int(self.daemon.shared.catalog.entries["size"][self.entry])

    def fail(self, *, in_use: bool = False) -> None:
        self.failed._source_changed(self.entry, in_use=in_use)

    def wait_retried(self) -> None:
        def is_retried() -> bool:
            self.failed.retry_changed()
            return not self.failed.changed

        wait_until(is_retried, what="a look at the file")

    def set_state(self, state: State) -> None:
        self.daemon.shared.catalog.set_state(self.ids, state)


@pytest.fixture
def changed(
    monkeypatch: pytest.MonkeyPatch, session_factory: Callable[..., Session], tmp_path: Path
) -> Iterator[Changed]:
    root = tmp_path / "source"
    (path,) = make_files(root, 1, 100).values()
    session = session_factory(root)
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    session.paths.make()
    daemon = Daemon(load_config(session.config), session.paths)
    try:
        yield Changed(daemon, path)
    finally:
        daemon.close()


@pytest.mark.parametrize("in_use", [False, True])
def test_a_changed_file_is_looked_up_and_queued_again(changed: Changed, in_use: bool) -> None:
    requests = changed.daemon.filler.requests
    changed.fail(in_use=False)
    changed.fail(in_use=in_use)  # a program has opened the file meanwhile, and its fill has failed
    assert (changed.state, changed.size, len(requests)) == (State.WANTED, 100, 0)
    changed.wait_retried()
    assert (changed.state, changed.size, len(requests)) == (State.WANTED, NEW_BYTES, 1)
    assert len(requests.ahead) == (0 if in_use else 1)


def test_a_file_whose_fill_was_cancelled_only_gets_its_new_attributes(changed: Changed) -> None:
    changed.fail()
    changed.set_state(State.ABSENT)
    changed.wait_retried()
    assert (changed.state, changed.size) == (State.ABSENT, NEW_BYTES)
    assert not len(changed.daemon.filler.requests)


def test_a_removed_file_is_left_to_the_source(changed: Changed) -> None:
    changed.path.unlink()
    changed.fail()
    changed.wait_retried()
    now = changed.daemon.shared.catalog.words[changed.ids]
    assert (changed.state, int(word.reason(now)[0])) == (State.BYPASS, Reason.CHANGED)


def test_a_file_that_changes_again_and_again_is_left_to_the_source(changed: Changed) -> None:
    for _ in range(TRIES):
        changed.fail()
        changed.wait_retried()
        assert changed.state == State.WANTED
    changed.fail()
    assert (changed.state, changed.failed.changed) == (State.BYPASS, 0)


@pytest.mark.parametrize("how", ["filling", "leaving"])
def test_a_file_is_looked_up_once_nothing_else_happens_to_it(changed: Changed, how: str) -> None:
    """A program has the file filled meanwhile, or an old copy of the file is still being
    removed."""
    changed.fail()
    busy = word.make(State.FILLING if how == "filling" else State.WANTED, 0, 0, 7)
    changed.daemon.shared.catalog.set_words(changed.ids, busy)
    changed.failed.retry_changed()
    assert not len(changed.failed._looks)
    changed.set_state(State.WANTED)
    changed.wait_retried()
    assert (changed.state, changed.size) == (State.WANTED, NEW_BYTES)


@pytest.mark.parametrize("state", [State.PRESENT, State.BYPASS])
def test_a_file_that_another_part_has_handled_stays_as_it_is(
    changed: Changed, state: State
) -> None:
    changed.fail()
    changed.set_state(state)
    changed.wait_retried()
    assert (changed.state, changed.size) == (state, 100)


def test_a_file_is_looked_up_again_after_a_rename(changed: Changed) -> None:
    changed.fail()
    changed.failed.retry_changed()
    wait_until(lambda: not changed.failed._looks._answers.empty(), what="an answer")
    changed.daemon.shared.clients.renames += 1
    os.unlink(changed.path)
    changed.failed.retry_changed()
    assert (changed.state, changed.failed.changed) == (State.WANTED, 1)
    changed.wait_retried()
    assert changed.state == State.BYPASS
