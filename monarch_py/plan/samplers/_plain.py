"""Samplers that draw no random numbers: the order is sequential, listed in a file, or recorded."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

from monarch_py.arrays import Array, Ints
from monarch_py.errors import ConfigError
from monarch_py.plan.samplers._base import Order, Sampler
from monarch_py.plan.samplers._pytorch import as_order


@dataclass(frozen=True)
class SequentialSampler(Sampler):
    """The order 0, 1, 2, ... in every epoch."""

    length: int

    def epochs(self, start: int = 0) -> Iterator[Order]:
        while True:
            yield np.arange(self.length, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Listed(Sampler):
    """Orders that are given as lists of sample numbers.

    indices : (epochs, count) integers, one row for each epoch whose order is known; or (count,)
        integers, if every epoch has the same order
    """

    length: int
    indices: Array

    def __post_init__(self) -> None:
        super().__post_init__()
        indices = np.asarray(self.indices)
        if indices.ndim not in (1, 2):
            raise ConfigError(
                f"indices: has {indices.ndim} dimensions; write one row of samples for each epoch"
            )
        flat = as_order("indices", indices.reshape(-1), self.length)
        object.__setattr__(self, "indices", flat.reshape(indices.shape))
        object.__setattr__(self, "reach", len(indices) if indices.ndim == 2 else None)

    @property
    def count(self) -> int:
        return int(self.indices.shape[-1])

    def epochs(self, start: int = 0) -> Iterator[Order]:
        self.check_epoch(start)
        rows = repeat(self.indices) if self.reach is None else self.indices[start:]
        for row in rows:
            yield row.astype(np.int32)


class Recorded(Listed):
    """The order that was observed in the first epoch, for readers that repeat this order in every
    epoch. For example, PyTorch with DALI repeats the first order of TFRecords (Dantas 2022, 6.1).

    indices : (count,) integers, the order as observed
    """

    def __post_init__(self) -> None:
        if np.ndim(self.indices) != 1:
            raise ConfigError("indices: Recorded needs the order of one epoch; write it as one row")
        super().__post_init__()


def read_indices(path: Path) -> Ints:
    """Reads sample numbers from a file: .npy, or text with one number per line and an empty line
    between two epochs.

    Returns the numbers: for a text with only one epoch (count,), for other texts (epochs, count),
    and for a .npy file the stored array. Raises ConfigError if the file cannot be read, if it does
    not contain whole numbers, or if its epochs have different lengths.
    """
    try:
        if path.suffix == ".npy":
            numbers = np.load(path, allow_pickle=False)
            if not isinstance(numbers, np.ndarray):  # an archive of several arrays
                raise ValueError("it holds several arrays")
            if not np.issubdtype(numbers.dtype, np.integer):
                raise ValueError("it does not hold whole numbers")
            return np.asarray(numbers, dtype=np.int64)
        epochs = [
            np.array(text.split(), dtype=np.int64)
            for text in path.read_text().replace("\r\n", "\n").split("\n\n")
            if text.strip()
        ]
        if len({len(epoch) for epoch in epochs}) != 1:
            raise ValueError("it has no epochs, or epochs of different lengths")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a file of indices") from None
    except (EOFError, MemoryError, OverflowError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: not a file of indices ({error}); write one number a line, an empty line"
            " between two epochs"
        ) from None
    return epochs[0] if len(epochs) == 1 else np.stack(epochs)
