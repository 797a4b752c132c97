"""The engine's decisions beside plain models: which work each copying thread takes next, and where
a fill goes that the engine itself orders."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from csrc.building import HERE, NATIVE, build_program, compile_native
from support.draws import examples

PLACES = (
    "shared/",
    "clients/",
    "publish/",
    "copy/",
    "engine/",
    "serving/",
    "peers/",
    "handover/",
    "scan/",
)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The objects of the engine and of what it needs."""
    names = [name for name in NATIVE if name.startswith(PLACES)]
    return compile_native(tmp_path_factory.mktemp("engine"), names)


def run(place: Path, name: str, objects: list[Path], *, trials: int) -> list[int]:
    """Builds and runs one of the programs beside this file. Returns the counts that it prints."""
    flags = ["-pthread", "-ldl"]
    program = build_program(place / name, *objects, HERE / f"{name}.c", flags=flags)
    words = [str(program), "1", str(trials)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return [int(count) for count in done.stdout.split()]


def test_each_thread_takes_the_work_that_a_plain_model_expects(
    tmp_path: Path, objects: list[Path]
) -> None:
    """Random orders, demands and steps of threads. Checked at each step: the priorities, the order
    in each queue, the limits (width, slots, each peer's share of the threads), the units that are
    filled ahead of a reader, the counts, and that a thread is woken for what it can do."""
    counts = run(tmp_path, "schedule_model", objects, trials=examples(60))
    assert all(counts), "some kind of work was never found"


def test_the_engine_places_fills_as_a_plain_model_does(tmp_path: Path, objects: list[Path]) -> None:
    """Random grants, files and homes. A fill goes into the first tier that is meant for the file
    and has room for it, and takes this room. It asks the holder for which fewer orders wait.
    Nothing is ordered without a grant, nor for a file whose home the engine was not told."""
    assert run(tmp_path, "grants_model", objects, trials=examples(200))[0] > 500
