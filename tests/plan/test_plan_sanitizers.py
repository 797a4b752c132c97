"""csrc/plan, built without other parts, runs under the Address and UndefinedBehavior sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from csrc.building import CSRC, build_program

HERE = Path(__file__).parent


def test_nothing_is_read_or_written_that_is_not_its_own(tmp_path: Path) -> None:
    program = tmp_path / "stress_plan"
    sources = [*sorted((CSRC / "plan").glob("*.c")), CSRC / "shared" / "xxh3.c"]
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover")
    build_program(program, HERE / "stress_plan.c", *sources, flags=sanitizers)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
