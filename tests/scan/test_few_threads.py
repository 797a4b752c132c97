"""A scan finds all files even if only some of its threads can be started (RLIMIT_NPROC, pids.max).
If no thread can be started, the scan ends with an error."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from csrc.building import HERE, NATIVE, build_program, compile_native

# The folders of the C files that a scan consists of.
PLACES = ("shared/", "clients/", "publish/", "scan/")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("scan")
    objects = compile_native(place, [name for name in NATIVE if name.startswith(PLACES)])
    flags = ["-pthread", "-Wl,--wrap=pthread_create"]
    return build_program(place / "scan_threads", *objects, HERE / "scan_threads.c", flags=flags)


@pytest.mark.parametrize("started", [16, 7, 1, 0])
def test_it_ends_whatever_can_be_started(tmp_path: Path, program: Path, started: int) -> None:
    for directory in range(5):
        (tmp_path / f"d{directory}").mkdir()
        for number in range(30):
            (tmp_path / f"d{directory}" / f"f{number}").touch()
    words = [str(program), str(tmp_path), "16", str(started)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    entries, errors = map(int, done.stdout.split())
    # There are entries for 155 names and for the root. The root and each of the 5 directories have
    # a second entry, for their listing.
    assert (entries, errors) == ((155 + 1 + 6, 0) if started else (0, 1))
