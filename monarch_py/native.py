"""The functions and enumerations of the C code, for use from Python."""

from enum import IntEnum
from pathlib import Path
from typing import Any

import monarch_py._native

ffi: Any = monarch_py._native.ffi
lib: Any = monarch_py._native.lib
LIBRARY = Path(__file__).with_name("libmonarch.so")


class SessionState(IntEnum):
    STARTING = lib.MONARCH_STARTING
    SERVING = lib.MONARCH_SERVING
    CLOSED = lib.MONARCH_CLOSED


class Kind(IntEnum):
    FILE = lib.MONARCH_FILE
    DIR = lib.MONARCH_DIR
    LINK = lib.MONARCH_LINK
    OTHER = lib.MONARCH_OTHER


class State(IntEnum):
    ABSENT = lib.MONARCH_ABSENT
    WANTED = lib.MONARCH_WANTED
    FILLING = lib.MONARCH_FILLING
    PRESENT = lib.MONARCH_PRESENT
    BYPASS = lib.MONARCH_BYPASS


class Reason(IntEnum):
    NONE = lib.MONARCH_NO_REASON
    NO_ROOM = lib.MONARCH_NO_ROOM
    EXCLUDED = lib.MONARCH_EXCLUDED
    CHANGED = lib.MONARCH_CHANGED
    FAILED = lib.MONARCH_FAILED
    UNSUPPORTED = lib.MONARCH_UNSUPPORTED


class JobKind(IntEnum):
    FILL = lib.MONARCH_FILL
    CHECK = lib.MONARCH_CHECK
    COMPARE = lib.MONARCH_COMPARE
    DROP = lib.MONARCH_DROP
    PAGE_IN = lib.MONARCH_PAGE_IN


class JobStatus(IntEnum):
    DONE = lib.MONARCH_DONE
    SOURCE_CHANGED = lib.MONARCH_SOURCE_CHANGED
    SOURCE_ERROR = lib.MONARCH_SOURCE_ERROR
    TIER_FULL = lib.MONARCH_TIER_FULL
    TIER_ERROR = lib.MONARCH_TIER_ERROR
    DAMAGED = lib.MONARCH_DAMAGED
    ABANDONED = lib.MONARCH_ABANDONED


def not_null(pointer: Any, why_not: str) -> Any:
    """Returns `pointer`, the result of a C function. If the pointer is NULL, raises MemoryError
    with the message `why_not`."""
    if pointer == ffi.NULL:
        raise MemoryError(why_not)
    return pointer


def path_hash(path: bytes) -> int:
    """Returns the XXH3-64 hash of a relative path. The catalog uses another hash, which also covers
    the number of the source."""
    return int(lib.monarch_xxh3_of(path, len(path)))
