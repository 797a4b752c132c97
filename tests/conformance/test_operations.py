"""Random file operations have the same results under the library as without it. The tests cover
four kinds of files: files without a copy, files that are being filled, files with a copy, and files
whose copy was made after the operations had written to them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conformance.ground import Ground, look
from conformance.operations_tree import plant
from conformance.outcomes import difference, unlike
from support import draws

TESTS = Path(__file__).resolve().parents[1]
LIMIT_S = 120.0
SETTINGS: dict[str, dict[str, Any]] = {
    "absent": {"prefetch": "none"},
    # At this bandwidth, the daemon is still filling files during most of the operations, and
    # finishes before the test's time limit.
    "filling": {"source_limits": {"bandwidth": "3MiB"}},
    "present": {},
    "staged": {},
}
SHORT, LONG = range(1, 2), range(2, 40)
COUNT = draws.sized(600, 1200)


def transcript(
    ground: Ground,
    library: bool,
    seed: int,
    *,
    root: Path | None = None,
    count: int = COUNT,
    pauses: int = 0,
    beside: str | None = None,
    **more: str,
) -> str:
    """Runs operations.py and returns its output. If `library` is true, a new daemon makes copies of
    all files during each pause of the program.

    root : the directory with the tree; by default, one of the directories of `ground`
    beside : the output of another run. The program is ended at its first line that differs from
        this output
    """
    root = root or ground.root(library)
    words = [str(root), str(seed), str(count), str(pauses)]
    process = subprocess.Popen(
        [*ground.python(library), "-S", "-m", "conformance.operations", *words],
        env=ground.env(library, root, PYTHONPATH=str(TESTS), **more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    others = None if beside is None else beside.splitlines(keepends=True)
    try:
        assert process.stdin is not None and process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if others is not None and line != others[len(lines) - 1]:
                return "".join(lines)
            if line == "pause\n":
                if library:
                    ground.restage()
                process.stdin.write("go\n")
                process.stdin.flush()
        process.wait(LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    return f"{''.join(lines)}status {process.returncode}\n"


@contextmanager
def prepared(top: Path, state: str) -> Iterator[Ground]:
    with Ground(top, plant, **SETTINGS[state]) as ground:
        if state in ("present", "staged"):
            ground.wait_copies()
        yield ground


Without = dict[tuple[int, int], tuple[str, dict[str, str]]]


@pytest.fixture(scope="module")
def without() -> Without:
    """(seed, pauses) -> the output of the program without the library, and the files that it
    leaves. The tests fill this dictionary."""
    return {}


@pytest.mark.parametrize(
    "seed", [*SHORT, *(pytest.param(seed, marks=pytest.mark.long) for seed in LONG)]
)
@pytest.mark.parametrize("state", SETTINGS)
def test_every_answer_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, without: Without, state: str, seed: int
) -> None:
    pauses = 3 if state == "staged" else 0
    # The directories of all tests have equally long names, so that paths are equally long too.
    top = tmp_path_factory.mktemp(f"{state:_<7}{seed:02}_")
    with prepared(top, state) as ground:
        if state == "filling":
            assert ground.is_filling()
        library = transcript(ground, True, seed, pauses=pauses)
        if (seed, pauses) not in without:
            said = transcript(ground, False, seed, pauses=pauses)
            assert said.endswith("status 0\n"), said[-2000:]
            without[seed, pauses] = said, look(ground.without)
        expected, left = without[seed, pauses]
        assert not difference(expected, library), f"seed {seed}, {state}"
        assert unlike(left, look(ground.source)) == []
        assert (ground.hits() > 0) == (state != "absent")
