"""The C parts built in other ways than the package does: file by file, with sanitizers, into
programs.

What is compiled, and with which flags, is asked from setup.py and build_native.py, so that a file
or flag added there counts here.
"""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
INCLUDES = ["-D_GNU_SOURCE", f"-I{CSRC}"]
HERE = Path(__file__).resolve().parent


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
NATIVE: list[str] = constants(CSRC / "build_native.py")["SOURCES"]


def compiler() -> list[str]:
    words = shlex.split(os.environ.get("CC", "gcc"))
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is missing: install a C compiler, or name one in CC")
    return words


def cc(*words: str | Path, compiler_words: Sequence[str] = ()) -> None:
    """Runs the compiler; what it says goes into the failure. ccache, where it is installed, knows
    the objects that other tests have compiled in the same way."""
    cache = ["ccache"] if "-c" in words and shutil.which("ccache") else []
    command = [*cache, *(compiler_words or compiler()), *(str(word) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr}"


def build(out: Path, sources: Sequence[Path], flags: Sequence[str]) -> Path:
    """Compiles each source by itself and links the objects; `sources` may have objects too."""
    with TemporaryDirectory(prefix="monarch-objects-") as place:

        def compile_one(numbered: tuple[int, Path]) -> Path:
            number, source = numbered
            if source.suffix == ".o":
                return source
            made = Path(place) / f"{number}-{source.stem}.o"
            cc("-c", *INCLUDES, *flags, "-o", made, source)
            return made

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, enumerate(sources)))
        # Libraries are looked through for what the objects before them lack.
        libraries = [flag for flag in flags if flag.startswith("-l")]
        cc(*flags, "-o", out, *objects, *libraries)
    return out


def build_program(out: Path, *sources: Path, flags: Sequence[str] = ()) -> Path:
    """A test's own program, from files beside this one."""
    return build(out, sources, ["-O1", "-g", "-Wall", "-Wextra", "-Werror", *flags])


def build_preload(out: Path, *more: Path, flags: Sequence[str] = ()) -> Path:
    """The preload library, as setup.py builds it, with more sources and flags."""
    sources = [*(CSRC / name for name in PRELOAD), *more]
    return build(out, sources, ["-O2", "-g", "-fPIC", "-shared", *PRELOAD_FLAGS, *flags])
