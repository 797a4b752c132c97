"""Tests which file a stream reads or writes: the copy or the source's file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place, open_descriptors
from csrc.units.serving import Served

from monarch_py.native import State
from monarch_py.native import ffi as native

READING = ("r", "rb", "re", "rbe", "reb")
SOURCE, COPY = b"source", b"copied"


class Streams:
    """A source with the files f and g, and the link l to f. The copy of f has other content; g has
    no copy."""

    def __init__(self, lib: Any, place: Place, root: Path, tier: Path) -> None:
        self.lib, self.f, self.g = lib, root / "f", root / "g"
        root.mkdir()
        tier.mkdir(mode=0o700)
        self.f.write_bytes(SOURCE)
        self.g.write_bytes(b"other")
        (root / "l").symlink_to("f")
        self.served = Served(lib, place, root, tier)
        self.served.control.fill_on_open = 0
        self.copy = self.served.publish("f", COPY)

    def open(self, path: Path | str, mode: str = "r") -> bytes | int:
        """Returns the content that is read from a new stream, or -errno."""
        return self._content(self.lib.stdio_open, os.fsencode(path), mode)

    def reopen(self, path: Path | str | None, mode: str = "r", first: Path | None = None) -> (
        bytes | int
    ):  # fmt: skip
        """Opens a stream for reading on `first` (by default, on g), and then reopens it with
        freopen. Returns the content that is read from the reopened stream, or -errno.

        path : the path that freopen gets; None: it gets no path
        """
        name = ffi.NULL if path is None else os.fsencode(path)
        return self._content(self.lib.stdio_reopen, bytes(first or self.g), name, mode)

    def _content(self, call: Any, *words: Any) -> bytes | int:
        out = ffi.new("char[]", 100)
        done = int(call(*words[:-1], words[-1].encode(), out, 100))
        return bytes(ffi.buffer(out))[:done] if done >= 0 else done

    def is_changed(self, path: Path) -> bool:
        found = path.stat()
        return bool(self.lib.watch_is_changed(self.served.s, found.st_dev, found.st_ino))

    def counts(self) -> tuple[int, int, int]:
        """Returns how many opens got a copy and how many did not, and the bytes that programs have
        read at the source."""
        stats = self.served.clients.stats
        names = ("hits", "misses", "source_bytes_read_by_programs")
        hits, misses, read = (sum(int(getattr(one, name)) for one in stats) for name in names)
        return hits, misses, read


@pytest.fixture
def streams(lib: Any, place: Place, tmp_path: Path) -> Iterator[Streams]:
    lib.track_forget()
    lib.backing_forget()
    lib.progress_forget()
    before = open_descriptors()
    one = Streams(lib, place, tmp_path / "data", tmp_path / "tier")
    yield one
    one.served.end()
    lib.track_forget()
    assert open_descriptors() == before


@pytest.mark.parametrize("mode", READING)
def test_a_stream_for_reading_gets_the_copy(streams: Streams, mode: str) -> None:
    for path in (streams.f, streams.f.with_name("l")):
        assert streams.open(path, mode) == streams.reopen(path, mode) == COPY
        assert streams.lib.stdio_is_inherited() == ("e" not in mode)
    assert streams.counts()[0] == 4
    streams.copy.unlink()
    assert streams.open(streams.f, mode) == streams.reopen(streams.f, mode) == SOURCE


def test_a_stream_on_the_source_is_counted_and_never_moved(streams: Streams) -> None:
    """libc reads ahead of the program, so the offset of the stream's descriptor does not show what
    the program has read. For this reason, the library never moves the descriptor to the copy."""
    for i in (1, 2):
        assert streams.open(streams.g) == b"other"
        assert streams.lib.stdio_was_offset_used()
        assert streams.counts() == (0, i, 5 * i)
    hits, misses, read = streams.counts()
    assert streams.reopen(streams.g) == b"other" and streams.lib.stdio_was_offset_used()
    assert streams.counts() == (hits, misses + 2, read + 10)


def test_a_mode_that_only_libc_understands_gets_the_source(streams: Streams) -> None:
    streams.open(streams.f, "r,ccs=UTF-8")
    assert streams.lib.stdio_inode() == streams.f.stat().st_ino
    assert not streams.is_changed(streams.f)


@pytest.mark.parametrize(
    ("mode", "reads"),
    [("r", 1), ("rb", 1), ("rbem", 1), ("r,ccs=x+y", 1), ("r+", 0), ("rb+", 0), ("r+b,ccs=x", 0),
     ("w", 0), ("a", 0), ("w+", 0), ("", 0), ("+r", 0)],
)  # fmt: skip
def test_only_some_modes_are_for_reading_only(lib: Any, mode: str, reads: int) -> None:
    assert lib.stdio_only_reads(mode.encode()) == reads


@pytest.mark.parametrize(("mode", "content"), [("r+", SOURCE), ("a+", SOURCE), ("w+", b"")])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_stream_for_writing_gets_the_source(
    streams: Streams, mode: str, content: bytes, is_reopened: bool
) -> None:
    """A stream for writing is opened on the source's file. This holds even if the path is the name
    of a copy's descriptor, or if the stream that is reopened is on a copy. From then on, readers
    get the source's file too."""
    fd = os.open(streams.copy, os.O_RDONLY)
    for path in (f"/proc/self/fd/{fd}", streams.f):
        found = streams.reopen(path, mode) if is_reopened else streams.open(path, mode)
        assert found == content and streams.lib.stdio_inode() == streams.f.stat().st_ino
        assert streams.is_changed(streams.f) and not streams.is_changed(streams.g)
    assert streams.open(streams.f) == content and streams.copy.read_bytes() == COPY
    os.close(fd)


