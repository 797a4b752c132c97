"""Sources that have more names than they list: what seems to be missing is asked of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.session import Session
from support.told import wait_told

from monarch_py.scan import names_are_exact


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def test_letters_count_here(tree: Path) -> None:
    fd = opened(tree)
    try:
        assert names_are_exact(fd)
    finally:
        os.close(fd)


def test_where_they_do_not(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def folded(path: Any, **more: Any) -> os.stat_result:
        names = os.listdir(tree)
        found = next((name for name in names if name.lower() == str(path).lower()), path)
        return real(found, **more)

    fd = opened(tree)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", folded)
            exact = names_are_exact(fd)
    finally:
        os.close(fd)
    assert not exact


def test_names_that_begin_with_a_dot_are_asked_of_the_source(
    session_factory: Callable[..., Session], tree: Path
) -> None:
    """.snapshot, .zfs and .lustre lead somewhere and are listed nowhere."""
    session = session_factory(tree).start()
    session.wait_scanned()
    wait_told(session)

    def hits(*names: str) -> int:
        before = session.totals()["metadata_hits"]
        program = "import os, sys; print([os.path.exists(p) for p in sys.argv[1:]])"
        said = session.python(program, *[tree / name for name in names])
        assert said == f"{[False] * len(names)}\n"
        return int(session.totals()["metadata_hits"] - before)

    assert hits(".snapshot", ".snapshot/x", "a/.snapshot/x/y") == 0
    assert hits("snapshot", "snapshot/x", "a/snapshot/x/y") == 3
