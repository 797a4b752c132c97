"""Readers that use os, mmap and shutil, on descriptors of one process."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from reader_kit import Transcript, digest, files_of, mixed_files, reader, regular_files

# The size of a read [bytes]. It is a prime, so that reads do not end at the edge of a block.
CHUNK = 100_003
# O_DIRECT requires that addresses, offsets and lengths are multiples of this number of bytes.
ALIGNMENT = 4096


@reader
def open_read(root: Path, out: Transcript) -> None:
    """Reads every file with open().read(), as data loaders do."""
    for path in regular_files(root):
        with open(path, "rb") as file:
            out.data(path, file.read())


@reader
def open_lines(root: Path, out: Transcript) -> None:
    """Reads in text mode line by line, with tell and seek in between."""
    for path in files_of(root, "text/*.txt"):
        with open(path, encoding="utf-8") as file:
            first = file.readline()
            place = file.tell()
            lines = [first, *file]
            file.seek(place)
            out.line(path, lines=len(lines), again=len(file.read()))
            out.data(path, "".join(lines).encode())


def _readv(descriptor: int) -> bytes:
    parts: list[bytes] = []
    while True:
        buffers = [bytearray(10), bytearray(0), bytearray(CHUNK), bytearray(4096)]
        if not (count := os.readv(descriptor, buffers)):
            return b"".join(parts)
        parts.append(b"".join(buffers)[:count])


def _preadv(descriptor: int, flags: int) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while True:
        buffers = [bytearray(1), bytearray(CHUNK), bytearray(65_536)]
        if not (count := os.preadv(descriptor, buffers, offset, flags)):
            return b"".join(parts)
        parts.append(b"".join(buffers)[:count])
        offset += count


def _with_descriptor(paths: list[Path], out: Transcript, read: Callable[[int], bytes]) -> None:
    """Opens each path with no flag but O_RDONLY, passes the descriptor to `read`, and records the
    bytes that `read` returns."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            out.data(path, read(descriptor), offset=os.lseek(descriptor, 0, os.SEEK_CUR))
        finally:
            os.close(descriptor)


@reader
def os_readv(root: Path, out: Transcript) -> None:
    """Reads with readv into several buffers, one of which is empty."""
    _with_descriptor(mixed_files(root), out, _readv)


@reader
def os_preadv(root: Path, out: Transcript) -> None:
    """Reads with preadv at explicit offsets, which must not move the descriptor's own offset."""
    _with_descriptor(mixed_files(root), out, lambda descriptor: _preadv(descriptor, 0))


@reader
def os_pread_threads(root: Path, out: Transcript) -> None:
    """Eight threads read pieces of a file with pread, in mixed order and from one descriptor. The
    last piece begins at the end of the file or beyond."""
    with ThreadPoolExecutor(8) as pool:
        for path in mixed_files(root):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                size = os.fstat(descriptor).st_size
                starts = range(0, size + CHUNK, CHUNK)
                mixed = sorted(starts, key=lambda start: start * 7919 % 10_007)
                data = pool.map(partial(os.pread, descriptor, CHUNK), mixed)
                read = dict(zip(mixed, data, strict=True))
            finally:
                os.close(descriptor)
            out.data(path, b"".join(read[start] for start in starts))


@reader
def read_seek(root: Path, out: Transcript) -> None:
    """Opens files without a buffer (buffering=0). Seeks with SEEK_SET, SEEK_CUR, SEEK_END and
    SEEK_DATA, also to offsets beyond the end, and reads between the seeks."""
    for path in mixed_files(root):
        with open(path, "rb", buffering=0) as file:
            head = file.read(13)
            skipped = file.seek(7, os.SEEK_CUR)
            middle = file.read(CHUNK)
            end = file.seek(0, os.SEEK_END)
            nothing = file.read(100)
            tail_from = file.seek(max(0, end - 50))
            tail = file.read(100)
            beyond = file.seek(end + 1000)
            out.line(path, places=[skipped, end, tail_from, beyond, len(nothing)])
            out.data(path, head + middle + tail, past_the_end=len(file.read(10)))
            out.outcome(f"SEEK_DATA in {path.name}", partial(file.seek, 0, os.SEEK_DATA))
            out.outcome(f"SEEK_HOLE in {path.name}", partial(file.seek, 0, os.SEEK_HOLE))


def _shared_read(first: int) -> tuple[list[int], bytes]:
    """Reads through `first` and two duplicates of it in turn. All three share one offset. Returns
    the offsets and the bytes."""
    copies = [first, os.dup(first), fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 100)]
    places: list[int] = []
    parts: list[bytes] = []
    try:
        while part := os.read(copies[len(parts) % 3], CHUNK):
            parts.append(part)
            places.append(os.lseek(copies[len(parts) % 3], 0, os.SEEK_CUR))
    finally:
        for descriptor in copies[1:]:
            os.close(descriptor)
    return places, b"".join(parts)


@reader
def dup_shared_offset(root: Path, out: Transcript) -> None:
    """Reads through descriptors that share an offset: the results of dup, F_DUPFD and dup2. The
    result of dup2 is read through a file object made by fdopen."""
    for path in mixed_files(root):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            places, data = _shared_read(descriptor)
            out.data(path, data, places=places)
            os.lseek(descriptor, 5, os.SEEK_SET)
            other = os.open("/dev/null", os.O_RDONLY)
            os.dup2(descriptor, other)
            with os.fdopen(other, "rb") as file:
                head = file.read(20)
            # The file object has read more bytes into its buffer than the 20 that it returned.
            out.data(path, head, offset=os.lseek(descriptor, 0, os.SEEK_CUR))
        finally:
            os.close(descriptor)