@pytest.mark.parametrize("mode", ["w", "a", "wx"])
def test_a_stream_may_create_a_file(streams: Streams, mode: str) -> None:
    """If the stream creates a file, the listing of the directory changes. A stream with the mode r+
    creates no file."""
    new = streams.f.with_name("new")
    assert streams.open(new, "r+") == streams.open(new) == -errno.ENOENT
    assert not streams.is_changed(new.parent)
    assert streams.open(streams.f, "r+") == SOURCE and not streams.is_changed(new.parent)
    assert streams.open(new, mode) == b"" and new.exists()
    assert streams.is_changed(new.parent)


def test_a_copys_descriptor_is_opened_again_as_the_sources_path(streams: Streams) -> None:
    fd = os.open(streams.copy, os.O_RDONLY)
    path = f"/proc/self/fd/{fd}"
    assert streams.open(path) == streams.reopen(path) == COPY
    streams.copy.unlink()
    assert streams.open(path) == streams.reopen(path) == SOURCE
    os.close(fd)


@pytest.mark.parametrize(("mode", "content"), [("r", COPY), ("r+", SOURCE)])
def test_a_stream_is_opened_again_without_a_path(
    streams: Streams, mode: str, content: bytes
) -> None:
    """freopen without a path opens the stream's own file again. If the stream is on a copy, the
    library uses the path of the source's file, and a stream for reading gets the copy again."""
    assert streams.reopen(None, mode, first=streams.f) == content
    assert streams.is_changed(streams.f) == (mode == "r+")
    assert streams.reopen(None, mode) == b"other"
    assert streams.is_changed(streams.g) == (mode == "r+")


def test_an_open_that_fails_is_libcs_error(streams: Streams) -> None:
    """freopen closes the stream even if the open fails."""
    none = streams.f.with_name("none")
    for path, error in ((none, errno.ENOENT), (streams.f / "x", errno.ENOTDIR)):
        assert streams.open(path) == streams.reopen(path) == -error
    assert streams.open(streams.f, "q") == -errno.EINVAL
    streams.f.unlink()
    streams.copy.unlink()
    assert streams.open(streams.f) == streams.reopen(streams.f) == -errno.ENOENT


def test_without_a_daemon_streams_are_libcs(streams: Streams) -> None:
    lib = streams.lib
    for leave in (lib.attach_set_current, lib.autostart_leave):
        leave(ffi.NULL)
        found = [streams.open(streams.f), streams.reopen(streams.f), streams.open(streams.f, "r+")]
        streams.lib.attach_set_current(streams.served.s)
        assert found == [SOURCE] * 3
    assert not streams.is_changed(streams.f)


def test_an_open_gets_the_copy_for_which_it_has_waited(streams: Streams) -> None:
    """An open of a stream always waits for the copy, because the stream's reads cannot be moved to
    the copy later."""
    entry, lib = streams.served.entry("f"), streams.lib
    whole = int(entry.word)
    address = int(native.cast("uintptr_t", native.addressof(entry, "word")))
    lib.open_wait_completes(address, whole)
    try:
        for waits, call in enumerate((streams.open, streams.reopen), 1):
            entry.word = whole & ~15 | State.FILLING
            assert call(streams.f) == COPY
            assert lib.open_wait_waits() == waits
    finally:
        lib.open_wait_completes(0, 0)
        lib.wait_forget()
