"""Tests which interpreter an open starts, and that the open does not wait for the interpreter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from autostart.started import CAT, HELD_UP_US, Started, installed, written
from support.files import Files
from support.session import wait_until

LINES = {
    "named": ("{}/p/bin/python", "python"),
    "moved": ("/gone/bin/python3.99", "python3.99"),
    "too long for a first line": ("/bin/sh", "python3.99"),
}


@pytest.mark.parametrize("line", LINES)
def test_the_interpreter_is_the_one_that_has_installed_the_library(
    site: Started, files: Files, tmp_path: Path, line: str
) -> None:
    """The library starts the interpreter that the first line of bin/monarch names. pip has written
    this line. If the installation was moved, or if the interpreter's path is too long for a line
    with `#!`, the library starts the Python in the directory of bin/monarch."""
    first, name = LINES[line]
    site.learn()
    python = installed(site, tmp_path, first.format(tmp_path), name)
    assert site.run(CAT, files.path("f00001")).returncode == 0
    wait_until(lambda: "it is broken" in site.said(), what="its words in the log")
    arguments = written(python.with_name("arguments"))
    assert arguments[:2] == ["-I", "-c"]
    packages = site.session.preload.parents[1]
    assert arguments[3:] == [str(packages), str(site.session.config), str(files.path("f00001"))]


def test_an_open_does_not_wait_for_an_interpreter_that_hangs(
    site: Started, files: Files, tmp_path: Path, places: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may hold up an exec: run the tests as root")
    site.learn()
    python = installed(site, tmp_path, "/gone/bin/python3.99", "python3.99")
    done = site.run(places, "hang", python, files.path("f00001"), timeout=20)
    if done.returncode == 4:
        pytest.skip("the kernel has no FAN_OPEN_EXEC_PERM: use Linux 5.0 or later")
    assert done.returncode == 0
    assert int(done.stdout.split()[0]) < HELD_UP_US
    wait_until(lambda: "it is broken" in site.said(), what="the start, after the program's end")


def test_a_handler_may_jump_out_of_an_open(
    site: Started, files: Files, tmp_path: Path, places: Path
) -> None:
    site.learn()
    python = installed(site, tmp_path, "/gone/bin/python3.99", "python3.99")
    assert site.run(places, "jump", files.path("f00001")).returncode == 0
    wait_until(lambda: "it is broken" in site.said(), what="the start")
    assert str(site.session.config) in written(python.with_name("arguments"))
