"""A program under the library sees its own changes of a file at once, also if a process without the
library has replaced or removed the file before, and the daemon has not noticed that yet."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.session import Session

# What a process without the library does to `f`, which has a copy.
OUTSIDE = {
    "replaces": "echo outside > t; mv t f",
    "removes": "rm f",
    "renames": "mv f g",
}
# What a program under the library does then. Some of the commands fail, as they do without the
# library. None of them reads `f` before: it would read the old copy, as consistency.md says.
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
    """Runs a script in `place`, and returns what it and LOOK print."""
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
            continue  # the link cannot be made, so the program changes nothing of `f`
        expected = done(session, places[False, name], script, library=False)
        found = done(session, places[True, name], script, library=True)
        assert found == expected, name
        at_source = done(session, places[True, name], "true", library=False)
        assert at_source == expected, name
