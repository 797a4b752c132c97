"""Tests directory streams: which streams list from the catalog, and when a stream changes over to
the source."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place, open_descriptors
from csrc.units.serving import Served

from monarch_py.native import ffi as native

HEAD = 19  # bytes of an entry before its name, which ends with a NUL
STREAMS = 256
Entry = tuple[str, int, int]  # name, inode, type


@pytest.fixture
def served(lib: Any, place: Place, tmp_path: Path) -> Iterator[Served]:
    root, tier = tmp_path / "data", tmp_path / "tier"
    (root / "d" / "e").mkdir(parents=True)
    (root / "empty").mkdir()
    tier.mkdir(mode=0o700)
    for i in range(70):
        (root / "d" / f"{'n' * (i % 9)}{i}").write_text("x")
    (root / "f").write_text("x")
    (root / "link").symlink_to("f")
    os.mkfifo(root / "pipe")
    before = open_descriptors()
    one = Served(lib, place, root, tier)
    one.control.source[0].up_ino = tmp_path.stat().st_ino
    yield one
    assert lib.listing_count(one.s) == lib.listing_used() == 0
    one.end()
    lib.listing_lacks_fdopendir(0)
    assert open_descriptors() <= before


class Stream:
    def __init__(self, lib: Any, path: Path) -> None:
        self.lib = lib
        self.d = lib.listing_open(bytes(path))
        assert self.d != ffi.NULL
        self.is_ours = bool(lib.listing_is_ours(self.d))

    def next(self, is_reentrant: int = 0) -> Entry | None:
        """Returns the next entry, and checks its offset and length."""
        name, out = ffi.new("char[256]"), ffi.new("int64_t[4]")
        done = self.lib.listing_next(self.d, is_reentrant, name, out)
        assert done >= 0
        if not done:
            return None
        text = os.fsdecode(ffi.string(name))
        assert out[1] == self.tell() or not self.is_ours
        assert out[3] % 8 == 0 and 0 < out[3] - HEAD - len(text) <= 8
        return text, out[0], out[2]

    def rest(self, is_reentrant: int = 0) -> list[Entry]:
        found = []
        while (one := self.next(is_reentrant)) is not None:
            found.append(one)
        assert self.next(is_reentrant) is None, "the end stays the end"
        return found

    def tell(self) -> int:
        return int(self.lib.listing_tell(self.d))

    def seek(self, at: int) -> None:
        self.lib.listing_seek(self.d, at)

    def close(self) -> None:
        assert self.lib.listing_close(self.d) == 0


def kernels(path: Path) -> set[Entry]:
    """Returns the entries that the kernel lists, including `.` and `..`."""
    found = {(".", path.stat().st_ino, stat.S_IFDIR >> 12)}
    found.add(("..", path.parent.stat().st_ino, stat.S_IFDIR >> 12))
    for one in os.scandir(path):
        found.add(
            (one.name, one.inode(), stat.S_IFMT(one.stat(follow_symlinks=False).st_mode) >> 12)
        )
    return found


@pytest.mark.parametrize("where", ["", "d", "d/e", "empty"])
@pytest.mark.parametrize("is_reentrant", [0, 1])
def test_the_catalog_lists_what_the_kernel_lists(
    lib: Any, served: Served, where: str, is_reentrant: int
) -> None:
    stream = Stream(lib, served.root / where)
    assert stream.is_ours and lib.listing_count(served.s) == 1
    assert stream.tell() == 0
    found = stream.rest(is_reentrant)
    assert [name for name, *_ in found[:2]] == [".", ".."]
    assert set(found) == kernels(served.root / where) and len(set(found)) == len(found)
    stream.close()


def test_a_place_in_a_listing_is_returned_to(lib: Any, served: Served) -> None:
    """A program may seek to the places of a listing in any order. A place beyond the end counts as
    the end."""
    stream = Stream(lib, served.root / "d")
    places, found = [], []
    while True:
        places.append(stream.tell())
        if (one := stream.next()) is None:
            break
        found.append(one)
    for i in (40, 0, 1, 2, len(found) - 1, 3):
        stream.seek(places[i])
        assert stream.rest() == found[i:]
    for at in (places[-1], places[-1] + 1, 2**40, -1):
        stream.seek(at)
        assert stream.rest() == []
    assert lib.listing_rewind(stream.d)
    assert stream.rest() == found
    assert lib.listing_used() == 1
    stream.close()


def test_a_descriptor_is_opened_when_it_is_asked_for(lib: Any, served: Served) -> None:
    path = served.root / "d"
    stream = Stream(lib, path)
    before = open_descriptors()
    fd = lib.listing_fd(stream.d)
    assert open_descriptors() - before == {str(fd)}
    assert os.fstat(fd).st_ino == path.stat().st_ino
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert lib.listing_fd(stream.d) == fd
    assert set(stream.rest()) == kernels(path), "the catalog lists on"
    stream.close()
    assert open_descriptors() <= before
    stream = Stream(lib, path)
    path.rename(served.root / "moved")
    assert lib.listing_fd(stream.d) == -errno.ENOENT
    assert stream.next() is not None
    stream.close()
    assert lib.listing_used() == 0


def forget_look(lib: Any, served: Served) -> None:
    """Makes the library forget when it last asked the source whether the directory has changed.
    Otherwise it would not ask again within a second."""
    lib.metadata_keep_look(served.s, served.id("d"), 1010 * 10**6)


@pytest.mark.parametrize("has_descriptor", [False, True])
def test_a_directory_that_has_changed_is_listed_anew(
    lib: Any, served: Served, has_descriptor: bool
) -> None:
    """A stream lists a directory from the catalog, and the directory changes while the stream is
    open. A rewind then makes the stream list the directory at the source: from then on, all calls
    on the stream go to a stream of libc."""
    path = served.root / "d"
    stream = Stream(lib, path)
    old = stream.rest()
    if has_descriptor:
        assert lib.listing_fd(stream.d) >= 0
    (path / "new").touch()
    stream.seek(0)
    assert stream.rest() == old
    forget_look(lib, served)
    before = open_descriptors()
    assert lib.listing_rewind(stream.d)
    assert len(open_descriptors() - before) == (not has_descriptor)
    stream.is_ours = False
    assert lib.listing_count(served.s) == 1
    assert stream.next() is not None
    at = stream.tell()
    rest = stream.rest(1)
    assert len(rest) + 1 == len(kernels(path)) and set(rest) < kernels(path)
    stream.seek(at)
    assert stream.rest() == rest
    fd = lib.listing_fd(stream.d)
    assert os.fstat(fd).st_ino == path.stat().st_ino
    assert lib.listing_rewind(stream.d)
    assert set(stream.rest()) == kernels(path)
    stream.close()
    fresh = Stream(lib, path)
    assert not fresh.is_ours and set(fresh.rest()) == kernels(path)
    fresh.close()


@pytest.mark.parametrize("case", ["gone", "lacking"])
def test_a_directory_that_cannot_be_listed_anew_keeps_its_old_names(
    lib: Any, served: Served, case: str
) -> None:
    path = served.root / "d"
    stream = Stream(lib, path)
    old = stream.rest()
    (path / "new").touch()
    forget_look(lib, served)
    if case == "gone":
        path.rename(served.root / "moved")
    else:
        lib.listing_lacks_fdopendir(1)
    assert lib.listing_rewind(stream.d)
    assert stream.rest() == old
    stream.close()


def test_listings_beyond_the_limit_are_the_sources(lib: Any, served: Served) -> None:
    path = served.root / "empty"
    streams = [Stream(lib, path) for _ in range(STREAMS)]
    assert all(one.is_ours for one in streams)
    assert lib.listing_count(served.s) == STREAMS
    more = Stream(lib, path)
    assert not more.is_ours and set(more.rest()) == kernels(path)
    more.close()
    streams.pop(100).close()
    again = Stream(lib, path)
    assert again.is_ours and len(again.rest()) == 2
    for one in (*streams, again):
        one.close()


def test_directories_that_the_catalog_does_not_know_are_the_sources(
    lib: Any, served: Served, tmp_path: Path
) -> None:
    for path in (tmp_path, Path("/proc/self")):
        stream = Stream(lib, path)
        assert not stream.is_ours
        assert len(stream.rest()) >= 4
        stream.close()
    assert lib.listing_open(bytes(tmp_path / "none")) == ffi.NULL


def whole(
    lib: Any, path: Path, *, dir_fd: int = -1, chooses: bool = False, sorts: bool = False
) -> list[str]:
    out = ffi.new("char[]", 8192)
    n = lib.listing_whole(dir_fd, bytes(path), chooses, sorts, out)
    assert n >= 0, n
    names = os.fsdecode(ffi.string(out)).split("/")[:-1]
    assert len(names) == n
    return names


@pytest.mark.parametrize("where", ["", "d", "empty"])
def test_a_whole_listing_is_chosen_and_sorted(lib: Any, served: Served, where: str) -> None:
    """scandir and scandirat return the chosen names of a directory, sorted as the program wants.
    The path of scandirat may be relative to a descriptor. Whenever the library calls the program's
    filter function, errno is 0."""
    path = served.root / where
    names = {name for name, *_ in kernels(path)}
    assert set(whole(lib, path)) == names
    chosen = {name for name in names if len(name) > 3}
    assert set(whole(lib, path, chooses=True)) == chosen
    assert whole(lib, path, sorts=True) == sorted(names, reverse=True)
    assert whole(lib, path, chooses=True, sorts=True) == sorted(chosen, reverse=True)
    dir_fd = os.open(served.root, os.O_RDONLY)
    here = Path(where or ".")
    assert whole(lib, here, dir_fd=dir_fd, sorts=True) == sorted(names, reverse=True)
    assert lib.listing_whole(dir_fd, b"none", 0, 0, ffi.NULL) == -errno.ENOENT
    os.close(dir_fd)
    assert lib.listing_whole(-1, bytes(served.root / "none"), 0, 0, ffi.NULL) == -errno.ENOENT
    outside = {".", "..", *os.listdir(served.root.parent)}
    assert set(whole(lib, served.root.parent)) == outside


def test_a_whole_listing_without_memory_is_none(lib: Any, served: Served) -> None:
    """If any allocation fails during scandir, the call fails with ENOMEM, and no stream stays
    open."""
    out = ffi.new("char[]", 8192)
    for n in (0, 1, 2, 30, 33, 34, 70):
        lib.listing_memory(n)
        result = lib.listing_whole(-1, bytes(served.root / "d"), 0, 0, out)
        lib.listing_memory(-1)
        assert result == -errno.ENOMEM
        assert lib.listing_used() == 0
    assert len(whole(lib, served.root / "d")) == 73


@pytest.mark.parametrize("case", ["number", "none", "long", "short"])
def test_a_damaged_listing_ends(lib: Any, served: Served, case: str) -> None:
    """A stream with a damaged listing reads no memory outside the catalog, and returns no name that
    a file cannot have."""
    stream = Stream(lib, served.root / "d")
    catalog = served.known.c
    listing = int(served.entry("d").copy_ino)
    names = native.cast("uint32_t *", native.cast("char *", catalog) + int(catalog.names_at))
    if case == "number":
        names[(listing >> 32) + 5] = int(catalog.capacity)
    else:
        at = native.cast("char *", catalog) + int(catalog.entries_at)
        entry = native.cast("struct monarch_entry *", at)[names[(listing >> 32) + 5]]
        entry.path_len = {"none": 2, "long": 2 + 256, "short": 1}[case]
    assert len(stream.rest()) == 2 + 5
    stream.close()
    if case == "long":
        entry.path_len = 2 + 255
        name, out = ffi.new("char[256]"), ffi.new("int64_t[4]")
        stream = Stream(lib, served.root / "d")
        lengths = []
        while lib.listing_next(stream.d, 0, name, out):
            lengths.append(out[3])
        assert len(lengths) == len(os.listdir(served.root / "d")) + 2
        assert max(lengths) == HEAD + 255 + 6
        stream.close()
