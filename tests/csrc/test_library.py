"""Tests the file of the preload library: its dependencies and its exported functions. In a program
that reads no dataset, the library must print nothing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from csrc.building import CSRC, INCLUDES
from support.elf import OLDEST_GLIBC, exported, needed, newest_glibc

from monarch_py.native import LIBRARY

PRELOAD_FLAGS = ["-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fno-delete-null-pointer-checks"]


def test_it_needs_libc_alone() -> None:
    assert needed(LIBRARY) == ["libc.so.6"]


def test_it_needs_no_symbol_newer_than_glibc_2_17() -> None:
    assert newest_glibc(LIBRARY) <= OLDEST_GLIBC


def twins() -> dict[str, str]:
    """Reads the lines TWIN(...) in preload/calls. Returns second name of a function -> first
    name."""
    files = sorted((CSRC / "preload/calls").glob("*.c"))
    return dict(
        twin
        for file in files
        for twin in re.findall(r"^TWIN\((\w+), (\w+)\)", file.read_text(), re.M)
    )


def test_it_exports_the_functions_of_the_table_and_nothing_else() -> None:
    text = (CSRC / "preload/process/calls.h").read_text()
    listed = set(re.findall(r"^    X\((\w+),", text, re.M))
    assert exported(LIBRARY) == listed | set(twins())


def test_a_twin_is_its_function_and_no_second_copy() -> None:
    command = ["nm", "-D", "--defined-only", str(LIBRARY)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    symbols = done.stdout.split("\n")
    at = {line.split()[2]: line.split()[0] for line in symbols if len(line.split()) == 3}
    of = twins()
    assert of
    assert {name: at[name] for name in of} == {name: at[of[name]] for name in of}


# This test runs only with --long. In the other runs, test_layers.py does nearly the same: it
# compiles each file, and fails at a warning.
@pytest.mark.long
@pytest.mark.parametrize("source", sorted(CSRC.rglob("*.c")), ids=lambda path: path.name)
def test_it_compiles_without_a_warning(source: Path) -> None:
    subprocess.run(["gcc", *PRELOAD_FLAGS, *INCLUDES, "-fsyntax-only", str(source)], check=True)


@pytest.mark.parametrize(
    "command",
    ["sh -c :", "uname -s", "env -i true", "bash -c 'exec true'", "ls /", "cat /dev/null"],
)
@pytest.mark.parametrize("config", [None, "disabled"])
def test_it_is_silent_in_programs_that_read_no_dataset(command: str, config: str | None) -> None:
    plain = {"PATH": "/usr/bin:/bin"}
    more = {"MONARCH_CONFIG": "/no/such/file", "MONARCH_DISABLE": "1"} if config else {}
    without = subprocess.run(
        command, shell=True, env=plain, capture_output=True, text=True, check=True
    )
    under = subprocess.run(
        command,
        shell=True,
        env={**plain, **more, "LD_PRELOAD": str(LIBRARY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (under.stdout, under.stderr) == (without.stdout, without.stderr)
