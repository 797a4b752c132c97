"""Programs of the C parts under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.

The library's files are linked into the programs themselves: a preloaded library would come before
the sanitizer's runtime, which refuses that. It works because an executable is searched for symbols
first: the program's own open() is ours, and the sanitizer's runtime lies behind it like any other
library, so that real.c finds the runtime's interceptors, and those find libc. What the library asks
of libc is thereby checked too.
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
# What a sanitizer ends a program with that has a bug; no program here uses it itself.
EXIT_CODE = 99
# Folders of csrc with programs of their own (tests/plan, tests/loaders, tests/simulator); those of
# the daemon's engine do not need them.
APART = ("plan/", "loaders/", "simulator/")
OPTIONS = {
    # symbolize=0: the names are put to addresses afterwards. A runtime that looks them up while it
    # reports opens files, which is the library's open() in the program; that may be the next thing
    # to report, and the runtime then waits for ever for its own lock.
    "TSAN_OPTIONS": f"exitcode={EXIT_CODE} symbolize=0",
    "ASAN_OPTIONS": f"exitcode={EXIT_CODE} detect_leaks=1 detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": f"exitcode={EXIT_CODE} print_stacktrace=1",
}
REPORT = re.compile(r"SUMMARY:|runtime error:|(ERROR|WARNING|FATAL): \w+Sanitizer|Sanitizer:DEADLY")
# A program that hangs is ended, and fails the test, well before the test's own limit [s].
RUN_LIMIT_S = 150
# csrc is compiled in one way for all programs of a sanitizer, so that they share the objects. An
# optimiser takes longer with what a sanitizer adds than the programs take without it.
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
    """source : a test's own file;  files : of csrc, that it needs besides"""

    source: Path
    files: Sequence[str]
    flags: Sequence[str] = ()


@dataclass(frozen=True)
class Built:
    """The programs of one sanitizer. prefix : goes before every command line."""

    sanitizer: str
    directory: Path
    prefix: tuple[str, ...] = ()

    def program(self, name: str) -> Path:
        return self.directory / name

    def command(self, name: str, *words: object) -> list[str]:
        return [*self.prefix, str(self.program(name)), *(str(word) for word in words)]

    def run(self, name: str, *words: object) -> subprocess.CompletedProcess[str]:
        """Runs it without any session."""
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
        """Runs it; it must end well, and no sanitizer may have said anything."""
        done = self.run(name, *words)
        assert_clean(done.returncode, done.stderr, self.program(name))
        return done.stdout


def with_names(report: str, program: Path, lines: int = 300) -> str:
    """The report with functions and lines beside the program's bare addresses."""
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
    """What has to stand before a program so that this sanitizer works; skips if nothing helps."""
    source, probe = directory / "probe.c", directory / "probe"
    source.write_text("int main(void) { return 0; }\n")
    try:
        cc(*flags_of(sanitizer), "-o", probe, source)
    except AssertionError as error:
        pytest.skip(f"the compiler has no -fsanitize={sanitizer}: {error}")
    said = ""
    # A kernel that spreads mappings further than the runtime knows stops it before main().
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
    """name : of SANITIZERS"""
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
