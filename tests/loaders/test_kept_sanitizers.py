"""Runs csrc/loaders/kept.c alone under sanitizers, with threads in place of a node's processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from csrc.building import CSRC, build_program
from support.draws import sized

HERE = Path(__file__).parent


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_samples_are_whole_whoever_puts_them(tmp_path: Path, sanitizers: str) -> None:
    program = tmp_path / "stress_kept"
    flags = (f"-fsanitize={sanitizers}", "-fno-sanitize-recover", "-pthread")
    build_program(program, HERE / "stress_kept.c", CSRC / "loaders" / "kept.c", flags=flags)
    done = subprocess.run(
        [program, str(sized(10, 40))], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
