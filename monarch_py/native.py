"""The C parts as Python sees them: layouts as numpy dtypes, enumerations, words of the catalog.

No layout is written down here: every offset, size and number comes from the compiled headers.
"""

from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# The aliases mark names that other modules import from here.
from monarch_py._native import ffi as ffi  # noqa: PLC0414
from monarch_py._native import lib as lib  # noqa: PLC0414

LIBRARY = Path(__file__).with_name("libmonarch.so")

Words = npt.NDArray[np.uint64]


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


def struct_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a C struct of plain numbers and pointers: same offsets, same size."""
    ctype = ffi.typeof(name)
    names, formats, offsets = [], [], []
    for field, info in ctype.fields:
        is_signed = info.type.kind == "primitive" and info.type.cname.startswith("int")
        names.append(field)
        formats.append(f"{'i' if is_signed else 'u'}{ffi.sizeof(info.type)}")
        offsets.append(info.offset)
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": ffi.sizeof(ctype)}
    )


ENTRY = struct_dtype("struct monarch_entry")
RESULT = struct_dtype("struct monarch_result")
ROOM = struct_dtype("struct monarch_room")
PLACED = struct_dtype("struct monarch_placed")
HOME = struct_dtype("struct monarch_home")


def make_word(state: int, reason: int = 0, tier: Any = 0, copy: Any = 0) -> Any:
    """Packs an entry's word (uint64); if `tier` or `copy` is an array, so is the result."""
    tiers, copies = np.asarray(tier, dtype=np.uint64), np.asarray(copy, dtype=np.uint64)
    return np.uint64(state | reason << 4) | (tiers << np.uint64(8)) | (copies << np.uint64(12))


def state_of(words: Words) -> Words:
    states: Words = words & np.uint64(15)
    return states


def reason_of(words: Words) -> Words:
    reasons: Words = (words >> np.uint64(4)) & np.uint64(15)
    return reasons


def tier_of(words: Words) -> Words:
    tiers: Words = (words >> np.uint64(8)) & np.uint64(15)
    return tiers


def copy_of(words: Words) -> Words:
    copies: Words = words >> np.uint64(12)
    return copies


def pointer(array: npt.NDArray[Any], ctype: str) -> Any:
    """The array's memory as a C pointer; the array must be contiguous and outlive the call."""
    return ffi.cast(ctype, ffi.from_buffer(array))


def path_hash(path: bytes) -> int:
    """XXH3-64 of a relative path, not yet mixed with the number of its source."""
    return int(lib.monarch_xxh3_of(path, len(path)))
