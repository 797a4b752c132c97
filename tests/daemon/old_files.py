"""Files that tests share. They are made early, so that they are soon old enough for their copies to
be recorded in a manifest."""

from __future__ import annotations

from pathlib import Path

from support.epoch import make_files
from support.files import Files

DIRECTORIES, MANY, SIZE = 6, 20, 8_000
# How many files `numbered` has, and the size of each [bytes].
NUMBERED = (200, 50_000)


def add_tree(files: Files) -> Files:
    """Adds directories c0, c1, ... with MANY files each."""
    for directory in range(DIRECTORIES):
        files.add_many(MANY, SIZE, f"c{directory}/f")
    return files


class OldFiles:
    """Files that are made when the first test of this directory starts, so that hardly any test
    has to wait until they are old (`Files.wait_until_old`). Tests may change only `one_tests`.

    flat : ten files of 100 kB
    tree : directories c0, c1, ... of MANY files each
    numbered : a directory of NUMBERED[0] files, each named by the seed of its content
    one_tests : thirty files of 1 kB, for a single test, which changes some of them
    """

    def __init__(self, place: Path) -> None:
        self.flat = Files(place / "flat").add_many(10, 100_000)
        self.tree = add_tree(Files(place / "tree"))
        self.numbered = place / "numbered"
        make_files(self.numbered, *NUMBERED)
        self.one_tests = Files(place / "changing").add_many(30, 1000)
