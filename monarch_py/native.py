"""The C declarations for Python: layouts as numpy dtypes, types of arrays, enumerations.

This module defines no layout: every offset, size and number comes from the compiled headers.
"""

from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import monarch_py._native

ffi: Any = monarch_py._native.ffi
lib: Any = monarch_py._native.lib
# Types of numpy arrays, by the type of the elements. `Ids` are the indices of entries in the
# catalog.
Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Uints = npt.NDArray[np.uint64]
Ids = Uints
NO_IDS: Ids = np.zeros(0, dtype=np.uint64)
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


# The C type of an array's elements, by dtype; `struct_dtype` adds the types of structs.
INTEGERS = ("int8", "uint8", "uint16", "uint32", "uint64", "int32", "int64")
C_TYPES: dict[np.dtype[Any], str] = {np.dtype(name): f"{name}_t" for name in INTEGERS}
C_TYPES[np.dtype(np.float64)] = "double"


def struct_dtype(name: str) -> np.dtype[Any]:
    """Returns the numpy dtype of a C struct whose fields are numbers and pointers."""
    ctype = ffi.typeof(name)
    names, formats, offsets = [], [], []
    for field, info in ctype.fields:
        is_signed = info.type.kind == "primitive" and info.type.cname.startswith("int")
        names.append(field)
        formats.append(f"{'i' if is_signed else 'u'}{ffi.sizeof(info.type)}")
        offsets.append(info.offset)
    dtype = np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": ffi.sizeof(ctype)}
    )
    C_TYPES[dtype] = name
    return dtype


ENTRY = struct_dtype("struct monarch_entry")
RESULT = struct_dtype("struct monarch_result")
ROOM = struct_dtype("struct monarch_room")
PLACED = struct_dtype("struct monarch_placed")
HOME = struct_dtype("struct monarch_home")
MEMBER = struct_dtype("struct monarch_member")


def pointer(array: Array, dtype: npt.DTypeLike | None = None) -> Any:
    """Returns a C pointer to the elements of an array. Without `dtype`, the array must be
    contiguous.

    dtype : the type of element that C expects. If the array has another dtype or is not contiguous,
        the pointer is to a converted copy
    """
    if dtype is not None:
        array = np.ascontiguousarray(array, dtype)
    return ffi.from_buffer(f"{C_TYPES[array.dtype]}[]", array)


def not_null(pointer: Any, why_not: str) -> Any:
    """Returns `pointer`, the result of a C function. Raises MemoryError, with the sentence
    `why_not`, if the pointer is NULL."""
    if pointer == ffi.NULL:
        raise MemoryError(why_not)
    return pointer


def path_hash(path: bytes) -> int:
    """The XXH3-64 hash of a relative path alone. The hash in a catalog entry also includes the
    number of the source."""
    return int(lib.monarch_xxh3_of(path, len(path)))
