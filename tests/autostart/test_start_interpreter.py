"""The interpreter that an open starts, and for which it does not wait."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from autostart.started import CAT, HELD_UP_US, Started
from support.files import Files
from support.session import wait_until

from monarch_py.native import LIBRARY

# A Python that writes down its arguments, and says something.
FAKE = '#!/bin/sh\nprintf "%s\\n" "$@" >"$(dirname "$0")/arguments"\necho it is broken >&2\n'


def installed(site: Started, directory: Path, line: str, python: str) -> Path:
    """An installation of the library alone, whose bin/monarch has this first line. Returns the
    interpreter, a fake."""
    packages, programs = directory / "p/lib/python3.99/site-packages", directory / "p/bin"
    (packages / "monarch_py").mkdir(parents=True)
    programs.mkdir()
    shutil.copy(LIBRARY, packages / "monarch_py")
    (programs / python).write_text(FAKE)
    (programs / python).chmod(0o755)
    (programs / "monarch").write_text(f"#!{line}\nimport monarch_py\n")
    site.session.preload = packages / "monarch_py" / LIBRARY.name
    return programs / python


LINES = {
    "named": ("{}/p/bin/python", "python"),
    "moved": ("/gone/bin/python3.99", "python3.99"),
    "too long for a first line": ("/bin/sh", "python3.99"),
}


@pytest.mark.parametrize("line", LINES)
def test_the_interpreter_is_the_one_that_has_installed_the_library(
    site: Started, files: Files, tmp_path: Path, line: str
) -> None:
    """pip writes its path into bin/monarch; in a tree that was moved it lies in bin."""
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
        pytest.skip("the kernel has no FAN_OPEN_EXEC_PERM: it has it since Linux 5.0")
    assert done.returncode == 0
    assert int(done.stdout.split()[0]) < HELD_UP_US
    wait_until(lambda: "it is broken" in site.said(), what="the start, after the program's end")


def test_a_handler_may_jump_out_of_an_open(site: Started, files: Files, places: Path) -> None:
    site.learn()
    assert site.run(places, "jump", files.path("f00001")).returncode == 0
    site.daemon()


def written(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
