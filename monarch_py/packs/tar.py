"""Makes packs: writes a directory's files into a tar, or indexes an existing tar of these files."""

import os
import stat
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import tee
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from monarch_py.errors import ConfigError, MonarchError
from monarch_py.packs.index import PackIndex

# THREADS: how many files are read or examined in parallel. The number is large, because a remote
# source has a high latency. AHEAD: how many files, at most, wait for a thread, are being read, or
# wait to be written to the tar.
THREADS, AHEAD = 32, 64
# Files up to this size [bytes] are read completely before they are written to the tar. So a file
# that changes during the read can be read again.
SMALL_BYTES = 1 << 20
# The size of the buffer for reading and writing tars [bytes]. The headers of small members are
# close together, so one read returns many headers.
BUFFER_BYTES = 1 << 20
# If a file changes twice within this time [s], its modification time may be the same after both
# changes.
TIME_STEP_S = 2.0
SECOND_NS = 1_000_000_000
RECORD_BYTES = tarfile.BLOCKSIZE

# Name, offset [bytes], size [bytes] and modification time [ns].
Member = tuple[str, int, int, int]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Packed:
    """The result of making a pack.

    index : the index that was written
    files : how many files of the directory, or members of an existing tar, were examined
    changed : the names of files that are not in the index: a file changed during the call, or the
        directory and the tar contain different versions of it
    """

    index: PackIndex
    files: int
    changed: tuple[str, ...]


def _failed(path: str | Path, error: OSError) -> MonarchError:
    return MonarchError(f"{path}: {error.strerror}; check the path and its permissions")


@contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """Turns an OSError in the `with` block into a MonarchError, which says that `path` cannot be
    read."""
    try:
        yield
    except OSError as error:
        raise _failed(path, error) from None


def _names(root: Path) -> list[str]:
    """Returns the paths, relative to `root`, of everything below `root` that is not a directory.
    The files of one directory are neighbours in the list."""

    def failed(error: OSError) -> None:
        raise _failed(error.filename, error)

    found = []
    for directory, below, names in os.walk(root, onerror=failed):
        below.sort()
        links = [name for name in below if os.path.islink(os.path.join(directory, name))]
        beside = os.path.relpath(directory, root)
        found += [
            name if beside == "." else f"{beside}/{name}" for name in sorted([*names, *links])
        ]
    return found


