"""Builds programs from the C sources with AddressSanitizer, UndefinedBehaviorSanitizer or
ThreadSanitizer.

The library's files are linked into the programs instead of being preloaded. A preloaded library
would precede the sanitizer's runtime in the symbol search order, and the runtime would then refuse
to start. The symbol search begins with the executable, so a program's call of open() reaches the
library's open(). The runtime comes later in the search, so real.c finds the runtime's interceptors,
which call libc. In this way, the sanitizer also checks what the library passes to libc.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from csrc.building import CSRC, PRELOAD_FLAGS, build_program, cc, compile_all

SANITIZERS = {"address": "address,undefined", "thread": "thread"}
# The exit status of a program in which a sanitizer has found a bug. No program that is built here
# ends with this status for another reason.
EXIT_CODE = 99
# Folders of csrc that the programs here do not need. Other tests build programs from them
# (tests/plan, tests/loaders, tests/simulator).
APART = ("plan/", "loaders/", "simulator/")
OPTIONS = {
    # symbolize=0: with_names adds the names of functions afterwards. Otherwise, the runtime would
    # look them up during a report, and open files with the program's open(), which is the
    # library's. If the bug was in that open(), the runtime would report again, and would wait
    # forever for its own lock.
    "TSAN_OPTIONS": f"exitcode={EXIT_CODE} symbolize=0",
    "ASAN_OPTIONS": f"exitcode={EXIT_CODE} detect_leaks=1 detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": f"exitcode={EXIT_CODE} print_stacktrace=1",
}
REPORT = re.compile(r"SUMMARY:|runtime error:|(ERROR|WARNING|FATAL): \w+Sanitizer|Sanitizer:DEADLY")
# A program that hangs is killed after this time [s], so that its test fails well before the test's
# own time limit.
RUN_LIMIT_S = 150
# The flags for all files of csrc. All programs of a sanitizer share the object files. The files are
# compiled with -O0: a sanitizer adds so much code that optimization would take more time than it
# saves when the programs run.
CSRC_FLAGS = [
    "-O0",
    "-g1",
    "-Wall",
    "-Wextra",
    "-Werror=implicit-function-declaration",
    *(flag for flag in PRELOAD_FLAGS if not flag.startswith("-Wl,")),
]


@dataclass(frozen=True)
class Program:
    """A program to build.

    source : the program's own C file;  files : the files of csrc that it also needs
    """

    source: Path
    files: Sequence[str]
    flags: Sequence[str] = ()


@dataclass(frozen=True)
class Built:
    """The programs built with one sanitizer. prefix : words that precede every command line."""

    sanitizer: str
    directory: Path
    prefix: tuple[str, ...] = ()

    def program(self, name: str) -> Path:
        return self.directory / name

    def command(self, name: str, *words: object) -> list[str]:
        return [*self.prefix, str(self.program(name)), *(str(word) for word in words)]

    def run(self, name: str, *words: object) -> subprocess.CompletedProcess[str]:
        """Runs the program without a session (MONARCH_CONFIG is not set)."""
        plain = {key: value for key, value in os.environ.items() if key != "MONARCH_CONFIG"}
        return subprocess.run(
            self.command(name, *words),
            env={**plain, **OPTIONS},
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_S,
            check=False,
        )

    def check(self, name: str, *words: object) -> str:
        """Runs the program and returns its output. Fails if its exit status is not 0, or if a
        sanitizer has reported anything."""
        done = self.run(name, *words)
        assert_clean(done.returncode, done.stderr, self.program(name))
        return done.stdout


def with_names(report: str, program: Path, lines: int = 300) -> str:
    """Returns at most `lines` lines of the report, with functions and line numbers in place of the
    program's addresses."""
    report = "\n".join(report.splitlines()[:lines])
    place = rf"\((?:\S*/)?{program.name}\+(0x[0-9a-f]+)\)"
    addresses = sorted(set(re.findall(place, report)))
    if not addresses:
        return report
    command = ["addr2line", "-f", "-s", "-e", str(program), *addresses]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout.splitlines()
    names = dict(
        zip(addresses, map(" ".join, zip(said[::2], said[1::2], strict=False)), strict=False)
    )
    return re.sub(place, lambda found: names.get(found[1], found[0]), report)


def assert_clean(status: int | None, stderr: str, program: Path) -> None:
    good = status == 0 and not REPORT.search(stderr)
    assert good, f"status {status}\n{with_names(stderr, program)}"


def flags_of(sanitizer: str) -> list[str]:
    return [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]


def skip_without(sanitizer: str, directory: Path) -> tuple[str, ...]:
    """Returns the command prefix with which programs of this sanitizer run on this machine. Skips
    the test if they do not run at all."""
    source, probe = directory / "probe.c", directory / "probe"
    source.write_text("int main(void) { return 0; }\n")
    try:
        cc(*flags_of(sanitizer), "-o", probe, source)
    except AssertionError as error:
        pytest.skip(f"the compiler has no -fsanitize={sanitizer}: {error}")
    said = ""
    # If the kernel randomizes addresses over a larger range than the runtime supports, the runtime
    # stops the program before main(). `setarch -R` switches the randomization off.
    for prefix in ((), ("setarch", "-R")):
        if prefix and shutil.which(prefix[0]) is None:
            continue
        done = subprocess.run(
            [*prefix, str(probe)],
            env={**os.environ, **OPTIONS},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0 and not done.stderr:
            return prefix
        said = said or done.stderr
    pytest.skip(f"a program with -fsanitize={sanitizer} does not run here: {said.strip()}")


def build_sanitized(name: str, directory: Path, programs: Mapping[str, Program]) -> Built:
    """Builds the programs with one sanitizer.

    name : a key of SANITIZERS;  programs : name of the executable -> the program to build
    """
    sanitizer = SANITIZERS[name]
    prefix, flags = skip_without(sanitizer, directory), flags_of(sanitizer)
    needed = {file for program in programs.values() for file in program.files}
    names = sorted(file for file in needed if not file.startswith(APART))
    compiled = compile_all(directory, [CSRC / file for file in names], [*CSRC_FLAGS, *flags])
    objects = dict(zip(names, compiled, strict=True))
    for out, program in programs.items():
        sources = [program.source, *(objects[file] for file in program.files if file in objects)]
        build_program(directory / out, *sources, flags=[*flags, *program.flags, "-pthread"])
    return Built(sanitizer, directory, prefix)
