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
        pytest.skip("faults.c cannot be compiled: install gcc")
    built = tmp_path_factory.mktemp("faults") / "faults.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run(["gcc", *flags, "-o", str(built), str(SOURCE), "-ldl"], check=True)
    return built


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A source with one tree for each fault, and one tree for the run without a fault. All files of
    the trees have copies."""

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
        # The parent directory of the source contains the copies too. So the fault also affects
        # descriptors of copies.
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
