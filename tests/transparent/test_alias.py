"""If a source is configured by the path of a symbolic link, every call still sees a link at this
path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.session import Session
from support.told import wait_told

SCRIPT = """
import ctypes, os, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
def told(call, *words, **more):
    try: return call(*words, **more)
    except OSError as error: return error.errno
def statx(path, flags):
    room = ctypes.create_string_buffer(256)
    done = libc.statx(-100, os.fsencode(path), flags, 0x7ff, room)
    mode = int.from_bytes(room[28:30], "little")
    return ctypes.get_errno() if done else stat.filemode(mode)
def faccessat(path, flags):
    done = libc.faccessat(-100, os.fsencode(path), os.W_OK, flags)
    return ctypes.get_errno() if done else 0
name = sys.argv[1]
top = os.path.dirname(name)
os.chdir(top)
here = os.open(top, os.O_RDONLY)
link = os.path.basename(name)
plain = [name, link, top + "//" + link, top + "/./" + link, top + "/real/../" + link]
for path in plain + [each + end for each in plain for end in ("/", "/.", "/../" + link)]:
    print(path)
    print(stat.filemode(os.lstat(path).st_mode), stat.filemode(os.stat(path).st_mode))
    print([stat.filemode(told(os.stat, path, dir_fd=here, follow_symlinks=follow).st_mode)
           for follow in (True, False)])
    print([(statx(path, flags), faccessat(path, flags)) for flags in (0, 0x100)])
    print(told(os.readlink, path), told(os.readlink, path, dir_fd=here), os.path.islink(path))
    print([told(os.open, path, os.O_NOFOLLOW | flags) for flags in (0, os.O_DIRECTORY)])
    print(stat.filemode(os.fstat(os.open(path, os.O_NOFOLLOW | os.O_PATH)).st_mode))
    print(os.path.realpath(path + "/f"), open(path + "/f").read(), os.listdir(path))
print([(entry.name, entry.is_symlink()) for entry in os.scandir(top) if entry.name == link])
"""


@pytest.fixture(params=["alias", "real-latest"], ids=["another", "longer"])
def alias(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A symbolic link to the source's directory. Every test runs twice, each time with a different
    name for the link. One of the names begins with the name of the directory."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "f").write_text("content")
    (tmp_path / request.param).symlink_to("real")
    return tmp_path / str(request.param)


@pytest.mark.parametrize("is_told", [False, True])
def test_the_name_of_a_source_that_is_a_link_is_one(
    session_factory: Callable[..., Session], alias: Path, is_told: bool
) -> None:
    session = session_factory(alias).start()
    if is_told:
        wait_told(session)
    words: list[str | Path] = [sys.executable, "-I", "-S", "-c", SCRIPT, alias]
    with_it, without = (session.run(words, preload=preload) for preload in (True, False))
    assert (without.returncode, without.stderr) == (0, "")
    assert (with_it.returncode, with_it.stderr) == (0, "")
    assert with_it.stdout.splitlines() == without.stdout.splitlines()
