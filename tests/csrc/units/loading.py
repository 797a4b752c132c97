"""Makes functions of the library callable from tests, including static functions.

Each C file beside this module is a unit: it includes a file of the library. The units and the
library's other files are built into one shared object. The test's process loads this object with
dlopen, so the object interposes no call of the process.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cffi import FFI
from csrc.building import CSRC, PRELOAD, PRELOAD_COMPILED, build

from monarch_py.native import ffi as native

ffi = FFI()
UNITS = sorted(Path(__file__).parent.glob("*.c"))


def _included() -> set[str]:
    texts = [unit.read_text() for unit in UNITS]
    return {
        name for text in texts for name in re.findall(r'^#include "(preload/.*\.c)"', text, re.M)
    }


def _declared() -> str:
    """Returns the declarations of the functions that the units export."""
    found = [
        line
        for unit in UNITS
        for line in re.findall(r"^EXPORT ([^{]*?)\s*\{", unit.read_text(), re.M)
    ]
    assert found
    return "struct session;\n" + "".join(f"{line};\n" for line in found)


@functools.cache
def load() -> Any:
    """Builds the library with the functions that the units export, and loads it. Does so only
    once."""
    ffi.cdef(_declared())
    with TemporaryDirectory(prefix="monarch-units-") as place:
        rest = [CSRC / name for name in PRELOAD if name not in _included()]
        library = build(Path(place) / "units.so", [*UNITS, *rest], PRELOAD_COMPILED)
        return ffi.dlopen(str(library))


class Made:
    """A session in the memory of the test's process. Its segments are cffi pointers to the structs
    of monarch_py.native."""

    def __init__(self, lib: Any) -> None:
        self.s = lib.new_session()
        self.control: Any = self._cast("struct monarch_control *", lib.control_of(self.s))
        self.clients: Any = self._cast("struct monarch_clients *", lib.clients_of(self.s))
        self.fills: Any = self._cast("struct monarch_fills *", lib.fills_in(self.s))
        self.entries: Any = self._cast("struct monarch_entry *", lib.entries_of(self.s))

    @staticmethod
    def _cast(kind: str, at: Any) -> Any:
        return native.cast(kind, int(ffi.cast("uintptr_t", at)))


@contextmanager
def made(lib: Any) -> Iterator[Made]:
    session = Made(lib)
    try:
        yield session
    finally:
        lib.free_session(session.s)
