"""The index of a dataset: its files, and the position of each sample in them."""

import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import Array, Int32s, Uints, pointer
from monarch_py.errors import ConfigError
from monarch_py.native import ffi, lib
from monarch_py.plan.samplers import MAX_SAMPLES, NONE

# What a unit of a plan can be:
# samples : one sample
# files : a whole file
# ranges : the samples that begin in the same block of a file
GRAINS = ("samples", "files", "ranges")

Numbers = npt.NDArray[np.int64]
# The first bytes of a .npz file.
ZIP_MAGIC = b"PK\x03\x04"


@dataclass(frozen=True, eq=False)
class DatasetUnits:
    """The units in which a plan counts accesses: samples, files or parts of files.

    lookup : (samples + 1,) int32, the unit of each sample; None if every sample is a unit of its
        own. The additional last element is NONE, so that `lookup` maps NONE to NONE: the value of
        NONE is -1, which is the index of the last element
    length : (units,) int64, the size of each unit [bytes]
    """

    lookup: Int32s | None
    length: Numbers

    def __len__(self) -> int:
        return len(self.length)


@dataclass(frozen=True, eq=False)
class Index:
    """The files of a dataset and its samples, in the order in which the training program numbers
    them.

    kind : the format of the files
    root : the directory to which the names are relative
    pool : uint8, the names of all files, concatenated
    starts : (files + 1,) uint64, where each name begins in `pool`, and where the last name ends
    sizes : (files,) uint64 [bytes]
    sample_file, sample_offset, sample_length : (samples,) int32, int64, int64 [bytes], where each
        sample lies; all three are None if each file is one sample
    """

    kind: str
    root: str
    pool: npt.NDArray[np.uint8]
    starts: Uints
    sizes: Uints
    sample_file: Int32s | None = None
    sample_offset: Numbers | None = None
    sample_length: Numbers | None = None

    @classmethod
    def of(
        cls,
        kind: str,
        root: str | Path,
        names: Sequence[str],
        sizes: Sequence[int] | Array,
        samples: tuple[Any, Any, Any] | None = None,
    ) -> "Index":
        """Returns the index of files with the given names (relative to `root`) and sizes [bytes].

        samples : three arrays (samples,): the file of each sample, its offset and its length
            [bytes]; None if each file is one sample

        Raises ConfigError if there are no samples, or more than MAX_SAMPLES.
        """
        encoded = [os.fsencode(name) for name in names]
        starts = np.zeros(len(encoded) + 1, dtype=np.uint64)
        np.cumsum([len(name) for name in encoded], out=starts[1:])
        pool = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        found = cls(kind, str(root), pool, starts, np.asarray(sizes, dtype=np.uint64))
        if samples is not None:
            found = replace(
                found,
                sample_file=np.asarray(samples[0], dtype=np.int32),
                sample_offset=np.asarray(samples[1], dtype=np.int64),
                sample_length=np.asarray(samples[2], dtype=np.int64),
            )
        if not 0 < found.samples <= MAX_SAMPLES:
            raise ConfigError(
                f"{root}: {found.samples} samples of kind {kind}; name a dataset with 1 to"
                f" {MAX_SAMPLES} samples"
            )
        return found

    @classmethod
    def unnamed(cls, samples: int, size: int = 0) -> "Index":
        """Returns the index of files whose names are not known. Each file is one sample.

        size : the mean size of a file [bytes]; 0 if it is not known
        """
        return cls(
            "unnamed",
            "",
            np.zeros(0, dtype=np.uint8),
            np.zeros(samples + 1, dtype=np.uint64),
            np.full(samples, size, dtype=np.uint64),
        )

    @property
    def files(self) -> int:
        return len(self.sizes)

    @property
    def samples(self) -> int:
        return self.files if self.sample_file is None else len(self.sample_file)

    def digest(self) -> str:
        """Returns 32 hexadecimal digits that identify the names and sizes of all files. The order
        of the files does not matter."""
        total = ffi.new("uint64_t[2]")
        lib.monarch_plan_digest(
            ffi.cast("char *", pointer(self.pool)),
            pointer(self.starts),
            pointer(self.sizes),
            self.files,
            total,
        )
        return f"{total[0]:016x}{total[1]:016x}"

    def names(self) -> list[str]:
        """Returns the names of all files. The list takes much more memory than `pool`."""
        ends, pool = self.starts.tolist(), self.pool.tobytes()
        return [os.fsdecode(pool[a:b]) for a, b in pairwise(ends)]

    def path_hashes(self) -> Uints:
        """Returns the hash of each file's name, (files,). This is the hash in the daemon's catalog
        if `root` is the daemon's first source."""
        ends, pool = self.starts.tolist(), self.pool.tobytes()
        hashes = [lib.monarch_path_hash(0, pool[a:b], b - a) for a, b in pairwise(ends)]
        return np.array(hashes, dtype=np.uint64)

    def units(self, grain: str = "files", range_bytes: int = 4 << 20) -> DatasetUnits:
        """Returns the units of the dataset.

        grain : what a unit is, one of GRAINS
        range_bytes : the size of the blocks into which the grain 'ranges' divides each file
            [bytes]. A sample that crosses the border of a block belongs to the block in which it
            begins. So a unit may extend into the next block
        """
        sizes = self.sizes.astype(np.int64)
        file, offset, length = self.sample_file, self.sample_offset, self.sample_length
        if file is None or offset is None or length is None:
            if grain != "ranges":
                return DatasetUnits(None, sizes)
            whole = np.arange(self.files, dtype=np.int32)
            return self._ranges(whole, np.zeros_like(sizes), sizes, range_bytes)
        if grain == "samples":
            return DatasetUnits(None, length)
        if grain == "files":
            return DatasetUnits(np.append(file, np.int32(NONE)), sizes)
        return self._ranges(file, offset, length, range_bytes)

    def _ranges(
        self, file: Int32s, offset: Numbers, length: Numbers, range_bytes: int
    ) -> DatasetUnits:
        """Returns the units of the grain 'ranges'. Each file is divided into blocks of
        `range_bytes`. The samples that begin in one block form a unit. A block in which no sample
        begins has no unit. The units are in the order of the files and blocks."""
        blocks = (-(-self.sizes.astype(np.int64) // range_bytes)).clip(min=1)
        first = np.cumsum(blocks) - blocks
        numbers = first[file] + offset // range_bytes
        kept, unit = np.unique(numbers, return_inverse=True)
        low = np.full(len(kept), np.iinfo(np.int64).max)
        high = np.zeros(len(kept), dtype=np.int64)
        np.minimum.at(low, unit, offset)
        np.maximum.at(high, unit, offset + length)
        return DatasetUnits(np.append(unit, NONE).astype(np.int32), high - low)

    # --- stored as a file ---------------------------------------------------------------------

    def arrays(self) -> dict[str, Array]:
        """Returns the fields as arrays, by name, for `save_arrays`. Omits fields that are None."""
        return {
            name: _text_array(value) if isinstance(value, str) else value
            for name, value in vars(self).items()
            if value is not None
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> "Index":
        """Makes an index from the result of `Index.arrays`. Raises KeyError, TypeError or
        ValueError if the arrays are not an index."""
        if "plan" in arrays:
            raise ValueError("it is a plan")
        given: dict[str, Any] = dict(arrays)
        for name in _TEXTS:
            given[name] = arrays[name].tobytes().decode("utf-8", "surrogateescape")
        found = cls(**given)
        ends = found.starts
        if len(ends) != found.files + 1 or int(ends[-1]) != len(found.pool) or found.samples == 0:
            raise ValueError("its arrays have lengths that do not match")
        return found

    def save(self, path: Path) -> None:
        """Writes the index as .npz. Raises ConfigError if it cannot be written."""
        save_arrays(path, self.arrays())

    @classmethod
    def load(cls, path: Path) -> "Index":
        """Reads a file that `save` wrote. Raises ConfigError for any other file; the message names
        the file."""
        try:
            return cls.from_arrays(load_arrays(path))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}: not an index ({error}); make one with `monarch plan index`"
            ) from None


_TEXTS = ("kind", "root")


def _text_array(text: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text.encode("utf-8", "surrogateescape"), dtype=np.uint8)


def save_arrays(path: Path, arrays: dict[str, Array]) -> None:
    """Writes arrays to a file. If this fails, an existing file is not changed, and ConfigError is
    raised."""
    stored: dict[str, Any] = dict(arrays)
    unfinished = path.parent / f".{path.name}.{os.getpid()}"
    try:
        with open(unfinished, "wb") as stream:
            np.savez_compressed(stream, **stored)
        os.replace(unfinished, path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); check the path") from None


def load_arrays(path: Path) -> dict[str, Array]:
    """Reads a file that `save_arrays` wrote. Raises ConfigError if the file cannot be read, and
    ValueError if its content is not valid. Pickled objects are not valid either, because reading
    them could execute code."""
    try:
        with path.open("rb") as file:
            if file.read(len(ZIP_MAGIC)) != ZIP_MAGIC:
                raise ValueError("it is not an .npz file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                return _arrays_of(stored)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    # RuntimeError: zipfile found an encrypted member, or a compression that it does not know.
    except (BadZipFile, EOFError, RuntimeError, struct.error, zlib.error):
        raise ValueError("it is damaged") from None


def _arrays_of(stored: Any) -> dict[str, Array]:
    try:
        return {name: stored[name] for name in stored.files}
    except ValueError:  # NumPy's own message is not shown: it recommends allowing pickles
        raise ValueError("it is damaged, or holds Python objects") from None
