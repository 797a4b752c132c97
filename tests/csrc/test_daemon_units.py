"""Tests single functions of the daemon's C part, including static ones. Each C file in `daemon`
contains the tests for one or two files of csrc."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from csrc.building import HERE, NATIVE, PRELOAD, build, compile_all, compile_native
from csrc.sanitizing import OPTIONS, SANITIZERS, Built, flags_of, skip_without

PLACE = HERE / "daemon"
UNITS = sorted(path.stem for path in PLACE.glob("*.c") if path.stem != "main")
APART = ("simulator/", "testing/")
FLAGS = ["-O0", "-g1", "-Wall", "-Werror", f"-I{HERE}", *flags_of(SANITIZERS["address"])]


def included(unit: str) -> set[str]:
    """Returns the files of csrc that the C file includes. They must not be linked a second time."""
    text = (PLACE / f"{unit}.c").read_text()
    return set(re.findall(r'^#include "(.*\.c)"', text, re.M))


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The objects of main.c and of all files of csrc, compiled as for the other tests."""
    place = tmp_path_factory.mktemp("daemon_units")
    names = [name for name in NATIVE if not name.startswith(APART)]
    names.sort(key=lambda name: name not in PRELOAD)  # the order of compile_native
    found = dict(zip(names, compile_native(place, names), strict=True))
    return found | {"main": compile_all(place, [PLACE / "main.c"], FLAGS)[0]}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return skip_without(SANITIZERS["address"], tmp_path_factory.mktemp("probe"))


@pytest.mark.parametrize("unit", UNITS)
def test_it_does_what_its_comments_say(
    unit: str, objects: dict[str, Path], prefix: tuple[str, ...], tmp_path: Path
) -> None:
    """Runs the tests of one C file under AddressSanitizer and UndefinedBehaviorSanitizer. Each C
    file is built into a program of its own, because it may replace functions that the tests in
    other C files call."""
    own = included(unit)
    rest = [made for name, made in objects.items() if name not in own]
    program = build(tmp_path / "tests", [PLACE / f"{unit}.c", *rest], [*FLAGS, "-pthread", "-ldl"])
    done = subprocess.run(
        Built("address", tmp_path, prefix).command(program.name, unit),
        env=OPTIONS,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0, "no test has run"
