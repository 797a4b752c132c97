"""A process without the library replaces or removes a file, and the daemon has not noticed this
yet. Even so, a program under the library sees its own changes of the file at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.session import Session

# Each command is run by a process without the library, while the file `f` has a copy.
OUTSIDE = {
    "replaces": "echo outside > t; mv t f",
    "removes": "rm f",
    "renames": "mv f g",
}
# Each command is run by a program under the library, after a command of OUTSIDE. Some of the
# commands fail, as they do without the library. No command reads `f` first, because it would read
# the old copy (see consistency.md).
INSIDE = {
    "writes": "echo mine > f",
    "appends": "echo mine >> f",
    "removes": "rm -f f",
    "renames": "mv f h",
    "replaces": "echo mine > t; mv t f",
    "changes the mode": "chmod 600 f",
    "changes the time": "touch -d 2020-01-01 f",
    "truncates": "truncate -s 2 f",
    "links": "ln f h; echo mine > h",
}
LOOK = "cat f; stat -c '%s %a' f; ls; cat f"


def done(session: Session, place: Path, script: str, *, library: bool) -> str:
    """Runs a script in `place`. Returns what the script and LOOK print."""
    words = ["bash", "-c", f"umask 022; cd {place}; {script}; {LOOK}"]
    return session.run(words, preload=library).stdout


@pytest.mark.parametrize("outside", OUTSIDE)
def test_a_program_sees_its_own_changes(
    session_factory: Callable[..., Session], tmp_path: Path, outside: str
) -> None:
    places = {}
    for library in (False, True):
        for name in INSIDE:
            place = tmp_path / ("source" if library else "without") / name.replace(" ", "_")
            place.mkdir(parents=True)
            (place / "f").write_text("old\n")
            places[library, name] = place
    # The daemon compares directories with the source only once an hour.
    session = session_factory(tmp_path / "source", revalidate="1h", prefetch="eager").start()
    session.wait_all_present()
    for place in places.values():
        subprocess.run(["bash", "-c", OUTSIDE[outside]], cwd=place, check=True)
    for name, script in INSIDE.items():
        if name == "links" and outside != "replaces":
            continue  # `f` is gone, so the script cannot make a link to it
        expected = done(session, places[False, name], script, library=False)
        found = done(session, places[True, name], script, library=True)
        assert found == expected, name
        at_source = done(session, places[True, name], "true", library=False)
        assert at_source == expected, name


# Each case has four scripts. The first makes the files. The second is run by a process without the
# library, and the third by a program under the library. The fourth shows the result. The links are
# in the directory above the sources.
ELSEWHERE = {
    "writes through a link to the directory": (
        "echo old > f; ln -s $PWD ../../link_$(basename $PWD)",
        "echo outside > t; mv t f",
        "echo mine > ../../link_$(basename $PWD)/f",
        "cat f; ls",
    ),
    "truncates through a link to the directory": (
        "echo old > f; ln -s $PWD ../../link_$(basename $PWD)",
        "echo outside > t; mv t f",
        "truncate -s 2 ../../link_$(basename $PWD)/f",
        "cat f; ls",
    ),
    "changes the mode through a link to the file": (
        "echo old > f; ln -s $PWD/f ../../link_$(basename $PWD)",
        "echo outside > t; mv t f",
        "chmod 600 ../../link_$(basename $PWD)",
        "stat -c '%s %a' f; cat f",
    ),
    "appends through a link to the file": (
        "echo old > f; ln -s $PWD/f ../../link_$(basename $PWD)",
        "echo outside > t; mv t f",
        "echo mine >> ../../link_$(basename $PWD)",
        "cat f",
    ),
    "appends through a link that has led elsewhere": (
        "echo old > f; mkdir ../../dir_$(basename $PWD); echo old > ../../dir_$(basename $PWD)/f; "
        "ln -s $PWD/../../dir_$(basename $PWD) ../../link_$(basename $PWD)",
        "echo outside > t; mv t f",
        "link=$PWD/../../link_$(basename $PWD); echo mine >> $link/f; echo mine >> $link/f; "
        "env -u LD_PRELOAD ln -sfn $PWD $link; echo mine >> $link/f",
        "cat f",
    ),
    "appends to a file that another process has moved into the source": (
        "echo old > f",
        "true",
        "file=$PWD/../../file_$(basename $PWD); echo mine > $file; echo mine >> $file; "
        "env -u LD_PRELOAD mv $file f; echo mine >> $PWD/f",
        "cat f",
    ),
    "renames a directory that was replaced": (
        "mkdir -p d/s; echo old > d/f; echo old > d/s/f",
        "mv d d.old; mkdir -p d/s; echo outside > d/f; echo outside > d/s/f",
        "mv d e",
        "cat d/f d/s/f; cat e/f e/s/f; stat -c %s d/f; ls",
    ),
    "removes a directory that was replaced": (
        "mkdir d; echo old > d/f",
        "mv d d.old; mkdir d",
        "rmdir d",
        "cat d/f; stat -c %s d/f; ls",
    ),
    "changes the mode of a directory that was replaced": (
        "mkdir d; echo old > d/f",
        "mv d d.old; mkdir d; echo outside > d/f",
        "chmod 700 d",
        "cat d/f; stat -c %a d",
    ),
}


def test_a_program_sees_its_changes_through_links_and_of_directories(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    places = {}
    for library in (False, True):
        for name, (files, _, _, _) in ELSEWHERE.items():
            place = tmp_path / str(library) / "source" / name.replace(" ", "_")
            place.mkdir(parents=True)
            subprocess.run(["bash", "-c", files], cwd=place, check=True)
            places[library, name] = place
    source = tmp_path / "True" / "source"
    session = session_factory(source, revalidate="1h", prefetch="eager").start()
    session.wait_all_present()
    for (_, name), place in places.items():
        subprocess.run(["bash", "-c", ELSEWHERE[name][1]], cwd=place, check=True)
    for name, (_, _, inside, look) in ELSEWHERE.items():
        printed = []
        for library in (False, True):
            script = f"umask 022; cd {places[library, name]}; {inside}; {look}"
            done = session.run(["bash", "-c", script], preload=library)
            printed.append(done.stdout)
        assert printed[0] == printed[1], name


def test_an_open_that_creates_nothing_keeps_the_copy(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_text("old")
    session = session_factory(source, prefetch="eager").start()
    session.wait_all_present()
    script = """
