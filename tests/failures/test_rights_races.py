"""A process drops its capabilities while one of its threads checks them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from csrc.building import build_program
from support.files import Files
from support.session import Session


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up: run it as root")
def test_an_older_look_does_not_hide_that_rights_are_gone(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """After a process has dropped its capabilities, its opens read the source. This holds even if a
    check of the capabilities began before the drop and still found them (see rights_race.c)."""
    sources = [Path(__file__).with_name(name) for name in ("rights_race.c", "hold.c")]
    program = build_program(tmp_path / "race", *sources, flags=["-pthread"])
    files = Files(tmp_path / "source")
    path = files.add("a", 3000)
    session = session_factory(files.root).start()
    session.wait_all_present()
    done = session.run([program, path])
    if done.returncode == 77:
        pytest.skip("seccomp filters cannot notify a listener here")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"1 {path}\n", "")
