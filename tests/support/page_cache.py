"""The pages of a file in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path


def cached_bytes(path: Path) -> int:
    """Returns how many bytes of the file are in the page cache, in whole pages, without reading the
    file."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file:
        view = mmap.mmap(
            file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE
        )
    try:
        pages = (len(view) + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        resident = (ctypes.c_ubyte * pages)()
        where = ctypes.c_char.from_buffer(view)
        start = ctypes.c_void_p(ctypes.addressof(where))
        done = libc.mincore(start, ctypes.c_size_t(len(view)), resident)
        del where  # view.close() fails while an object refers to the view
        assert done == 0, os.strerror(ctypes.get_errno())
        return sum(page & 1 for page in resident) * mmap.PAGESIZE
    finally:
        view.close()


def forget_pages(file: Path) -> None:
    """Removes the file's pages from the page cache."""
    fd = os.open(file, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    assert cached_bytes(file) == 0
