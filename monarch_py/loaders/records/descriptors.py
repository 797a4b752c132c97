"""The files that a process holds open for a dataset."""

import errno
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from monarch_py.arrays import Int32s
from monarch_py.errors import MonarchError

# The most files that are kept open: a quarter of the descriptors that a process may have by
# default. If one call needs more files at once, more files are open.
MOST_OPEN = 256


class Descriptors:
    """Descriptors of a dataset's files. A file is opened when its descriptor is first needed. If
    its size then differs from its size in the index, MonarchError is raised.

    path_of : a function that returns the path of a file, given the file's number
    sizes : (files,) the files' sizes in the index [bytes]
    """

    def __init__(self, path_of: Callable[[int], str], sizes: np.ndarray) -> None:
        self._path_of, self._sizes = path_of, sizes
        self._open: OrderedDict[int, int] = OrderedDict()
        weakref.finalize(self, _close_all, self._open)

    def of(self, files: Int32s) -> Int32s:
        """Returns a descriptor for each item of `files`. The descriptors stay open at least until
        the next call. Raises MonarchError if a file cannot be opened, or if its size differs from
        its size in the index."""
        if len(files) and files.min() == files.max():
            return np.full(len(files), self.one(int(files[0])), dtype=np.int32)
        return self._of_several(files)

    def _of_several(self, files: Int32s) -> Int32s:
        numbers, place = np.unique(files, return_inverse=True)
        wanted = numbers.tolist()
        while self._open and len(self._open.keys() | wanted) > max(MOST_OPEN, len(wanted)):
            oldest = next(number for number in self._open if number not in wanted)
            os.close(self._open.pop(oldest))
        found = np.fromiter(map(self._opened, wanted), dtype=np.int32, count=len(wanted))
        return found[place]

    def one(self, number: int) -> int:
        """Like `of`, but returns the descriptor of one file, given the file's number."""
        if number in self._open:
            return self._open[number]
        return int(self._of_several(np.array([number], dtype=np.int32))[0])

    def _opened(self, number: int) -> int:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        path = self._path_of(number)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            is_full = error.errno == errno.EMFILE
            what = "raise `ulimit -n`" if is_full else "check the path and its permissions"
            raise MonarchError(f"{path}: {error.strerror}; {what}") from error
        size, indexed = os.fstat(descriptor).st_size, int(self._sizes[number])
        if size != indexed:
            os.close(descriptor)
            raise MonarchError(
                f"{path}: {size} bytes, and the index has {indexed}; the file has changed, so index"
                " the dataset again"
            )
        self._open[number] = descriptor
        return descriptor

    def close(self) -> None:
        _close_all(self._open)


def _close_all(opened: OrderedDict[int, int]) -> None:
    while opened:
        os.close(opened.popitem()[1])
