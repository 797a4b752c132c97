"""Compiles the slow source of this checkout, since the package's own one may be older."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "slowsource.c"


def build_slowsource(directory: Path) -> Path:
    """Compiles benchmarks/slowsource.c into `directory`. Raises OSError or CalledProcessError
    without a compiler, pkg-config or libfuse3."""
    command = ["pkg-config", "--cflags", "--libs", "fuse3"]
    flags = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    compiler = shlex.split(os.environ.get("CC", "cc"))
    binary = directory / "slowsource"
    command = [*compiler, "-O2", "-o", str(binary), str(SOURCE), *flags, "-pthread"]
    subprocess.run(command, check=True)
    return binary
