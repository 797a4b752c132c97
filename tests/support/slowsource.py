"""Compiles the slow source of this checkout, because the package's binary may be older. Also
contains a program that mounts the slow source."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from monarch_py.demo import slowsource

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "slowsource.c"
# The directory from which a process imports monarch_py.
REPOSITORY = Path(slowsource.__file__).resolve().parents[2]
# Mounts HOME/b on HOME/m with HOME/slowsource, and prints the content of the file `f` and the
# number of opens. With a third argument, the program kills itself before it unmounts.
#
# python -c MOUNT_AND_READ REPOSITORY HOME [die]
MOUNT_AND_READ = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from monarch_py.demo.slowsource import SlowSource
home = Path(sys.argv[2])
with SlowSource(home / "b", home / "m", binary=home / "slowsource") as source:
    print((source.mountpoint / "f").read_text(), source.counts()["open"], flush=True)
    if len(sys.argv) > 3:
        os.kill(os.getpid(), 9)
"""


def build_slowsource(directory: Path) -> Path:
    """Compiles benchmarks/slowsource.c into `directory`. Raises OSError or CalledProcessError if
    the compiler, pkg-config or libfuse3 is missing."""
    command = ["pkg-config", "--cflags", "--libs", "fuse3"]
    flags = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    compiler = shlex.split(os.environ.get("CC", "cc"))
    binary = directory / "slowsource"
    command = [*compiler, "-O2", "-o", str(binary), str(SOURCE), *flags, "-pthread"]
    subprocess.run(command, check=True)
    return binary
