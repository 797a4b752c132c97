"""Datasets for the tests of StagedLoader, in a module that spawned workers can import."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Records:
    """Records of random bytes in one file, with a method `read_into`."""

    def __init__(self, path: Path, sizes: Sequence[int]) -> None:
        self.path, self.sizes = path, np.asarray(sizes, dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        path.write_bytes(np.random.RandomState(7).bytes(int(self.sizes.sum())))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> bytes:
        return self.path.read_bytes()[self.starts[index] :][: self.sizes[index]]

    def read_into(self, samples: Sequence[int], out: Any) -> None:
        at, memory = 0, memoryview(out)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            for sample in samples:
                end = at + int(self.sizes[sample])
                got = os.preadv(descriptor, [memory[at:end]], int(self.starts[sample]))
                assert got == end - at
                at = end
        finally:
            os.close(descriptor)


class Rows(Records):
    """Rows of numbers, as an HDF5 dataset has them."""

    read_into = Records.read_into

    def __getitem__(self, index: int) -> Any:
        return np.frombuffer(super().__getitem__(index), dtype=np.int32).reshape(2, -1)


class Turned(Rows):
    """Rows that `__getitem__` reverses, while the inherited `read_into` does not."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[::-1]


class Now(Rows):
    """Rows that change like those of a random augmentation: the first row that is read is
    unchanged, and all later ones are doubled."""

    drawn = 0

    def __getitem__(self, index: int) -> Any:
        self.drawn += 1
        return super().__getitem__(index) * (1 if self.drawn <= 1 else 2)


class Forwarding:
    """A wrapper around a dataset. It has its own `__getitem__`, which could change samples. All
    other attributes are those of the wrapped dataset."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class Labelled:
    """Samples that are dicts with an array and a tuple. To make a batch, a loader must collate such
    samples."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        image = np.full((3, 4), index, dtype=np.float32)
        return {"image": image, "more": (index, f"n{index}", index / 2)}


class Failing(Labelled):
    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise KeyError("thirteen is not there")
        return super().__getitem__(index)


class Signalled(Labelled):
    """Sends a signal to the process that reads sample 13."""

    def __init__(self, length: int, number: int) -> None:
        super().__init__(length)
        self.number = number

    def __getitem__(self, index: int) -> Any:
        if index == 13:
            os.kill(os.getpid(), self.number)
        return super().__getitem__(index)


class Forking(Labelled):
    """When a sample is read, the worker forks a child, which keeps the worker's pipe open. Then the
    worker kills itself."""

    def __init__(self, length: int, note: Path) -> None:
        super().__init__(length)
        self.note = note

    def __getitem__(self, index: int) -> Any:
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        self.note.write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)


class Stopping(Labelled):
    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise StopIteration
        return super().__getitem__(index)


class Swapped(Labelled):
    def __getitem__(self, index: int) -> Any:
        return np.array([index], dtype=">f4")


class Drawing(Labelled):
    """Each sample is an array of two numbers: a random number from NumPy's global generator, and
    the ID of the process that has read the sample."""

    def __getitem__(self, index: int) -> Any:
        return np.array([np.random.randint(1 << 30), os.getpid()])


KILL, STOP = int(signal.SIGKILL), int(signal.SIGSTOP)


class Waiting(Labelled):
    """A dataset that sleeps when a sample is read, as if it waited for a source."""

    def __init__(self, length: int, seconds: float) -> None:
        super().__init__(length)
        self.seconds = seconds

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return index


def waiting() -> Waiting:
    return Waiting(400, 0.004)


def add(samples: list[int]) -> int:
    return sum(samples)


def read_samples(dataset: Any, samples: list[int], to: Any) -> None:
    """The main function of a child process: sends the numbers that are stored in these samples of a
    Labelled dataset."""
    to.send([int(dataset[sample]["more"][0]) for sample in samples])
