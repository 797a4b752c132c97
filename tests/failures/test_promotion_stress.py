"""Descriptors are promoted while other threads open and close descriptors on the same numbers.

MONARCH_STRESS_SECONDS: how long the test runs [s]. The default is 2 s, or 4 s with --long. Before a
release, run:

    MONARCH_STRESS_SECONDS=60 pytest tests/failures/test_promotion_stress.py -s
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from csrc.building import build_program
from support.draws import sized
from support.session import Session, wait_until

STRESS_SECONDS = float(os.environ.get("MONARCH_STRESS_SECONDS") or sized(2, 4))


@pytest.fixture(scope="module")
def stress_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("promotion_stress.c")
    return build_program(tmp_path_factory.mktemp("stress") / "stress", source, flags=["-pthread"])


def test_stress_of_numbers_that_come_and_go(
    session_factory: Callable[..., Session], tmp_path: Path, stress_program: Path
) -> None:
    """No thread reads wrong bytes (see promotion_stress.c). The test drops all copies again and
    again, so that there are always new copies to promote."""
    for name in ("source", "scratch"):
        (tmp_path / name).mkdir()
    subprocess.run([stress_program, "make", tmp_path / "source"], check=True)
    session = session_factory(tmp_path / "source").start()
    session.wait_scanned()
    words = [str(stress_program), "run", *(str(tmp_path / name) for name in ("source", "scratch"))]
    words.append(str(STRESS_SECONDS))
    clears = 0
    with subprocess.Popen(
        words, env=session.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:

            def turn() -> bool:
                nonlocal clears
                session.forget()
                clears += 1
                return process.poll() is not None

            wait_until(turn, timeout=STRESS_SECONDS + 60, what="the program's end", every=0.05)
        finally:
            if process.poll() is None:
                process.kill()
        assert process.stdout is not None
        assert process.stderr is not None
        said, complaints = process.stdout.read(), process.stderr.read()
    totals = session.totals()
    counts = {name: totals[name] for name in ("promotions", "fallbacks", "waits")}
    print(said.strip(), counts, f"{clears} times cleared")
    assert (process.returncode, complaints) == (0, "")
    found = json.loads(said)
    assert found.pop("wrong") == 0
    assert totals["promotions"] > 20 * STRESS_SECONDS
    assert min(found.values()) > 0, f"some operation was never done: {found}"
