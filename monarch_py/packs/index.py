"""The index of a pack: where in the tar each file's content is, and the tar's size and modification
time.

The index is a file next to the tar, with the name TAR.monarch.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import Array, Ints, Uints
from monarch_py.config.schema import PACK_INDEX
from monarch_py.errors import ConfigError
from monarch_py.native import path_hash
from monarch_py.plan.index import load_arrays, save_arrays

FORMAT = "monarch pack 1"
_MEND = "make the index again with `monarch pack DIR -o TAR --index-only`"
# The names of the arrays in an index file that have one int64 or uint64 for each member of the tar.
COLUMNS = ("hashes", "offsets", "sizes", "mtimes_ns")


def index_path(pack: Path) -> Path:
    return pack.with_name(pack.name + PACK_INDEX)


@dataclass(frozen=True, slots=True, eq=False)
class PackIndex:
    """The files in a pack, in the tar's order.

    pack_bytes, pack_mtime_ns : size and modification time of the indexed tar
    pool : uint8, the files' paths relative to the packed directory, separated by NULs
    hashes : (members,) uint64, XXH3-64 of the paths
    offsets, sizes : (members,) int64, where the content of each file begins in the tar, and the
        size of the file [bytes]
    mtimes_ns : (members,) int64, the files' modification times [ns]
    """

    pack_bytes: int
    pack_mtime_ns: int
    pool: Array
    hashes: Uints
    offsets: Ints
    sizes: Ints
    mtimes_ns: Ints

    @classmethod
    def of(cls, tar: os.stat_result, members: Sequence[tuple[str, int, int, int]]) -> "PackIndex":
        """Returns the index of a tar. If members have the same name, only the last one is indexed,
        because tar extracts the last one.

        tar : the tar's attributes;  members : (name, offset, size, mtime_ns) of each member
        """
        last = {member[0]: member for member in members}
        kept = sorted(last.values(), key=lambda member: member[1])
        numbers = np.array([member[1:] for member in kept], dtype=np.int64).reshape(-1, 3)
        hashes = [path_hash(os.fsencode(name)) for name, *_ in kept]
        return cls(
            tar.st_size,
            tar.st_mtime_ns,
            np.frombuffer(b"\0".join(os.fsencode(name) for name, *_ in kept), dtype=np.uint8),
            np.array(hashes, dtype=np.uint64),
            *np.ascontiguousarray(numbers.T),
        )

    def names(self) -> list[str]:
        """Returns the files' paths relative to the packed directory. The list takes much more
        memory than `pool`."""
        names = self.pool.tobytes().split(b"\0") if len(self) else []
        return [os.fsdecode(name) for name in names]

    def __len__(self) -> int:
        return len(self.hashes)

    def save(self, pack: Path) -> None:
        """Writes the index of a tar next to the tar, completely or not at all. Raises ConfigError
        if the index cannot be written."""
        text = {
            "format": FORMAT,
            "pack_bytes": self.pack_bytes,
            "pack_mtime_ns": self.pack_mtime_ns,
        }
        arrays: dict[str, Array] = {name: getattr(self, name) for name in COLUMNS}
        arrays["pack"] = np.frombuffer(json.dumps(text).encode(), dtype=np.uint8)
        arrays["pool"] = self.pool
        save_arrays(index_path(pack), arrays)

    @classmethod
    def load(cls, pack: Path) -> "PackIndex":
        """Reads the index next to a tar. Raises ConfigError, with the remedy, if the index is
        missing, damaged, or made for another version of the tar."""
        path = index_path(pack)
        try:
            found = cls._from_arrays(load_arrays(path))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: not the index of a pack ({error}); {_MEND}") from None
        try:
            tar = os.stat(pack)
        except OSError as error:
            raise ConfigError(f"{pack}: {error.strerror}; correct the path of the pack") from None
        found.check(pack, tar)
        return found

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Array]) -> "PackIndex":
        text: Any = json.loads(arrays["pack"].tobytes())
        if text["format"] != FORMAT:
            raise ValueError(f"its format is {text['format']!r}")
        columns = [arrays[name] for name in COLUMNS]
        pool, count = arrays["pool"], len(columns[0])
        named = int((pool == 0).sum()) + 1 if count else 0
        dtypes = [column.dtype for column in (pool, *columns)]
        if (
            dtypes != [np.uint8, np.uint64, np.int64, np.int64, np.int64]
            or any(column.shape != (count,) for column in columns)
            or named != count
        ):
            raise ValueError(
                "the length of a column is not the number of names, or a column has a wrong type"
            )
        index = cls(text["pack_bytes"], text["pack_mtime_ns"], pool, *columns)
        ends, most = index.offsets + index.sizes, index.pack_bytes
        for numbers in (index.offsets, index.sizes, ends):  # also detects an overflow in `ends`
            if ((numbers < 0) | (numbers > most)).any():
                raise ValueError("a member lies outside the tar")
        if (index.offsets[1:] < ends[:-1]).any():
            raise ValueError("its members overlap")
        return index

    def check(self, pack: Path, tar: os.stat_result) -> None:
        """Raises ConfigError if the tar has changed since it was indexed.

        tar : the tar's present attributes
        """
        if (tar.st_size, tar.st_mtime_ns) != (self.pack_bytes, self.pack_mtime_ns):
            raise ConfigError(f"{pack}: has changed since its index was made; {_MEND}")