def _each(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yields function(item) for each item, in the order of the items. Several results are computed
    at the same time."""
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) == AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


# --- writing ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Read:
    """A file that was read.

    content : the file's content; None if the file is not regular, or if it is large. A large file
        is read later, in pieces, while it is written to the tar
    is_whole : whether the file was the same before and after the read
    """

    name: str
    found: os.stat_result
    content: bytes | None
    is_whole: bool = True


def _version(found: os.stat_result) -> tuple[int, ...]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _young_s(found: os.stat_result) -> float:
    """Returns how long to wait [s] until every further change of the file will alter its
    modification time; 0 if no wait is needed. Two changes in quick succession may leave the same
    time."""
    left_s = found.st_mtime_ns / SECOND_NS + TIME_STEP_S - time.time()
    # A modification time slightly in the future comes from a file server whose clock is ahead. A
    # time far in the future was set by a program. Such a time needs no wait, because every later
    # change of the file replaces it by the present time.
    return left_s if 0 < left_s < 2 * TIME_STEP_S else 0.0


def _look(path: Path) -> os.stat_result:
    """Waits until every further change of a file will alter its modification time. Returns the
    file's attributes."""
    found = os.lstat(path)
    left_s = _young_s(found)
    if left_s and stat.S_ISREG(found.st_mode):
        time.sleep(left_s)
        found = os.lstat(path)
    return found


def _opened(path: Path, buffering: int = -1) -> BinaryIO:
    """Opens a file for reading. The call does not block even if the path has become a FIFO without
    a writer."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    return os.fdopen(fd, "rb", buffering=buffering)


def _read(root: Path, name: str) -> _Read:
    """Reads a small regular file completely. If the file changes during the read, reads the file
    once more."""
    path = root / name
    with _reading(path):
        found = _look(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > SMALL_BYTES:
            return _Read(name, found, None)
        for _ in range(2):
            with _opened(path, buffering=0) as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    return _Read(name, found, None)
                is_young = _young_s(found) > 0
                content = file.read(found.st_size) if found.st_size else b""
                is_whole = len(content) == found.st_size and not is_young
                is_whole &= _version(os.fstat(file.fileno())) == _version(found)
            if is_whole:
                break
    return _Read(name, found, content, is_whole)


def _header(read: _Read, root: Path) -> tarfile.TarInfo:
    info, found = tarfile.TarInfo(read.name), read.found
    info.mode, info.mtime = stat.S_IMODE(found.st_mode), found.st_mtime_ns // SECOND_NS
    info.uid, info.gid = found.st_uid, found.st_gid
    if stat.S_ISLNK(found.st_mode):
        with _reading(root / read.name):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(root / read.name)
    else:
        info.size = found.st_size
    return info


@dataclass(frozen=True, slots=True)
class _Reader:
    """The file object from which tarfile reads the content of a large file. A read error becomes a
    MonarchError that names the file. Otherwise the error would look like an error in writing the
    tar."""

    path: Path
    file: BinaryIO

    def read(self, size: int) -> bytes:
        with _reading(self.path):
            return self.file.read(size)


def _write_large(tar: tarfile.TarFile, info: tarfile.TarInfo, path: Path, read: _Read) -> None:
    with _reading(path):
        file = _opened(path)
    with file:
        is_whole = _version(os.fstat(file.fileno())) == _version(read.found)
        try:
            if is_whole:
                tar.addfile(info, cast(BinaryIO, _Reader(path, file)))
        except OSError as error:
            if error.errno is not None:
                raise
            is_whole = False  # the file has become shorter
        if not is_whole or _version(os.fstat(file.fileno())) != _version(read.found):
            raise MonarchError(f"{path}: it has changed; pack it while no program writes to it")


def _closed(found: os.stat_result, group: int) -> int:
    """Returns the permission bits that the tar must not have. With these bits, users who may not
    read a packed file could read its content in the tar.

    found : the attributes of the packed file;  group : the tar's group
    """
    both = stat.S_IRGRP | stat.S_IROTH
    if found.st_mode & both == both:
        return 0
    is_groups = found.st_mode & stat.S_IRGRP and found.st_gid == group
    return stat.S_IROTH if is_groups else both


def _write(root: Path, stream: BinaryIO) -> tuple[list[Member], list[str]]:
    """Writes all files below `root` into a tar. The tar is readable only for users who may read all
    of these files. Returns the members, and the names of the files that are left out because they
    changed during the call."""
    members, changed = [], []
    own = os.fstat(stream.fileno())
    mode = stat.S_IMODE(own.st_mode)
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        written: Any = tar
        for read in _each(partial(_read, root), _names(root)):
            found = read.found
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                continue
            info = _header(read, root)
            if not read.is_whole:
                changed.append(read.name)
            elif not info.isreg():
                tar.addfile(info)
            else:
                if read.content is None:
                    _write_large(tar, info, root / read.name, read)
                else:
                    tar.addfile(info, BytesIO(read.content))
                # tar.offset is behind the file's content, which is padded with zeros to a multiple
                # of 512 bytes.
                end = tar.offset - -(-info.size // RECORD_BYTES) * RECORD_BYTES
                members.append((read.name, end, info.size, found.st_mtime_ns))
                mode &= ~_closed(found, own.st_gid)
            written.members.clear()  # frees memory: tarfile adds each member to this list
    os.fchmod(stream.fileno(), mode)
    return members, changed


def write_pack(root: Path, output: Path) -> Packed:
    """Writes the files and symbolic links below `root` into the tar `output`, and writes the tar's
    index next to it. An existing tar or index is replaced completely or not at all.

    A small file that changes while it is packed is left out. Raises MonarchError if a large file
    changes while it is packed, or if a file cannot be read. Raises ConfigError if the output cannot
    be written.
    """
    if output.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"{output}: lies in the directory that is packed; write it elsewhere")
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with open(unfinished, "wb", buffering=BUFFER_BYTES) as stream:
            members, changed = _write(root, stream)
            stream.flush()
            # Write the tar to the disk before its index is made, so that a power failure cannot
            # leave an index of a tar that lost its content.
            os.fsync(stream.fileno())
        os.replace(unfinished, output)
        index = PackIndex.of(os.stat(output), members)
    except OSError as error:
        raise ConfigError(
            f"{output}: cannot be written ({error.strerror}); check the path"
        ) from None
    finally:
        with suppress(OSError):
            unfinished.unlink()
    index.save(output)
    return Packed(index, len(members) + len(changed), tuple(changed))


# --- comparing ----------------------------------------------------------------------------------


def _members(pack: Path) -> Iterator[tuple[tarfile.TarInfo, int | None]]:
    """Yields the files and hard links in a tar, each with its modification time [ns]. The time is
    None if the tar has it only in whole seconds."""
    try:
        with (
            open(pack, "rb", buffering=BUFFER_BYTES) as stream,
            tarfile.open(fileobj=stream, mode="r:") as tar,
        ):
            met: Any = tar
            while (info := tar.next()) is not None:
                met.members.clear()  # frees memory: tarfile adds each member to this list
                exact = info.pax_headers.get("mtime")
                if info.isreg() or info.islnk():
                    yield info, None if exact is None else _ns(exact)
    except (tarfile.TarError, ValueError) as error:
        raise MonarchError(f"{pack}: {error}; name a tar that is not compressed") from None
    except OSError as error:
        raise _failed(pack, error) from None


def _ns(seconds: str) -> int:
    """Converts a text such as 1700000000.123456789 [s] to nanoseconds. A float would round the
    number."""
    whole, _, part = seconds.partition(".")
    return int(whole) * SECOND_NS + int(part[:9].ljust(9, "0"))


def _same(root: Path, member: tuple[tarfile.TarInfo, int | None]) -> Member | None:
    """Compares a member with the file of the same name below `root`. If size and modification time
    are equal, returns the member with the file's exact time; otherwise None."""
    info, mtime_ns = member
    name = os.path.normpath(info.name)
    if os.path.isabs(name) or name.startswith("../"):
        return None  # the member lies outside the directory
    if info.islnk() or info.issparse():
        return None  # a hard link or a sparse member does not contain the complete content
    try:
        found = _look(root / name)
    except OSError:
        return None
    its_ns = found.st_mtime_ns
    is_same_time = its_ns == mtime_ns if mtime_ns is not None else its_ns // SECOND_NS == info.mtime
    if not (stat.S_ISREG(found.st_mode) and found.st_size == info.size and is_same_time):
        return None
    return name, info.offset_data, info.size, its_ns


def index_pack(root: Path, pack: Path) -> Packed:
    """Writes the index of an existing tar. The index lists a member only if its size and
    modification time are those of the file with the same name below `root`. If the tar stores a
    time in whole seconds, only whole seconds are compared.

    Raises MonarchError if `pack` is not an uncompressed tar or cannot be read. Raises ConfigError
    if the tar changes during the call.
    """
    try:
        tar = os.stat(pack)
    except OSError as error:
        raise _failed(pack, error) from None
    members, changed = [], []
    listed, compared = tee(_members(pack))
    for (info, _), same in zip(listed, _each(partial(_same, root), compared), strict=True):
        if same is None:
            changed.append(info.name)
        else:
            members.append(same)
    index = PackIndex.of(tar, members)
    index.check(pack, os.stat(pack))
    index.save(pack)
    return Packed(index, len(members) + len(changed), tuple(changed))
