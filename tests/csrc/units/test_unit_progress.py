"""Tests how the library learns that a program has read a file to its end, and how it measures the
time that the sources take. Also tests what it reports about a file that the catalog does not
know."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import Made, ffi

SIZE = 100
ENTRY = 7
OFFSET, SHARED = 1, 2
WORD = (ENTRY + 1) << 32
STREAM, OTHER = 0x5000, 0x6000  # addresses of streams
MS = 10**6


class Reader:
    """A descriptor of ENTRY's file at the source."""

    def __init__(self, lib: Any, session: Made, path: Path) -> None:
        self.lib, self.session = lib, session
        self.fd = os.open(path, os.O_RDONLY)

    def at(self, offset: int, word: int = 0) -> int:
        """Sets the descriptor's offset, and its word in the table of descriptors."""
        os.lseek(self.fd, offset, os.SEEK_SET)
        self.lib.track_set(self.fd, word)
        return self.fd

    def is_read(self) -> bool:
        """Returns whether the file counts as read to its end, and forgets that it does."""
        word = self.session.clients.read.word
        was, word[0] = int(word[0]), 0
        assert was in (0, 1 << ENTRY)
        return bool(was)


@pytest.fixture
def reader(lib: Any, session: Made, tmp_path: Path) -> Iterator[Reader]:
    (tmp_path / "f").write_bytes(bytes(SIZE))
    session.control.follow_reads = 1
    session.entries[ENTRY].size = SIZE
    lib.track_forget()
    lib.track_number(session.s, 0, 1)
    one = Reader(lib, session, tmp_path / "f")
    yield one
    lib.track_forget()
    if os.path.exists(f"/proc/self/fd/{one.fd}"):
        os.close(one.fd)
    lib.progress_forget()


@pytest.mark.parametrize("offset", [0, SIZE - 1, SIZE, SIZE + 1])
@pytest.mark.parametrize("flags", [0, OFFSET, SHARED, OFFSET | SHARED])
def test_a_streams_offset_shows_whether_the_file_was_read(
    reader: Reader, offset: int, flags: int
) -> None:
    """The reads of a stream are made by libc, so the library does not see them. When the stream is
    closed, the library looks at the descriptor's offset, unless another process may be reading with
    the same offset."""
    reader.lib.progress_end(STREAM, reader.at(offset, WORD | flags))
    assert reader.is_read() == (offset == SIZE and flags == OFFSET)


def test_a_stream_without_a_tracked_descriptor_is_remembered(reader: Reader) -> None:
    """The library remembers a stream by its address. It forgets the stream once the stream is
    closed, because another stream may get the same address."""
    lib, s = reader.lib, reader.session.s
    fd = reader.at(SIZE)
    lib.progress_end(STREAM, fd)
    assert not reader.is_read(), "the stream was not noted before"
    lib.progress_stream(s, ENTRY, STREAM)
    lib.progress_end(OTHER, fd)
    lib.progress_end(STREAM, -1)
    assert not reader.is_read()
    lib.progress_end(STREAM, fd)
    assert reader.is_read()
    lib.progress_end(STREAM, fd)
    assert not reader.is_read()
    lib.progress_stream(s, ENTRY, STREAM)
    lib.progress_end(STREAM, reader.at(SIZE - 1))
    assert not reader.is_read()
    reader.session.control.follow_reads = 0
    lib.progress_stream(s, ENTRY, STREAM)
    reader.session.control.follow_reads = 1
    lib.progress_end(STREAM, reader.at(SIZE))
    assert not reader.is_read()


@pytest.mark.parametrize("offset", [SIZE - 1, SIZE])
def test_a_close_of_a_stream_looks_at_its_offset(reader: Reader, offset: int) -> None:
    assert reader.lib.descriptors_stream(reader.at(offset, WORD)) == 1
    assert reader.is_read() == (offset == SIZE)


def test_an_empty_file_is_not_read(reader: Reader) -> None:
    reader.session.entries[ENTRY].size = 0
    reader.lib.progress_end(STREAM, reader.at(0, WORD | OFFSET))
    assert not reader.is_read()


