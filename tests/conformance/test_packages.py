"""The file tests of numpy and h5py have the same outcomes with and without the library, in a
directory in which the daemon is filling files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from conformance.ground import Ground
from conformance.outcomes import Outcomes, read_junit, unlike

FAST = {
    "numpy": "numpy._core.tests.test_memmap numpy.lib.tests.test__datasource",
    "h5py": "h5py.tests.test_file h5py.tests.test_file2 h5py.tests.test_file_image",
}
LONG = {
    "numpy": "numpy.lib.tests.test_io numpy.lib.tests.test_loadtxt numpy._core.tests.test_records "
    "numpy._core.tests.test_multiarray numpy.lib.tests.test_format numpy.lib.tests.test_utils",
    "h5py": "h5py.tests",
}
# An expression for pytest's -k. It leaves out tests with "huge" in their names. Whether these tests
# run or are skipped depends on the memory that is free at that moment, and they read no files.
NOT_HUGE = "not huge"
OPTIONS = [
    "-k",
    NOT_HUGE,
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-c",
    "/dev/null",
    "--rootdir=.",
]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with Ground(tmp_path) as ground:
        yield ground


def outcomes(ground: Ground, library: bool, words: list[str]) -> Outcomes:
    root = ground.root(library)
    report = root / "outcomes.xml"
    places = [f"--basetemp={root}/tmp/pytest", f"--junit-xml={report}"]
    run = ground.run(
        [sys.executable, "-m", "pytest", *OPTIONS, *places, "--pyargs", *words],
        library=library,
    )
    assert report.exists(), f"{run.stdout}\n{run.stderr}"
    return read_junit(report, root)


def installed(package: str, modules: str) -> list[str]:
    there = [name for name in modules.split() if find_spec(package) and find_spec(name)]
    if not there:
        pytest.skip(f"{package} is not installed, or is installed without its tests")
    return there


def compare(ground: Ground, there: list[str], ballast: int) -> None:
    without = outcomes(ground, False, there)
    ground.load(ballast)
    library = outcomes(ground, True, there)
    assert unlike(without, library) == []
    assert "passed" in without.values()
    assert ground.is_filling(), "the fills ended before the tests did"


def test_of_files(ground: Ground) -> None:
    """The fast file tests have the same outcomes with and without the library. All of them run in
    one pytest process, because the start of a process takes longer than the tests of a package."""
    there = [name for package in FAST for name in installed(package, FAST[package])]
    compare(ground, there, 2000)


@pytest.mark.long
@pytest.mark.parametrize("package", LONG)
def test_of_all_that_reads_and_writes(ground: Ground, package: str) -> None:
    compare(ground, installed(package, LONG[package]), 20_000)
