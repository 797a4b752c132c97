"""Every spelling of a file's path leads to the file's copy, or to the same error as without the
library. This is tested with several working directories and directory descriptors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from support.session import Session

NAMES = ("f", "d/f", "%f", "~f", "-f", " f", ".f", "...", "é", "d/%f")
# Opens each name in many spellings, with each working directory and directory descriptor, and
# prints the content or the error.
OPENS = """
import os, sys, tempfile
source, names = sys.argv[1], sys.argv[2:]
removed = tempfile.mkdtemp()
places = {
    "source": source, "in it": f"{source}/d", "above": f"{source}/..", "/": "/", "gone": removed,
}
at = {
    "source": os.open(source, os.O_RDONLY), "in it": os.open(f"{source}/d", os.O_PATH),
    "/": os.open("/", os.O_RDONLY), "gone": os.open(removed, os.O_RDONLY),
    "file": os.open(__file__, os.O_RDONLY), "none": 9999, "working directory": None,
}
for place, directory in places.items():
    os.chdir(directory)
    if directory == removed:
        os.rmdir(removed)
    for name in names:
        spellings = [
            name, f"./{name}", f".//{name}", f"../{name}", f"d/../{name}", f"{name}/",
            f"../source/{name}", f"{source}/{name}", f"{source}//{name}", f"//{source}/{name}",
            f"{source}/./d/../{name}", f"/.{source}/{name}", f"{source}/../source/{name}",
            f"{source}/nothing/../{name}",
        ]
        for spelled in spellings:
            for how, fd in at.items():
                try:
                    opened = os.open(spelled, os.O_RDONLY, dir_fd=fd)
                except OSError as error:
                    print(place, how, spelled, error.errno)
                    continue
                print(place, how, spelled, "opened", os.read(opened, 100))
                os.close(opened)
"""


# Opens many paths through a link outside the source, in several rounds. Prints how many opens a
# round makes.
THROUGH = """
import os, sys
rounds, source, names = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
link = os.path.join(os.path.dirname(source), "elsewhere", "link")
places = {source: "../elsewhere/link", os.path.dirname(source): "elsewhere/link", "/": link[1:]}
at = None, os.open(source, os.O_RDONLY), os.open("/", os.O_RDONLY), 9999
for _ in range(rounds):
    opened = 0
    for place, relative in places.items():
        os.chdir(place)
        for name in names:
            for path, fd in (f"{relative}/{name}", None), *((f"{link}/{name}", fd) for fd in at):
                found = os.open(path, os.O_RDONLY, dir_fd=fd)
                assert os.read(found, 100).decode() == name, path
                os.close(found)
                opened += 1
print(opened)
"""


def test_every_spelling(session_factory: Callable[..., Session], tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    for name in NAMES:
        (source / name).write_text(name)
    script = tmp_path / "opens.py"
    script.write_text(OPENS)
    session = session_factory(source, prefetch="eager").start()
    session.wait_idle()
    before = session.totals()
    done = [
        session.run([sys.executable, "-S", script, source, *NAMES], preload=preload)
        for preload in (True, False)
    ]
    assert [end.returncode for end in done] == [0, 0], done[0].stderr
    assert done[0].stdout.splitlines() == done[1].stdout.splitlines()
    after, opened = session.totals(), done[0].stdout.count(" opened ")
    assert opened > 1000
    assert after["hits"] - before["hits"] == opened


def test_every_spelling_through_a_link(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """In the first round, opens through a link show the library where the link leads. In later
    rounds, each open gets the copy."""
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    for name in NAMES:
        (source / name).write_text(name)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/link").symlink_to("../source")
    session = session_factory(source, prefetch="eager").start()
    session.wait_idle()

    def hits(rounds: int) -> tuple[int, int]:
        """Runs this number of rounds. Returns how many opens each round makes, and how many opens
        of all rounds together got copies."""
        before = session.totals()["hits"]
        opened = int(session.python(THROUGH, str(rounds), source, *NAMES))
        return opened, session.totals()["hits"] - before

    opened, learning = hits(1)
    assert opened > 100
    assert hits(3) == (opened, learning + 2 * opened)
