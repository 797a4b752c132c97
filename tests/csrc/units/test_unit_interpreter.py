"""Tests how the library finds the Python interpreter that starts a daemon."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import open_descriptors

Find = Callable[[], tuple[str, str] | None]


@pytest.fixture
def packages(lib: Any, tmp_path: Path) -> Iterator[Path]:
    """An environment in which pip has installed the library."""
    made = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    (made / "monarch_py").mkdir(parents=True)
    lib.interpreter_library(os.fsencode(made / "monarch_py" / "libmonarch.so"))
    yield made
    lib.interpreter_library(ffi.NULL)


@pytest.fixture
def find(lib: Any) -> Find:
    """Returns the interpreter and the directory of the packages, or None."""

    def found() -> tuple[str, str] | None:
        python, packages = ffi.new("char[]", 4096), ffi.new("char[]", 4096)
        before = open_descriptors()
        done = lib.interpreter_find(python, packages)
        assert open_descriptors() <= before
        one, other = (os.fsdecode(ffi.string(out)) for out in (python, packages))
        return (one, other) if done else None

    return found


def executable(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.chmod(mode)
    return path


def script(packages: Path, python: str, end: str = "\nimport sys\n") -> None:
    path = packages.parents[2] / "bin" / "monarch"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{python}{end}")


@pytest.mark.parametrize("name", ["python", "python3.11", "pypy3"])
@pytest.mark.parametrize("end", ["", "\n", "\nimport sys\n"])
def test_the_command_of_the_environment_names_its_interpreter(
    packages: Path, find: Find, tmp_path: Path, name: str, end: str
) -> None:
    python = executable(tmp_path / "elsewhere" / name)
    script(packages, str(python), end)
    assert find() == (str(python), str(packages))


@pytest.mark.parametrize("case", ["none", "gone", "sh", "relative", "not executable", "no script"])
def test_an_environment_that_was_moved_has_its_interpreter_beside_it(
    packages: Path, find: Find, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The command is the script `monarch`. If its first line names no interpreter, or one that is
    gone, the library takes the interpreter that lies beside the command."""
    beside = executable(packages.parents[2] / "bin" / "python3.11")
    monkeypatch.chdir(packages.parents[2])
    first = {
        "gone": str(tmp_path / "gone" / "python3"), "sh": "/bin/sh", "relative": "bin/python3.11",
        "not executable": str(executable(tmp_path / "python3", 0o644)),
    }  # fmt: skip
    if case in first:
        script(packages, first[case])
    elif case == "no script":
        (beside.parent / "monarch").write_text("\x7fELF")
    assert find() == (str(beside), str(packages))
    beside.chmod(0o644)
    assert find() is None
    beside.unlink()
    assert find() is None


@pytest.mark.parametrize("beside", [False, True])
def test_a_checkout_names_its_interpreter_in_a_file(
    lib: Any, find: Find, tmp_path: Path, beside: bool
) -> None:
    """The file `interpreter` lies beside the library. If the interpreter that it names is gone, the
    library looks for another one, but only if the library itself lies in an environment."""
    place = tmp_path / "lib" / "python3.11" / "site-packages" if beside else tmp_path / "checkout"
    (place / "monarch_py").mkdir(parents=True)
    lib.interpreter_library(os.fsencode(place / "monarch_py" / "libmonarch.so"))
    python = executable(tmp_path / "venv" / "bin" / "python3")
    (place / "monarch_py" / "interpreter").write_text(f"{python}\n")
    other = executable(tmp_path / "bin" / "python3.11")
    try:
        assert find() == (str(python), str(place))
        python.unlink()
        assert find() == ((str(other), str(place)) if beside else None)
    finally:
        lib.interpreter_library(ffi.NULL)


def test_only_a_directory_of_python_belongs_to_an_environment(
    lib: Any, packages: Path, find: Find, tmp_path: Path
) -> None:
    script(packages, str(executable(tmp_path / "python")))
    other = packages.parents[1] / "perl5" / "site-packages" / "monarch_py"
    lib.interpreter_library(os.fsencode(other / "libmonarch.so"))
    assert find() is None


@pytest.mark.parametrize(("length", "is_found"), [(4031, True), (4032, False), (4090, False)])
def test_a_path_that_leaves_no_room_for_a_name_is_refused(
    lib: Any, find: Find, tmp_path: Path, length: int, is_found: bool
) -> None:
    name = "lib/python3.11/site-packages/monarch_py/libmonarch.so"
    left = length - len(f"{tmp_path}/{name}")
    prefix = Path(f"{tmp_path}{('/' + 'd' * 99) * (left // 100 - 1)}/{'e' * (left % 100 + 99)}")
    assert len(str(prefix / name)) == length
    python = executable(tmp_path / "python")
    prefix.joinpath("bin").mkdir(parents=True)
    (prefix / "bin" / "monarch").write_text(f"#!{python}")
    lib.interpreter_library(bytes(prefix / name))
    try:
        found = find()
        assert found == ((str(python), str((prefix / name).parents[1])) if is_found else None)
    finally:
        lib.interpreter_library(ffi.NULL)


@pytest.mark.parametrize(
    "library",
    ["libmonarch.so", "monarch_py/libmonarch.so", "/libmonarch.so", "/monarch_py/libmonarch.so",
     "/x/monarch_py/libmonarch.so", "/lib/site-packages/monarch_py/libmonarch.so",
     "/" + "d" * 4031, "/" + "d" * 5000],
)  # fmt: skip
def test_a_library_in_no_environment_has_no_interpreter(lib: Any, find: Find, library: str) -> None:
    lib.interpreter_library(library.encode())
    try:
        assert find() is None
    finally:
        lib.interpreter_library(ffi.NULL)