@reader
def proc_fd_paths(root: Path, out: Transcript) -> None:
    """Opens a file a second time through /proc/self/fd and /dev/fd. The new descriptor must read
    the same bytes and have its own offset."""
    for path in mixed_files(root):
        with open(path, "rb", buffering=0) as file:
            file.seek(10)
            for name in (f"/proc/self/fd/{file.fileno()}", f"/dev/fd/{file.fileno()}"):
                out.data(path, Path(name).read_bytes(), offset=file.tell())


@reader
def py_mmap(root: Path, out: Transcript) -> None:
    """Reads shared and private mappings after the file was closed. Writes to a private mapping must
    not change the file."""
    for path in mixed_files(root):
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                try:
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                except ValueError as error:
                    out.line(path, refused=str(error))
                continue
            shared = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            private = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        with shared, private:
            shared.madvise(mmap.MADV_WILLNEED)
            out.data(path, shared[:], way="shared")
            private[0] = (private[0] + 1) % 256
            out.data(path, private[:], way="private")
            out.line(path, sizes=[shared.size(), private.size()])
        out.data(path, path.read_bytes(), way="after")


@reader
def mmap_offset(root: Path, out: Transcript) -> None:
    """Maps parts of a file at multiples of the page size."""
    for path in files_of(root, "edge/block*", "tfrecord/*", "raw/*"):
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            for offset in range(0, size, 3 * 256 * mmap.ALLOCATIONGRANULARITY):
                length = min(300_001, size - offset)
                with mmap.mmap(file.fileno(), length, prot=mmap.PROT_READ, offset=offset) as part:
                    out.data(path, part[:], mapped_at=offset)


def _read_direct(descriptor: int) -> bytes:
    """Reads a descriptor to the end of the file, 256 KiB at a time, into an aligned buffer. Returns
    the bytes."""
    parts: list[bytes] = []
    with mmap.mmap(-1, 64 * ALIGNMENT) as buffer:
        while True:
            count = os.readv(descriptor, [buffer])
            parts.append(buffer[:count])
            # Only the last read is short. After it, the offset may be unaligned, so no further read
            # is made.
            if count < len(buffer):
                return b"".join(parts)


@reader
def odirect(root: Path, out: Transcript) -> None:
    """Reads with O_DIRECT into an aligned buffer. If the file system refuses O_DIRECT, the reader
    opens the file without this flag, as programs do."""
    for path in mixed_files(root):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            descriptor = os.open(path, os.O_RDONLY)
        try:
            out.data(path, _read_direct(descriptor))
        finally:
            os.close(descriptor)


@reader
def odirect_open(root: Path, out: Transcript) -> None:
    """Records whether open accepts O_DIRECT, and whether the descriptor then has the flag."""
    for path in mixed_files(root):
        name = str(path.relative_to(root))
        out.outcome(name, partial(_direct_flag, path))


def _direct_flag(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)
    finally:
        os.close(descriptor)


def _copy_by_range(source: int, target: int) -> None:
    """Copies with copy_file_range. If the kernel refuses, copies with read and write, as cp
    does."""
    try:
        while os.copy_file_range(source, target, 1 << 20):
            pass
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        while part := os.read(source, CHUNK):
            os.write(target, part)


def _copy_by_sendfile(source: int, target: int) -> None:
    """Copies with sendfile: the first piece at the descriptor's offset, the others at explicit
    offsets."""
    offset = os.sendfile(target, source, None, CHUNK)
    while count := os.sendfile(target, source, offset, 1 << 20):
        offset += count


def _copies(root: Path, out: Transcript, copy: Callable[[int, int], None]) -> None:
    for path in mixed_files(root):
        with open(path, "rb", buffering=0) as source, tempfile.TemporaryFile() as target:
            copy(source.fileno(), target.fileno())
            place = source.tell()
            target.seek(0)
            out.data(path, target.read(), offset=place)


@reader
def sendfile_copy(root: Path, out: Transcript) -> None:
    """Copies each file with os.sendfile into a file outside the dataset."""
    _copies(root, out, _copy_by_sendfile)


@reader
def copy_file_range(root: Path, out: Transcript) -> None:
    """Copies with os.copy_file_range into a file outside the dataset."""
    _copies(root, out, _copy_by_range)


@reader
def shutil_copyfile(root: Path, out: Transcript) -> None:
    """Copies with shutil.copyfile, and with shutil.copy2, which also copies mode and times."""
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(mixed_files(root)):
            target = Path(folder) / str(number)
            shutil.copyfile(path, target)
            out.data(path, target.read_bytes())
            shutil.copy2(path, target)
            status = target.stat()
            out.line(path, mode=status.st_mode, size=status.st_size, mtime_ns=status.st_mtime_ns)


@reader
def shutil_copytree(root: Path, out: Transcript) -> None:
    """Copies the dataset with shutil.copytree, which follows symbolic links."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "tree"
        shutil.copytree(root, target)
        for path in regular_files(target):
            status = path.stat()
            out.line(
                path.relative_to(target),
                mode=status.st_mode,
                mtime_ns=status.st_mtime_ns,
                sha256=digest(path.read_bytes()),
            )
