"""Builds the C sources in other ways than the package does: file by file, with sanitizers, or into
programs.

The lists of files and flags are read from setup.py and build_native.py, so that a file or flag that
is added there is used here too.
"""

from __future__ import annotations

import ast
import fcntl
import os
import shlex
import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from xxhash import xxh64_intdigest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
INCLUDES = ["-D_GNU_SOURCE", f"-I{CSRC}"]
HERE = Path(__file__).resolve().parent
# While an object is being compiled, _no_other_compiles() holds a lock on one byte of this file.
COMPILING = ROOT / "build" / "compiling.lock"


def constants(path: Path) -> dict[str, Any]:
    """Returns the constants of a Python file: name -> the literal that is assigned to the name.
    Does not run the file."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


SETUP = constants(ROOT / "setup.py")
PRELOAD: list[str] = [*SETUP["SHARED"], *SETUP["PRELOAD"]]
PRELOAD_FLAGS: list[str] = SETUP["PRELOAD_FLAGS"]
WARNINGS = ["-Wall", "-Wextra"]
# The flags of setup.py, and -fstack-usage, which writes the frame size of each function to a file
# beside the object. Tests that need only objects use the same flags, so that ccache can reuse the
# objects.
PRELOAD_COMPILED = ["-O2", "-g", "-fPIC", "-shared", "-fstack-usage", *WARNINGS, *PRELOAD_FLAGS]
NATIVE: list[str] = constants(CSRC / "build_native.py")["SOURCES"]


def compiler() -> list[str]:
    words = shlex.split(os.environ.get("CC", "gcc"))
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is missing: install a C compiler, or name one in CC")
    return words


def cc(*words: str | Path, compiler_words: Sequence[str] = (), cwd: Path = ROOT) -> str:
    """Runs the compiler and returns its error output. If the compiler fails, the test fails with
    this output. If ccache is installed, it may supply an object that another test has compiled with
    the same flags, even in another directory."""
    command = [*(compiler_words or compiler()), *(str(word) for word in words)]
    cached = "-c" in words and shutil.which("ccache")
    with _no_other_compiles(command) if cached else nullcontext():
        done = subprocess.run(
            ["ccache", *command] if cached else command,
            env={**os.environ, "CCACHE_NOHASHDIR": "1"},
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr}"
    return done.stderr


@contextmanager
def _no_other_compiles(command: list[str]) -> Iterator[None]:
    """Locks the object that `command` makes. If two test workers need the same object, the second
    worker waits, and then finds the object in ccache."""
    named = command.index("-o")
    key = xxh64_intdigest(shlex.join(command[:named] + command[named + 2 :]).encode()) >> 2
    COMPILING.parent.mkdir(exist_ok=True)
    with COMPILING.open("w") as file:
        lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, key, 1, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLKW, lock)
        yield


def compile_all(
    place: Path, sources: Sequence[Path], flags: Sequence[str], *, silent: bool = False
) -> list[Path]:
    """Compiles the sources, and returns their objects in the same order. A source that is already
    an object is not compiled, but returned unchanged.

    silent : whether to fail if the compiler issues a warning
    """

    def compile_one(numbered: tuple[int, Path]) -> Path:
        number, source = numbered
        if source.suffix == ".o":
            return source
        made = place / f"{number}-{source.stem}.o"
        said = cc("-c", *INCLUDES, *flags, "-o", made, source)
        assert not (silent and said), said
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, enumerate(sources)))


def build(out: Path, sources: Sequence[Path], flags: Sequence[str]) -> Path:
    """Compiles each source separately and links the objects. `sources` may also contain objects."""
    with TemporaryDirectory(prefix="monarch-objects-") as place:
        objects = compile_all(Path(place), sources, flags)
        # The linker searches a library only for symbols that the objects before it need, so the
        # libraries come last.
        libraries = [flag for flag in flags if flag.startswith("-l")]
        cc(*flags, "-o", out, *objects, *libraries)
    return out


def compile_native(place: Path, names: Iterable[str]) -> list[Path]:
    """Compiles files of the daemon's C part, without optimization, and returns their objects."""
    objects, names = [], list(names)
    # test_layers.py uses the same flags, so ccache may already hold these objects.
    for is_shared, flags in ((True, PRELOAD_COMPILED), (False, ["-O0", "-w", "-fPIC"])):
        within = place / f"shared_{is_shared}"
        within.mkdir()
        sources = [CSRC / name for name in names if (name in PRELOAD) == is_shared]
        objects += compile_all(within, sources, flags)
    return objects


def build_program(out: Path, *sources: Path, flags: Sequence[str] = ()) -> Path:
    """Builds a test's program from its C files. A warning is an error."""
    return build(out, sources, ["-O1", "-g", *WARNINGS, "-Werror", *flags])


def build_preload(out: Path, *more: Path, flags: Sequence[str] = ()) -> Path:
    """Builds the preload library with the flags of setup.py, and with additional sources and
    flags."""
    sources = [*(CSRC / name for name in PRELOAD), *more]
    return build(out, sources, [*PRELOAD_COMPILED, *flags])
