"""The C parts built in other ways than the package does: file by file, with sanitizers, into
programs.

What is compiled, and with which flags, is asked from setup.py and build_native.py, so that a file
or flag added there counts here.
"""

from __future__ import annotations

import ast
import fcntl
import os
import shlex
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
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
# Locked at a place for each object that is compiled.
COMPILING = ROOT / "build" / "compiling.lock"


def constants(path: Path) -> dict[str, Any]:
    """The plain assignments of a Python file, read without running it."""
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
# As setup.py compiles it, but with the frame of each function in a file beside the object. Tests
# that look at objects alone share these with others.
PRELOAD_COMPILED = ["-O2", "-g", "-fPIC", "-shared", "-fstack-usage", *WARNINGS, *PRELOAD_FLAGS]
NATIVE: list[str] = constants(CSRC / "build_native.py")["SOURCES"]


def compiler() -> list[str]:
    words = shlex.split(os.environ.get("CC", "gcc"))
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is missing: install a C compiler, or name one in CC")
    return words


def cc(*words: str | Path, compiler_words: Sequence[str] = (), cwd: Path = ROOT) -> str:
    """Runs the compiler and returns what it says, which goes into the failure too. ccache, where it
    is installed, knows the objects that other tests have compiled in the same way, also in another
    directory."""
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
    """Has two workers that need one object compile it once: the second finds it in the cache."""
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
    """The objects of the sources, in their order; what is an object already stays where it is.

    silent : no source may give a warning
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
    """Compiles each source by itself and links the objects; `sources` may have objects too."""
    with TemporaryDirectory(prefix="monarch-objects-") as place:
        objects = compile_all(Path(place), sources, flags)
        # Libraries are looked through for what the objects before them lack.
        libraries = [flag for flag in flags if flag.startswith("-l")]
        cc(*flags, "-o", out, *objects, *libraries)
    return out


def build_program(out: Path, *sources: Path, flags: Sequence[str] = ()) -> Path:
    """A test's own program, from files beside this one."""
    return build(out, sources, ["-O1", "-g", *WARNINGS, "-Werror", *flags])


def build_preload(out: Path, *more: Path, flags: Sequence[str] = ()) -> Path:
    """The preload library, as setup.py builds it, with more sources and flags."""
    sources = [*(CSRC / name for name in PRELOAD), *more]
    return build(out, sources, [*PRELOAD_COMPILED, *flags])
