"""Measures how much CPU time the library adds to complete programs that do not use any source."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Daemon, lockstep, plain_environment
from benchmarks.numbers import Result, paired

__all__ = ["Program", "imports", "measure", "tools"]

ADDR_NO_RANDOMIZE = 0x0040000

REPOSITORY_FILES = 2000
FILES_A_DIRECTORY = 100
# The number of C files that are compiled. A thousand files give the same ratio, but take 15 s.
COMPILED_FILES = 5
# A round starts a program STARTS times. Rounds are short, so that other work on the machine slows
# down both variants (with and without the library) equally. The number of rounds is multiplied by
# MORE_ROUNDS for programs that take little time.
STARTS, MORE_ROUNDS = 2, 8
# The text of a C file. It includes headers, because most files that a compiler opens are headers.
PROGRAM = """#include <stdio.h>
#include <string.h>
int f{number}(const char *s) {{ return printf("%s %zu\\n", s, strlen(s) + {number}); }}
"""
GIT = ("git", "-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost")


@dataclass(frozen=True, slots=True)
class Program:
    """A program to measure.

    name, what, limit : fields of the Result
    argv : the command
    starts : how many times a round starts the command
    rounds : the number of rounds
    missing : why the command cannot run on this machine; None if it can
    environment : additional environment variables
    together : whether both variants (with and without the library) run at the same time, each on
        one core
    """

    name: str
    what: str
    limit: float
    argv: tuple[str, ...]
    starts: int
    rounds: int
    missing: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    together: bool = False


class Command:
    """A command to be measured. `ask(line)` runs the command int(line) times. It returns the total
    wall time and the total CPU time of these runs [ns]. The CPU time includes the processes that
    the command starts. `environment` may load the library into the command, but this process never
    loads it."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._argv, self._environment = list(argv), dict(environment)

    def ask(self, line: str) -> list[int]:
        started, cpu = time.monotonic_ns(), 0.0
        for _ in range(int(line)):
            cpu += self._run()
        return [time.monotonic_ns() - started, round(cpu * 1e9)]

    def _run(self) -> float:
        return self.wait(self.start())

    def start(self) -> int:
        """Starts the command. Returns its process id."""
        silent = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
        return os.posix_spawnp(self._argv[0], self._argv, self._environment, file_actions=[silent])

    def wait(self, pid: int) -> float:
        """Waits for the process. Returns its CPU time [s]."""
        _, status, usage = os.wait4(pid, 0)
        if status:
            raise RuntimeError(f"{self._argv} failed: {os.waitstatus_to_exitcode(status)}")
        return usage.ru_utime + usage.ru_stime


@contextmanager
def _alike() -> Iterator[list[int]]:
    """Inside the `with` block, programs start without address space randomization, so that they use
    the same memory addresses in every run. Yields the cores that this process may use."""
    cores = os.sched_getaffinity(0)
    libc = ctypes.CDLL(None)
    before = libc.personality(0xFFFFFFFF)
    libc.personality(before | ADDR_NO_RANDOMIZE)
    try:
        yield sorted(cores)
    finally:
        libc.personality(before)
        os.sched_setaffinity(0, cores)


def _side_by_side(
    ours: Command, plain: Command, rounds: int, cores: Sequence[int]
) -> list[tuple[float, float]]:
    """Returns the CPU times of both commands in each round [ns]. In a round, the commands run at
    the same time, each on a core of its own. Then the commands exchange their cores and run again.
    So a slow core, or a time in which the machine is slow, affects both commands equally."""
    pairs = []
    for _ in range(rounds + 1):
        times = [0.0, 0.0]
        for first in (0, 1):
            started = []
            for core, command in ((cores[first], ours), (cores[1 - first], plain)):
                os.sched_setaffinity(0, {core})  # the started process inherits the core
                started.append(command.start())
            for i, (command, pid) in enumerate(zip((ours, plain), started, strict=True)):
                times[i] += command.wait(pid) * 1e9
        pairs.append((times[0], times[1]))
    return pairs[1:]  # the first round only fills the caches


