"""Compares parts of the simulator with plain models of them. The programs run under
AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from csrc.building import CSRC, build_program
from support import draws

HERE = Path(__file__).parent
RUNS = draws.sized(3000, 100000)


@pytest.mark.parametrize("part", ["pfs", "links"])
def test_a_part_does_what_a_plain_model_does(part: str, tmp_path: Path) -> None:
    """The part `pfs` is the file system. Its model checks when each request ends, and in which
    order the requests of a node are served, even if the priority of a request is raised while it
    waits. The part `links` is the network. Its model checks the rates of all transfers, and when
    each transfer ends. Both parts also guess when further bytes would arrive, and both models check
    these guesses."""
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover")
    sources = [HERE / f"{part}_model.c", CSRC / f"simulator/{part}.c"]
    build_program(tmp_path / part, *sources, flags=[*sanitizers, "-lm"])
    done = subprocess.run([tmp_path / part, str(RUNS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{RUNS} runs\n"
