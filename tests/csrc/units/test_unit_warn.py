"""Tests the warning that all reads go to the source: its text, where it is written, and in which
cases it is left out because the process or its parent has written it already."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NOBODY = 2**30  # larger than the number of any process
PART = 1024  # the library reads the environment in parts of this many bytes
CONFIG, LIBRARY = "MONARCH_CONFIG=", "libmonarch"


class Stderr:
    """This process's standard error, which pytest has redirected to a file."""

    def __init__(self, lib: Any, capture: pytest.CaptureFixture[str]) -> None:
        self.lib, self.capture = lib, capture

    def load(self, parent: int = NOBODY, is_marked: bool = False) -> None:
        """Forgets earlier warnings, as in a process that loads the library now."""
        self.lib.warn_load(parent, is_marked)

    def say(self, name: str = "c.yaml") -> str:
        """Warns once more. Returns what was written."""
        self.lib.warn_say(b"no daemon serves", name.encode(), b"Start one.")
        return self.capture.readouterr().err


@pytest.fixture
def stderr(lib: Any, capfd: pytest.CaptureFixture[str]) -> Iterator[Stderr]:
    yield Stderr(lib, capfd)
    lib.warn_load(NOBODY, 0)


def warning(name: str = "c.yaml") -> str:
    return f"monarch: no daemon serves {name}; all reads go to the source. Start one.\n"


def test_a_warning_is_one_line_and_is_not_repeated(stderr: Stderr) -> None:
    """After the warning, the process marks the environment of the programs that it executes, so
    that they do not repeat the warning."""
    stderr.load()
    assert not stderr.lib.warn_marks()
    assert [stderr.say() for _ in range(2)] == [warning(), ""]
    assert stderr.lib.warn_marks()


@pytest.mark.parametrize("length", [1100, 1127, 1128, 1129, 1200, 4000])
def test_a_long_warning_is_cut(stderr: Stderr, length: int) -> None:
    name = "n" * length
    stderr.load()
    assert stderr.say(name) == warning(name)[:1199]


def test_a_program_whose_parent_has_the_mark_says_nothing(stderr: Stderr) -> None:
    stderr.load(is_marked=True)
    assert stderr.say() == ""
    stderr.load()
    assert stderr.say() == warning()


def test_a_warning_goes_to_nothing_but_the_standard_error(stderr: Stderr, tmp_path: Path) -> None:
    """A program may have closed its standard error. If another file then has descriptor 2, the
    warning must not be written to that file."""
    path, kept = tmp_path / "other", os.dup(2)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        stderr.load()
        os.dup2(fd, 2)
        stderr.say()
        os.close(2)
        stderr.load()  # as in a process that was started without a standard error
        os.dup2(fd, 2)
        stderr.say()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(fd)
    assert path.read_text() == stderr.capture.readouterr().err == ""


@contextmanager
def parent_with(*environment: str) -> Iterator[int]:
    """Starts a process with exactly this environment."""
    names = dict(word.split("=", 1) for word in environment)
    pipe = subprocess.PIPE
    with subprocess.Popen(["/bin/cat"], env=names, bufsize=0, stdin=pipe, stdout=pipe) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b"x")
        # Once cat has answered, it is running, and /proc shows the environment that it was given.
        assert process.stdout.read(1) == b"x"
        yield process.pid
        process.stdin.close()


@pytest.mark.parametrize(
    ("environment", "is_warned"),
    [((), 0), ((CONFIG + "c.yaml",), 0), (("P=/l/libmonarch.so",), 0),
     ((CONFIG + "c.yaml", "P=/l/libmonarch.so"), 1), (("P=/l/libmonarch.so", CONFIG + "c.yaml"), 1),
     (("MONARCH_SITE_CONFIG=c.yaml", "P=/l/libmonarch.so"), 0)],
)  # fmt: skip
def test_a_parent_that_has_the_library_and_a_configuration_has_warned(
    stderr: Stderr, environment: tuple[str, ...], is_warned: int
) -> None:
    """If a job's launcher has warned, the processes that it starts do not warn again."""
    with parent_with(*environment) as pid:
        stderr.load(pid)
        assert stderr.say() == ("" if is_warned else warning())
    assert stderr.lib.warn_marks() == (not is_warned)


@pytest.mark.parametrize("part", [1, 2, 5])
@pytest.mark.parametrize("before", [0, 1, 7, 13, 14, 15])
def test_a_parents_environment_is_read_to_its_end(stderr: Stderr, part: int, before: int) -> None:
    """The library looks for two words in the environment, which it reads in parts. A word may begin
    in one part and end in the next one. before: how many bytes of the word lie in the earlier
    part."""
    for word, other in ((CONFIG, f"P=/{LIBRARY}.so"), (f"P=/{LIBRARY}", CONFIG + "c.yaml")):
        filler = part * PART - before - len("F=") - len(other) - 2
        with parent_with(other, "F=" + "f" * filler, word + "x") as pid:
            text = Path(f"/proc/{pid}/environ").read_bytes()
            assert text.index(word.encode()) == part * PART - before
            stderr.load(pid)
            assert stderr.say() == ""
