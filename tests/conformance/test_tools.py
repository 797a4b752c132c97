"""git, sqlite, rsync, tar, h5py and other programs give the same output and leave the same files
with and without the library. In the first test, the daemon fills files in the programs' directory
while the programs run. In the second test, a new daemon makes copies of all files after each step,
so that the next step reads copies and changes their files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conformance.ground import Ground, look, said
from conformance.outcomes import difference, unlike
from conformance.tools import TOOLS, Tool
from support import draws

# The tools that every test run tries. All other tools run only with --long. sqlite locks files,
# `copies` copies files, and numpy maps files.
BESIDE_FILLS, WITH_COPIES = ("git",), ("sqlite", "copies", "numpy")


def take(ground: Ground, name: str, step: int, library: bool) -> str:
    """Runs one step, which must succeed, and returns its output."""
    run = ground.shell(TOOLS[name].steps[step], library=library)
    text = said(run, ground.root(library))
    assert run.returncode == 0, f"step {step}: {text}"
    return text


def check_left(ground: Ground, name: str) -> None:
    left = [look(root, leave_out=TOOLS[name].leave_out) for root in (ground.without, ground.source)]
    assert unlike(*left) == []


def needs(tool: Tool) -> None:
    for program in tool.needs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing: install it")
    for module in tool.modules:
        pytest.importorskip(module)


@pytest.mark.parametrize("name", draws.cases(TOOLS, short=BESIDE_FILLS))
def test_beside_fills(tmp_path: Path, name: str) -> None:
    needs(TOOLS[name])
    with Ground(tmp_path) as ground:
        ground.load(1500)
        for step in range(len(TOOLS[name].steps)):
            without = take(ground, name, step, library=False)
            assert not difference(without, take(ground, name, step, library=True)), f"step {step}"
        assert ground.is_filling(), "the fills ended before the program did"
        check_left(ground, name)


@pytest.mark.parametrize("name", draws.cases(TOOLS, short=WITH_COPIES))
def test_with_copies_of_each_step(tmp_path: Path, name: str) -> None:
    needs(TOOLS[name])
    with Ground(tmp_path) as ground:
        for step in range(len(TOOLS[name].steps)):
            before = ground.hits()
            without = take(ground, name, step, library=False)
            assert not difference(without, take(ground, name, step, library=True)), f"step {step}"
            assert step == 0 or ground.hits() > before, f"step {step} read no copy"
            ground.restage()
        check_left(ground, name)
