"""Single functions of the daemon's C part, also static ones: the C files of `daemon`, each with the
tests of one file of csrc."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from csrc.building import HERE, NATIVE, build, compile_native
from csrc.sanitizing import OPTIONS, SANITIZERS, Built, flags_of, skip_without

UNITS = sorted(path.stem for path in (HERE / "daemon").glob("*.c") if path.stem != "main")
APART = ("simulator/", "testing/")


def included() -> set[str]:
    """Returns the files of csrc that the C files of `daemon` include."""
    texts = [(HERE / "daemon" / f"{unit}.c").read_text() for unit in UNITS]
    return {name for text in texts for name in re.findall(r'^#include "(.*\.c)"', text, re.M)}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The program with the tests, under AddressSanitizer and UndefinedBehaviorSanitizer."""
    place = tmp_path_factory.mktemp("daemon_units")
    sanitizer = SANITIZERS["address"]
    prefix = skip_without(sanitizer, place)
    rest = [name for name in NATIVE if name not in included() and not name.startswith(APART)]
    objects = compile_native(place, rest)
    own = [HERE / "daemon" / f"{unit}.c" for unit in (*UNITS, "main")]
    flags = ["-O0", "-g1", "-Wall", *flags_of(sanitizer)]
    flags += ["-Werror", f"-I{HERE}", "-pthread", "-ldl"]
    build(place / "daemon_units", [*own, *objects], flags)
    return Built(sanitizer, place, prefix)


@pytest.mark.parametrize("unit", UNITS)
def test_it_does_what_its_comments_say(program: Built, unit: str, tmp_path: Path) -> None:
    done = subprocess.run(
        program.command("daemon_units", unit),
        env=OPTIONS,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0, "no test has run"