def measure(program: Program, daemon: Daemon) -> Result:
    """Measures the CPU time of a program with the library, relative to its CPU time without the
    library."""
    more = dict(program.environment)
    ours = Command(program.argv, daemon.environment() | more)
    plain = Command(program.argv, plain_environment() | more)
    wall: Sequence[tuple[float, float]] = ()
    cpu: Sequence[tuple[float, float]]
    with _alike() as cores:
        if program.together and len(cores) > 1:
            cpu, operations = _side_by_side(ours, plain, program.rounds, cores), 2
        else:
            lines = [str(program.starts)] * (program.rounds + 1)
            answers = lockstep(ours, plain, lines)
            wall, cpu = ([(mine[i], theirs[i]) for mine, theirs in answers] for i in (0, 1))
            operations = program.starts
    result = paired(
        program.name, program.what, cpu, limit=program.limit, operations=operations, wall=wall
    )
    print(f"  {program.what}: {result.value:.3f}", file=sys.stderr)
    return result


def _is_missing(tool: str) -> str | None:
    return None if shutil.which(tool) else f"{tool} is not installed"


def tools(place: Path, rounds: int, compiled: int = COMPILED_FILES) -> Iterator[Program]:
    """Yields the programs of the group `programs`: python, git and a compiler.

    place : an existing directory, in which the git repository and the C files are created
    """
    yield Program(
        "python_start",
        "starting python",
        1.05,
        # -S leaves out the site packages, which differ between installations.
        (sys.executable, "-I", "-S", "-c", "pass"),
        STARTS,
        rounds * MORE_ROUNDS,
    )
    missing, repository = _is_missing("git"), place / "repository"
    if missing is None:
        _make_repository(repository)
    yield Program(
        "git_status",
        f"git status, {REPOSITORY_FILES} files",
        1.05,
        ("git", "-C", str(repository), "status", "--porcelain"),
        STARTS,
        rounds * MORE_ROUNDS,
        missing,
    )
    compiler = shutil.which("gcc") or "cc"
    yield Program(
        "compile",
        f"compiling {compiled} C files",
        1.05,
        ("sh", "-c", _make_c_files(place / "c", compiled, compiler)),
        1,
        rounds * MORE_ROUNDS // 2,
        _is_missing(compiler),
    )


def imports(rounds: int) -> Iterator[Program]:
    """Yields programs that import TensorFlow or PyTorch. Their output is discarded."""
    for module in ("tensorflow", "torch"):
        there = importlib.util.find_spec(module) is not None
        yield Program(
            f"import_{module}",
            f"import {module}",
            1.02,
            (sys.executable, "-c", f"import {module}"),
            1,
            rounds,
            None if there else f"{module} is not installed",
            (
                ("TF_CPP_MIN_LOG_LEVEL", "3"),
                ("TF_ENABLE_ONEDNN_OPTS", "0"),
                # Without a fixed seed, the order of elements in Python's sets would differ between
                # runs, and the import would do different work in each run.
                ("PYTHONHASHSEED", "0"),
            ),
            together=True,
        )


def _make_repository(root: Path) -> None:
    for number in range(REPOSITORY_FILES):
        directory = root / f"part{number // FILES_A_DIRECTORY:02d}"
        if number % FILES_A_DIRECTORY == 0:
            directory.mkdir(parents=True)
        file = directory / f"file{number:04d}.txt"
        file.write_text(f"{number}\n")
        # Make the file older than the git index. Otherwise, git would read the file, because a file
        # as new as the index may have changed.
        os.utime(file, (1_600_000_000, 1_600_000_000))
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "all"]):
        subprocess.run([*GIT, "-C", str(root), *command], check=True, env=plain_environment())


def _make_c_files(root: Path, files: int, compiler: str) -> str:
    """Writes C files. Returns the shell command that runs the compiler once for each file, as
    `make` does."""
    root.mkdir()
    for number in range(files):
        (root / f"f{number:04d}.c").write_text(PROGRAM.format(number=number))
    return f'for f in {root}/*.c; do {compiler} -c "$f" -o "${{f%.c}}.o" || exit 1; done'
