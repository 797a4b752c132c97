"""The random operations of operations.py detect a faulty library. Each test preloads faults.c
before the library, with one fault active, and the output must differ from that of a run without the
library."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.ground import Ground
from conformance.operations_tree import plant
from conformance.outcomes import difference
from conformance.test_operations import transcript
from support import draws

SOURCE = Path(__file__).resolve().parent / "faults.c"
FAULTS = sorted(set(re.findall(r'\bis\("([^"]+)"\)', SOURCE.read_text())))
SEED, COUNT = 1, draws.sized(600, 750)
NO_FAULT = "none"


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing, which compiles the faults")
    built = tmp_path_factory.mktemp("faults") / "faults.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run(["gcc", *flags, "-o", str(built), str(SOURCE), "-ldl"], check=True)
    return built


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A served directory with one tree of copied files for each fault, and one for the run without
    a fault."""

    def plant_all(root: Path) -> None:
        for name in [NO_FAULT, *(FAULTS if root.name == "library" else ())]:
            plant(root / name)

    with Ground(tmp_path_factory.mktemp("broken"), plant_all) as ground:
        ground.wait_copies()
        yield ground


@pytest.fixture(scope="module")
def expected(ground: Ground) -> str:
    return transcript(ground, False, SEED, root=ground.without / NO_FAULT, count=COUNT)


def broken(ground: Ground, faults: Path, fault: str, expected: str) -> str:
    """Runs the operations under the faulty library. Returns their output up to the first line that
    differs from `expected`."""
    return transcript(
        ground,
        True,
        SEED,
        root=ground.source / fault,
        count=COUNT,
        beside=expected,
        LD_PRELOAD=f"{faults}:{ground.session.preload}",
        FAULT=fault,
        # The fault also affects the copies, which lie below the directory above the source:
        # faults.c must recognize a descriptor of a copy by the copy's path.
        FAULT_BELOW=str(ground.source.parent),
    )


def test_without_a_fault_nothing_is_seen(ground: Ground, faults: Path, expected: str) -> None:
    assert not difference(expected, broken(ground, faults, NO_FAULT, expected))
    assert expected.endswith("status 0\n")


@pytest.mark.parametrize("fault", FAULTS)
def test_seen(ground: Ground, faults: Path, expected: str, fault: str) -> None:
    seen = difference(expected, broken(ground, faults, fault, expected))
    # The first difference must be the result of an operation, not an error at the start.
    assert re.match(r"line \d+\n  without: \d+ ", seen), seen
    print(f"{fault}: {seen}")
