"""Alice, an ordinary user, performs the operations of operations.py. She may read, write, list or
search only some of the files and directories. The results under the library are the same as without
it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.ground import Ground, look
from conformance.operations_tree import plant
from conformance.outcomes import difference, unlike
from conformance.test_operations import transcript
from support import draws, users
from support.session import Session, wait_until
from support.users import ALICE, AlicesSession, as_user

# For each directory below ROOT: its owner and its mode. In `d0`, Alice may not make or remove
# files. She may not list `d0/deep`. In `d1`, she may make files, but may remove only her own files.
DIRECTORIES = {
    ".": (ALICE, 0o755),
    "tmp": (ALICE, 0o755),
    "home": (ALICE, 0o755),
    "work": (ALICE, 0o755),
    "work/d0": (0, 0o755),
    "work/d0/deep": (0, 0o711),
    "work/d1": (0, 0o1777),
}
# The files get these owners and modes in turn.
FILES = [(ALICE, 0o644), (0, 0o644), (0, 0o600), (0, 0o666), (ALICE, 0o200), (0, 0o444), (ALICE, 0)]

# Prints what the user may do with each path of a tree. Nothing is changed.
RIGHTS = """
import errno, os, sys

def result(call, *words, **more):
    try:
        found = call(*words, **more)
    except OSError as error:
        return errno.errorcode[error.errno]
    if call is os.open:
        os.close(found)
        return "opened"
    return sorted(found) if call is os.listdir else found

def size_of(path):
    found = os.stat(path)
    return oct(found.st_mode), found.st_uid, 0 if os.path.isdir(path) else found.st_size

root = sys.argv[1]
for name in sys.stdin.read().split("\\0"):
    path = os.path.join(root, name)
    for mode in range(8):
        for effective in (False, True):
            print(name, mode, effective, result(os.access, path, mode, effective_ids=effective))
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_DIRECTORY, os.O_PATH):
        print(name, flags, result(os.open, path, flags))
    for call in (size_of, os.listdir, os.readlink, os.listxattr):
        print(name, call.__name__, result(call, path))
"""
LIST = "import os, sys; [os.listdir(directory) for directory in sys.argv[1:]]"

open_place = pytest.fixture(users.open_place)


def plant_for_alice(root: Path) -> None:
    plant(root)
    work = root / "work"
    for number, path in enumerate(sorted(p for p in work.rglob("*") if not p.is_dir())):
        owner, mode = FILES[number % len(FILES)]
        os.chown(path, owner, owner, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(mode)
    for name, (owner, mode) in DIRECTORIES.items():
        os.chown(root / name, owner, owner)
        (root / name).chmod(mode)


class AlicesGround(Ground):
    """Two directories of Alice. The daemon and the programs run as Alice."""

    def _session(self, **settings: Any) -> Session:
        session = AlicesSession(
            self._place, self.source, tiers=self._tiers, **{"prefetch": "eager", **settings}
        )
        for directory in (session.shm, *session.tiers):
            directory.chmod(0o1777)
        return session

    def python(self, library: bool) -> list[str]:
        ours = users.ours(self.session) if library else []
        return as_user(ALICE, *ours, users.python_for_all())

    def env(self, library: bool, root: Path, **more: str) -> dict[str, str]:
        return super().env(False, root, **more)


def wait_told(ground: Ground) -> None:
    """Waits until the catalog answers the listings of all directories that Alice may list."""
    listed = [
        ground.source / name for name, (owner, mode) in DIRECTORIES.items() if mode & 0o444 == 0o444
    ]

    def is_told() -> bool:
        before = ground.session.totals()["metadata_hits"]
        words = [*ground.python(True), "-I", "-S", "-c", LIST, *map(str, listed)]
        subprocess.run(words, env=ground.env(True, ground.source), check=True, timeout=60)
        told: int = ground.session.totals()["metadata_hits"] - before
        return told == len(listed)

    wait_until(is_told, what="listings of all directories", every=0.1)


@pytest.fixture(scope="module")
def without() -> Iterator[dict[int, tuple[str, dict[str, str]]]]:
    """A dictionary that the tests fill: seed -> the output of the program without the library, and
    the files that this program leaves."""
    yield {}


@pytest.mark.parametrize("seed", draws.cases(range(1, 20), short=(1, 2)))
@pytest.mark.parametrize("prefetch", ["none", "eager"])
def test_every_answer_is_the_same_for_an_ordinary_user(
    open_place: Path, without: dict[int, tuple[str, dict[str, str]]], prefetch: str, seed: int
) -> None:
    as_user(ALICE)  # skips the test if no program can run as Alice
    # The directories of all tests have equally long names, so that paths are equally long too.
    with AlicesGround(open_place, plant_for_alice, prefetch=prefetch) as ground:
        if prefetch == "eager":
            wait_until(lambda: not ground.session.status()["pending"], what="all copies")
            assert ground.files()["present"] > 0
        wait_told(ground)
        library = transcript(ground, True, seed)
        if seed not in without:
            said = transcript(ground, False, seed)
            assert said.endswith("status 0\n"), said[-2000:]
            assert "EACCES" in said and "EPERM" in said
            without[seed] = said, look(ground.without)
        expected, left = without[seed]
        assert not difference(expected, library), f"seed {seed}, {prefetch}"
        assert unlike(left, look(ground.source)) == []
        assert (ground.hits() > 0) == (prefetch == "eager")


def rights(ground: Ground, library: bool) -> str:
    """Returns the output of RIGHTS for all paths of the tree, and for some that do not exist."""
    root = ground.root(library) / "work"
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    assert "d0/deep/f0" in names
    done = subprocess.run(
        [*ground.python(library), "-I", "-S", "-c", RIGHTS, str(root)],
        input="\0".join(["", *names, "absent", "d0/absent", "d0/deep/absent", "f0/below"]),
        env=ground.env(library, root),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@pytest.mark.parametrize("prefetch", ["none", "eager"])
def test_an_ordinary_user_has_the_same_rights(open_place: Path, prefetch: str) -> None:
    as_user(ALICE)  # skips the test if no program can run as Alice
    with AlicesGround(open_place, plant_for_alice, prefetch=prefetch) as ground:
        if prefetch == "eager":
            wait_until(lambda: not ground.session.status()["pending"], what="all copies")
        wait_told(ground)
        without = rights(ground, library=False)
        assert "EACCES" in without
        assert rights(ground, library=True) == without
        assert (ground.hits() > 0) == (prefetch == "eager")
