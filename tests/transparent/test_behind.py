"""A lock or lease that a program takes through the descriptor of a copy is released at the same
moment as without the library, even if the program closes or replaces backing descriptors. If a
process has chosen a signal for its lease, it gets this signal when another process breaks the
lease."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from csrc.building import build_program
from support.session import Session

PROGRAM = Path(__file__).with_name("behind.c")
CASES = re.findall(r'^    \{"(\w+)", \w+\},', PROGRAM.read_text(), re.M)
CONTENT = "the first line\nthe second line\n"


@dataclass(frozen=True)
class Behind:
    session: Session
    program: Path
    source: Path


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    top = tmp_path_factory.mktemp("behind")
    source = top / "source"
    source.mkdir()
    for case in CASES:
        (source / case).write_text(CONTENT)
    (source / "other").write_text(CONTENT)
    with Session(top, source) as session:
        session.start()
        session.wait_all_present()
        yield Behind(session, build_program(top / "behind", PROGRAM), source)


@pytest.mark.parametrize("case", CASES)
def test_what_stands_behind_is_out_of_reach(behind: Behind, case: str) -> None:
    session, file = behind.session, behind.source / case
    argv = [str(word) for word in (behind.program, case, file, behind.source / "other")]
    before = session.totals()["hits"]
    library = session.run(argv)
    assert session.totals()["hits"] > before  # the hit shows that the program has opened a copy
    file.write_text(CONTENT)  # restores the file, which some cases have changed
    without = session.run(argv, preload=False)
    assert (without.returncode, without.stderr) == (0, "")
    assert library.stdout.splitlines() == without.stdout.splitlines()
    assert (library.returncode, library.stderr) == (0, "")