import os, sys
for flags in (os.O_RDONLY, os.O_RDONLY | os.O_CREAT, os.O_RDONLY):
    fd = os.open(sys.argv[1], flags)
    assert os.read(fd, 9) == b"old"
    os.close(fd)
with open(sys.argv[1]) as file:
    assert os.readlink(f"/proc/self/fd/{file.fileno()}") != sys.argv[1]
"""
    session.python(script, source / "f")
    assert session.totals()["misses"] == 0


# Calls with a path of 4096 bytes that has no terminating zero. The byte after the path is not
# mapped.
ENDLESS = """
import ctypes, errno, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
where = libc.mmap(None, 2 * mmap.PAGESIZE, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
assert libc.munmap(ctypes.c_void_p(where + mmap.PAGESIZE), mmap.PAGESIZE) == 0
ctypes.memset(where, ord("/"), mmap.PAGESIZE)
path = ctypes.c_void_p(where + mmap.PAGESIZE - 4096)
for name, *words in (
    ("unlink", path), ("rmdir", path), ("chmod", path, 0o600), ("truncate", path, 0),
    ("rename", path, b"x"), ("link", path, b"x"), ("open", path, 1),
):
    assert libc[name](*words) == -1, name
    assert ctypes.get_errno() == errno.ENAMETOOLONG, name
"""


def test_a_path_without_an_end_is_only_too_long(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    session = session_factory(source).start()
    for library in (False, True):
        words = [sys.executable, "-c", ENDLESS]
        done = session.run(words, preload=library)
        assert (done.returncode, done.stderr) == (0, "")
