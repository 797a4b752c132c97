"""Datasets in which each sample is a complete file. Files can be read into the caller's memory."""

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import Ints
from monarch_py.loaders.records.reads import IN_FLIGHT
from monarch_py.plan.builders import index_image_folder
from monarch_py.plan.index import Index

# If the first files of a batch take longer than this on average [s], several threads read the
# remaining files of the batch. Every file that is in memory can be read within this time. A read
# takes 30 us from a copy in memory, and 200 us from the fastest network file systems.
SLOW_S = 0.0002


class FileDataset:
    """The files of an index as samples: `dataset[i]` is the content of file i, as bytes.

    sizes : (samples,) int64, the files' sizes [bytes]
    """

    def __init__(self, index: Index) -> None:
        self.root = index.root
        self.sizes: Ints = index.sizes.astype(np.int64)
        self._pool, self._starts = index.pool, index.starts
        self._threads: tuple[int, ThreadPoolExecutor] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    def name(self, index: int) -> str:
        """Returns the path of file `index`, relative to `root`."""
        number = range(len(self))[index]
        begin, end = int(self._starts[number]), int(self._starts[number + 1])
        return os.fsdecode(self._pool[begin:end].tobytes())

    def __getitem__(self, index: int) -> bytes:
        number = range(len(self))[index]  # raises IndexError if there is no such file
        out = bytearray(int(self.sizes[number]))
        self._read(number, memoryview(out))
        return bytes(out)

    def read_into(self, samples: Sequence[int], out: Any) -> None:
        """Reads the samples back to back into a writable buffer. Raises OSError, with the path, if
        a file is missing, or if its size differs from its size in the index."""
        parts = list(self._parts(samples, memoryview(out).cast("B")))
        began = time.perf_counter()
        for number, (sample, part) in enumerate(parts):
            self._read(sample, part)
            if time.perf_counter() - began > SLOW_S * (number + 1):
                self._read_together(parts[number + 1 :])
                return

    def _parts(self, samples: Sequence[int], out: memoryview) -> Iterator[tuple[int, memoryview]]:
        begin = 0
        for sample in samples:
            end = begin + int(self.sizes[sample])
            yield sample, out[begin:end]
            begin = end

    def _read(self, sample: int, out: memoryview) -> None:
        path = os.path.join(self.root, self.name(sample))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done, size = 0, os.fstat(descriptor).st_size
            while size == len(out) and done < size:
                got = os.preadv(descriptor, [out[done:]], done)
                size = size if got else done
                done += got
            if size != len(out):
                text = f"it has {size} bytes, but {len(out)} in the index; index the dataset again"
                raise OSError(errno.EIO, text, path)
        finally:
            os.close(descriptor)

    def _read_together(self, parts: Sequence[tuple[int, memoryview]]) -> None:
        read: Callable[..., None] = self._read
        for _ in self._pool_of_threads().map(lambda part: read(*part), parts):
            pass

    def _pool_of_threads(self) -> ThreadPoolExecutor:
        # A forked child does not have its parent's threads, so it starts a pool of its own.
        if self._threads is None or self._threads[0] != os.getpid():
            self._threads = os.getpid(), ThreadPoolExecutor(IN_FLIGHT, "monarch-read")
        return self._threads[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_threads": None}


class ImageFolderFiles(FileDataset):
    """The images of a folder with one directory per class, numbered as torchvision's ImageFolder
    numbers them.

    classes : the classes' names, sorted;  labels : (samples,) int64, the class of each file
    """

    def __init__(self, root: str | Path) -> None:
        index = index_image_folder(Path(root))
        super().__init__(index)
        names = [self.name(i).partition("/")[0] for i in range(index.samples)]
        self.classes, labels = np.unique(np.array(names), return_inverse=True)
        self.labels: Ints = labels.astype(np.int64)