@pytest.mark.parametrize(
    ("word", "n_bytes"), [(WORD, SIZE), (0, 0), (5000 << 32, 0), (WORD | 9 << 4, 0)]
)
def test_a_stream_reads_its_file_at_the_source(reader: Reader, word: int, n_bytes: int) -> None:
    """When a program makes a stream from a descriptor, all bytes of the file count as read at the
    source. Nothing is counted if the descriptor is not tracked, if the catalog no longer contains
    the entry, or if the session in which the descriptor was opened has ended."""
    assert reader.lib.descriptors_stream(reader.at(0, word)) == 1
    counted = [int(one.source_bytes_read_by_programs) for one in reader.session.clients.stats]
    assert sum(counted) == n_bytes


# --- how long the sources take --------------------------------------------------------------------


def test_a_source_that_becomes_slow_is_noticed(lib: Any, session: Made) -> None:
    """The library keeps the mean duration of opens and the mean duration of reads. It does not
    update them while the page cache serves all calls, but updates them again from the first slower
    call on."""
    lib.progress_forget()
    lib.progress_took(19_999, 1)
    for _ in range(9):
        lib.progress_took(8_000, 19_999)
    assert lib.progress_latency() == 20_000
    lib.progress_took(20_000, 1)
    first = 19_999 - 19_999 // 8 + 20_000 // 8 + 1
    assert lib.progress_latency() == first
    for _ in range(100):
        lib.progress_took(50 * MS, 50 * MS)
    assert abs(lib.progress_latency() - 100 * MS) < MS
    for _ in range(200):
        lib.progress_took(1_000, 1_000)
    assert lib.progress_latency() < 40_000, "the source has become fast again"
    lib.progress_forget()


# --- files without an entry -----------------------------------------------------------------------


def test_a_fast_device_is_known_by_its_sources(lib: Any, session: Made) -> None:
    """A device is fast if the daemon has judged one of the sources on it to be fast. If there is
    only one source, and the daemon has not judged it yet, the times of this process's own opens and
    reads decide."""
    control = session.control
    control.sources = 3
    for i, dev in enumerate((5, 6, 5, 7)):
        control.source[i].dev = dev
    for fast, devices in (
        (0, ()), (1, (5,)), (2, (6,)), (4, (5,)), (6, (5, 6)), (8, ()), (7, (5, 6))
    ):  # fmt: skip
        control.fast_sources = fast
        for judged in (fast, 7):
            setattr(control, "judged_sources", judged)  # noqa: B010
            found = [dev for dev in (5, 6, 7, 8) if lib.handover_is_fast_device(session.s, dev)]
            assert found == list(devices), fast
    control.sources = 1
    lib.progress_forget()
    for judged, took, is_fast in (
        (0, 50_000, True), (0, 5 * MS, False), (1, 50_000, False), (1, 5 * MS, False)
    ):  # fmt: skip
        control.fast_sources = 0
        setattr(control, "judged_sources", judged)  # noqa: B010
        lib.progress_forget()
        for _ in range(60):
            lib.progress_took(took, took)
        assert any(lib.handover_is_fast_device(session.s, 5) for _ in range(2)) == is_fast
    lib.progress_forget()


def test_a_file_without_an_entry_is_named_by_its_source_and_path(
    lib: Any, session: Made, tmp_path: Path
) -> None:
    """The kernel reports the path of a descriptor's file. From this path, the library derives the
    source. It finds none if the path is in no source, or is too long for a message to the
    daemon."""
    control, out = session.control, ffi.new("char[]", 4096)
    control.sources = 2
    for i in range(2):
        root = tmp_path / f"s{i}"
        root.mkdir()
        control.source[i].path, control.source[i].path_len = bytes(root), len(bytes(root))
    deep = "/".join(["d" * 200] * 4)

    def find(path: Path) -> tuple[int, bytes | str]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        fd = os.open(path, os.O_RDONLY)
        source = int(lib.handover_find_path(session.s, fd, out))
        os.close(fd)
        return source, ffi.string(out) if source >= 0 else b""

    for name in ("f", "d/e/f", "d f", deep + "/" + "f" * 199):
        for i in range(2):
            assert find(tmp_path / f"s{i}" / name) == (i, name.encode())
        assert find(tmp_path / "s2" / name) == (-1, b"")
        assert find(tmp_path / name) == (-1, b"")
    assert find(tmp_path / "s0" / deep / ("f" * 200)) == (-1, b"")
    assert lib.handover_find_path(session.s, -1, out) == -1
    ends = os.pipe()
    assert lib.handover_find_path(session.s, ends[0], out) == -1
    for end in ends:
        os.close(end)
