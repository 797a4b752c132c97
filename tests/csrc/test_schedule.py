"""Two decisions of the engine agree with plain models: which work a copying thread takes next, and
in which tier the engine puts a fill that it orders itself."""

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
    """The object files of the engine and of the C files that the engine needs."""
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
    """The program makes random orders and demands, and lets random threads take steps. After each
    step, it checks the priorities, the order in each queue, the limits (width, slots, and each
    peer's share of the threads), the units that are filled ahead of a reader, and the counts. It
    also checks that a thread is woken for any work that this thread can do."""
    counts = run(tmp_path, "schedule_model", objects, trials=examples(60))
    assert all(counts), "some kind of work was never found"


def test_the_engine_places_fills_as_a_plain_model_does(tmp_path: Path, objects: list[Path]) -> None:
    """The program draws random grants, files and homes. A fill goes into the first tier that is
    meant for the file and has room for it, and takes this room. If two peers hold the file, the
    fill asks the peer for which fewer orders wait. The engine orders no fill if it has no grant, or
    if it was not told the file's home (which nodes keep the file)."""
    assert run(tmp_path, "grants_model", objects, trials=examples(200))[0] > 500
