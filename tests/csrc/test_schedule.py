"""The choice of each copying thread's next work, beside a plain model: no work waits while a thread
that may do it sleeps, and each thread takes the most urgent work that it may do."""

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


def test_each_thread_takes_the_work_that_a_plain_model_expects(
    tmp_path: Path, objects: list[Path]
) -> None:
    """Random orders, demands and steps of threads. Checked at each step: the priorities, the order
    in each queue, the limits (width, slots, each peer's share of the threads), the units that are
    filled ahead of a reader, the counts, and that a thread is woken for what it can do."""
    source = HERE / "schedule_model.c"
    program = build_program(
        tmp_path / "schedule_model", *objects, source, flags=["-pthread", "-ldl"]
    )
    words = [str(program), "1", str(examples(60))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert all(int(times) for times in done.stdout.split()), "some kind of work was never found"
