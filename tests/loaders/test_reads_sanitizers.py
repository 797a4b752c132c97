"""Runs csrc/loaders/reads.c alone, with and without sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from csrc.building import CSRC, build_program

HERE = Path(__file__).parent
SIZE = 100_000
# If a process forks while its other threads run, a lock of the sanitizer's allocator may stay
# locked in the child. So only the program without a sanitizer forks children.
CHILDREN = {"address,undefined": 0, "thread": 0, "": 100}


@pytest.mark.parametrize("sanitizer", CHILDREN, ids=lambda name: name or "plain")
def test_threads_and_children_read(tmp_path: Path, sanitizer: str) -> None:
    content = tmp_path / "content"
    content.write_bytes(bytes(at * 7 % 251 for at in range(SIZE)))
    flags = ["-pthread"]
    if sanitizer:
        flags += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover"]
    program = tmp_path / "stress_reads"
    source = CSRC / "loaders" / "reads.c"
    build_program(program, HERE / "stress_reads.c", source, flags=flags)
    done = subprocess.run(
        [program, content, str(SIZE), str(CHILDREN[sanitizer])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
