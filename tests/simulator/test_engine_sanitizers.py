"""Runs the simulation's C parts under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

from csrc.building import CSRC, build_program
from support import draws

HERE = Path(__file__).parent
JOBS = draws.sized(1000, 3000)


def test_random_jobs(tmp_path: Path) -> None:
    program = tmp_path / "stress_simulator"
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover")
    room = CSRC / "simulator"
    sources = [HERE / "stress_simulator.c", *sorted(room.glob("*.c"))]
    build_program(program, *sources, flags=[*sanitizers, "-lm"])
    done = subprocess.run([program, str(JOBS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" accesses\n")
