"""Numpy arrays that C and Python share: their types, the layouts of C structs, and C pointers.

The layouts come from the compiled headers, so this module contains no offsets and sizes. It is
separate from `native`, so that commands which need no arrays start without numpy.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.native import ffi

# Types of numpy arrays, named after their elements. `Ids` are indices of entries in the catalog.
Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Uints = npt.NDArray[np.uint64]
Ids = Uints
NO_IDS: Ids = np.zeros(0, dtype=np.uint64)

# Numpy dtype -> name of the same type in C. `struct_dtype` adds the C structs. `pointer` uses the
# dictionary.
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
    """Returns a C pointer to the elements of an array.

    dtype : the type of element that C expects. If the array has another dtype or is not contiguous,
        the result points to a converted copy. None to use the array's own dtype; then the array
        must be contiguous
    """
    if dtype is not None:
        array = np.ascontiguousarray(array, dtype)
    return ffi.from_buffer(f"{C_TYPES[array.dtype]}[]", array)
