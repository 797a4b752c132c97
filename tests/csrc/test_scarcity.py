"""The parts of the daemon are made while memory, threads or descriptors are lacking. Each part is
made or refused as a whole, and leaves nothing behind. So the daemon can go on and report the lack.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from csrc.building import HERE, NATIVE, build_program, compile_native

CALLS = ("malloc", "calloc", "aligned_alloc", "free", "pthread_create", "epoll_create1", "eventfd")


# part of the daemon -> the least number of calls that request a resource when the part is created.
# The test creates the part again and again, and each time lets a different one of these calls fail.
# So at least this many calls must have failed during the test.
PARTS = {"engine": 4, "server": 10, "peer": 1, "link": 4, "simulator": 20, "scan": 5}


def build(place: Path) -> Path:
    objects = compile_native(place, NATIVE)
    flags = ["-pthread", "-ldl", "-lm", *(f"-Wl,--wrap={call}" for call in CALLS)]
    return build_program(place / "scarce", *objects, HERE / "scarce.c", flags=flags)


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    program, source = build(tmp_path), tmp_path / "source"
    for number in range(20):
        (source / f"d{number}").mkdir(parents=True)
        (source / f"d{number}/f").touch()
    for part, least in PARTS.items():
        words = [str(program), part, str(source)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), part
        assert int(done.stdout) >= least, part
