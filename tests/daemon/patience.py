"""Builds the preloaded library with other limits on how long readers wait."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from csrc.building import CSRC, PRELOAD, PRELOAD_COMPILED, build, compile_all

# The C file that defines the time limits.
WAITS = "preload/fill/wait.c"


def build_waiting(directory: Path, **times_s: float) -> Path:
    """Builds a library in which some constants of the C file WAITS have other values. Returns the
    library's path. All other C files are compiled as in other tests, so their objects are in the
    compiler's cache.

    times_s : the value of each constant, by its name without the ending _NS"""
    flags = [f"-D{name}_NS={round(time_s * 1e9)}ULL" for name, time_s in times_s.items()]
    out = directory / "libmonarch.so"
    assert WAITS in PRELOAD
    with TemporaryDirectory(prefix="monarch-objects-") as place:
        own = Path(place, "own")
        own.mkdir()
        others = [CSRC / name for name in PRELOAD if name != WAITS]
        objects = [
            *compile_all(Path(place), others, PRELOAD_COMPILED),
            *compile_all(own, [CSRC / WAITS], [*PRELOAD_COMPILED, *flags]),
        ]
        return build(out, objects, PRELOAD_COMPILED)
