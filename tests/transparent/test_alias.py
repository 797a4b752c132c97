"""A source that is configured by the name of a link: the name itself stays a link."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.session import Session

SCRIPT = """
import os, stat, sys
def told(call, *words, **more):
    try: return call(*words, **more)
    except OSError as error: return error.errno
name = sys.argv[1]
for path in (name, name + "/", name + "/.", os.path.join(os.path.dirname(name), ".", "alias")):
    print(stat.filemode(os.lstat(path).st_mode), stat.filemode(os.stat(path).st_mode))
    print(told(os.readlink, path), os.path.islink(path), os.path.realpath(path + "/f"))
    print(told(os.open, path, os.O_NOFOLLOW | os.O_PATH | os.O_DIRECTORY))
    print(open(path + "/f").read())
"""


@pytest.mark.parametrize("is_scanned", [False, True])
def test_the_name_of_a_source_that_is_a_link_is_one(
    session_factory: Callable[..., Session], tmp_path: Path, is_scanned: bool
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "f").write_text("content")
    alias = tmp_path / "alias"
    alias.symlink_to("real")
    session = session_factory(alias).start()
    if is_scanned:
        session.wait_scanned()
    words: list[str | Path] = [sys.executable, "-I", "-S", "-c", SCRIPT, alias]
    with_it, without = (session.run(words, preload=preload) for preload in (True, False))
    assert (with_it.returncode, with_it.stderr) == (0, "")
    assert with_it.stdout == without.stdout
