"""Tests what a read returns if the descriptor, the copy or the source changes during the call."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place, open_descriptors
from csrc.units.serving import SECOND, Served
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

from monarch_py.native import State
from monarch_py.native import ffi as native

AT_OFFSETS = ["pread", "__pread_chk", "preadv", "preadv2"]
IN_TURN = ["read", "__read_chk", "readv", "preadv2 in turn"]
CALLS = [*AT_OFFSETS, *IN_TURN]
SOURCE = bytes(range(100))
COPY = bytes(i + 100 for i in range(100))  # differs from SOURCE in every byte
OTHER = bytes(255 - i for i in range(50)) * 2
AT, N = 20, 60
OFFSET, SHARED, DIRECT = 1, 2, 1 << 62


@dataclass
class Reader:
    """A program that has a file of a source open. Another thread can make `fd` refer to another
    file, of which `other` is a descriptor."""

    lib: Any
    served: Served
    fd: int
    source: int  # another descriptor of the source's file
    other: int

    @property
    def entry(self) -> Any:
        return self.served.entry("f")

    def word(self, flags: int = 0) -> int:
        return (self.served.id("f") + 1) << 32 | flags

    def begins(self, flags: int = 0, at: int = AT) -> None:
        """Makes `fd` refer to the source's file again, with the offset `at`. A read promotes `fd`,
        that is, replaces it by a descriptor of the copy, only if the offset is 0."""
        os.dup2(self.source, self.fd)
        self.lib.reads_end()
        self.lib.track_set(self.fd, self.word(flags))
        os.lseek(self.fd, at, os.SEEK_SET)
        os.lseek(self.other, 0, os.SEEK_SET)

    def has_copy(self, content: bytes | None) -> None:
        """Gives the file a copy with this content, or removes its copy if the content is None."""
        if content is None:
            self.entry.word = 0
        else:
            self.served.copy("f", content)

    @contextmanager
    def gone(self, is_gone: bool = True) -> Iterator[Path]:
        """While this context lasts, the source's file has another name."""
        path = self.served.root / "f"
        if is_gone:
            path.rename(path.with_name("hidden"))
        yield path
        if is_gone:
            path.with_name("hidden").rename(path)

    def reads(self, call: str, n: int = N, at: int = AT) -> bytes | int:
        """Returns the bytes that the call reads, or a negative errno. Checks that nothing was
        written after the first `n` bytes of the buffer."""
        out = ffi.new("char[]", b"z" * (n + 8))
        got = int(self.lib.reads_call(call.encode(), self.fd, out, n, at))
        content = bytes(ffi.buffer(out))
        assert content[n : n + 8] == b"z" * 8
        return content[:got] if got >= 0 else got

    def counted(self) -> int:
        """Returns how many bytes programs have read at the source."""
        stats = self.served.clients.stats
        return sum(int(one.source_bytes_read_by_programs) for one in stats)

    def replaced(self, completes: bool = False) -> None:
        """During the next read at the source, another thread closes the descriptor, and another
        file gets the descriptor's number. If `completes` is true, the copy of the first file
        becomes complete during the same read."""
        word = ffi.NULL
        becomes = 0
        if completes:
            path = self.served.copy("f", COPY)
            becomes = int(self.entry.word)
            assert path.exists()
            word = ffi.cast("uint64_t *", int(native.cast("uintptr_t", native.addressof(
                self.entry, "word"))))  # fmt: skip
        self.lib.reads_meanwhile(self.fd, self.other, word, becomes)


@pytest.fixture
def reader(lib: Any, place: Place, tmp_path: Path) -> Iterator[Reader]:
    before = open_descriptors()
    root, tier = tmp_path / "data", tmp_path / "tier"
    root.mkdir()
    tier.mkdir(mode=0o700)
    (root / "f").write_bytes(SOURCE)
    (tmp_path / "other").write_bytes(OTHER)
    lib.track_forget()
    lib.reads_end()
    lib.reads_are_guarded()  # forgets the descriptors that tests in other files have left
    served = Served(lib, place, root, tier)
    # Because the source counts as fast, no read waits for a copy.
    served.control.fast_sources = 1
    paths = (root / "f", root / "f", tmp_path / "other")
    fds = [os.open(path, os.O_RDONLY) for path in paths]
    yield Reader(lib, served, *fds)
    for fd in fds:
        os.close(fd)
    lib.reads_end()
    lib.track_forget()
    assert lib.reads_are_guarded()
    served.end()
    assert open_descriptors() <= before


@pytest.mark.parametrize("call", CALLS)
def test_a_read_never_mixes_two_files(reader: Reader, call: str) -> None:
    """During the call, another thread makes the descriptor refer to a new file. If possible, the
    call returns bytes of the old file. Otherwise, it returns bytes of the new file, as if the call
    had begun later. Only a read of the new file moves the new file's offset."""
    for copied, is_gone in itertools.product([0, 10, 25, 30, N], [False, True]):
        reader.has_copy(COPY[: AT + copied] if copied else None)
        is_later = not copied and is_gone
        if copied == N:
            expected = COPY[AT : AT + N]
        elif not is_gone:
            expected = COPY[AT : AT + copied] + SOURCE[AT + copied : AT + N]
        elif is_later:
            expected = OTHER[AT : AT + N] if call in AT_OFFSETS else OTHER[:N]
        else:
            expected = COPY[AT : AT + copied]
        with reader.gone(is_gone):
            reader.begins()
            reader.replaced()
            assert reader.reads(call) == expected, (copied, is_gone)
        offset = N if is_later and call in IN_TURN else 0
        assert os.lseek(reader.other, 0, os.SEEK_CUR) == offset


@pytest.mark.parametrize("call", CALLS)
def test_a_read_never_mixes_two_files_if_the_first_is_opened_again(
    reader: Reader, call: str
) -> None:
    """During the call, another thread closes the descriptor, and another file gets its number. The
    thread then opens the first file again, and the first file gets the number back. Only then does
    the call check which file the descriptor refers to. It must return no bytes of the other
    file."""
    for copied in (0, 10, 25, 30):
        reader.has_copy(COPY[: AT + copied] if copied else None)
        reader.begins()
        reader.replaced()
        reader.lib.reads_open_again(reader.source, reader.word() | 1 << 9)
        assert reader.reads(call) == COPY[AT : AT + copied] + SOURCE[AT + copied : AT + N]


@pytest.mark.parametrize("call", CALLS)
def test_a_file_that_has_the_name_by_now_is_not_read_by_it(reader: Reader, call: str) -> None:
    with reader.gone() as path:
        path.write_bytes(b"n" * 100)
        reader.begins()
        reader.replaced()
        assert reader.reads(call) == (OTHER[AT : AT + N] if call in AT_OFFSETS else OTHER[:N])


@pytest.mark.parametrize("call", CALLS)
def test_the_rest_comes_from_a_copy_that_is_complete_by_then(reader: Reader, call: str) -> None:
    """During the call, the copy becomes complete, and another thread gives the descriptor's number
    to another file. The bytes that are still missing are then read from the copy."""
    with reader.gone():
        reader.begins()
        reader.replaced(completes=True)
        reader.entry.word = 0
        assert reader.reads(call) == COPY[AT : AT + N]
        assert os.lseek(reader.other, 0, os.SEEK_CUR) == 0


@pytest.mark.parametrize("call", CALLS)
def test_a_read_ends_where_the_source_ends_it(reader: Reader, call: str) -> None:
    """If the source returns an error or the end of the file, the call returns the bytes that it has
    read before. If it has read none, it returns the error. The next read at the descriptor's offset
    begins after the returned bytes."""
    for copied, most, error in itertools.product(
        [0, 10, 25, 30], [0, 1, 7, 20, 100], [0, errno.EIO]
    ):
        if error and most:
            continue
        reader.has_copy(COPY[: AT + copied] if copied else None)
        reader.begins()
        reader.lib.reads_answer(error, most)
        got = copied
        while most and got < N:  # there is one read for each part of the buffer
            end = 25 if "v" in call and got < 25 else N
            got += min(most, end - got)
            if got < end:
                break
        whole = COPY[AT : AT + copied] + SOURCE[AT + copied : AT + N]
        assert reader.reads(call) == (-error if error and not got else whole[:got]), (copied, most)
        expected = AT + (got if call in IN_TURN else 0)
        assert os.lseek(reader.fd, 0, os.SEEK_CUR) == expected


@pytest.mark.parametrize("call", CALLS)
def test_a_read_ends_at_the_end_of_the_file(reader: Reader, call: str) -> None:
    for content, at in itertools.product([SOURCE, COPY], [0, 1, 40, 41, 99, 100, 101, 2**40]):
        reader.has_copy(COPY if content == COPY else None)
        # SHARED marks the offset as shared. Otherwise, the library would replace a descriptor at
        # offset 0 by a descriptor of the copy.
        reader.begins(SHARED, at=at)
        assert reader.reads(call, at=at) == content[at : at + N]
        end = max(min(at + N, 100), at) if call in IN_TURN else at
        assert os.lseek(reader.fd, 0, os.SEEK_CUR) == end
        flags = int(reader.lib.track_word(reader.fd)) & OFFSET
        assert flags == (OFFSET if call in IN_TURN else 0)


@pytest.mark.parametrize("call", CALLS)
def test_a_file_that_grew_has_its_new_bytes_at_the_source(reader: Reader, call: str) -> None:
    """A file has grown, and the catalog still has the old size. A read at the descriptor's own
    offset ends at the old size, and the next read returns the new bytes. A single read at an
    explicit offset returns both old and new bytes."""
    with (reader.served.root / "f").open("ab") as file:
        file.write(COPY)
    reader.begins(at=80)
    first = (SOURCE + COPY)[80:140]
    assert reader.reads(call, at=80) == (first[:20] if call in IN_TURN else first)
    if call in IN_TURN:
        assert os.lseek(reader.fd, 0, os.SEEK_CUR) == 100
        assert reader.reads(call) == COPY[:N]


@pytest.mark.parametrize("call", CALLS)
def test_odd_reads_are_the_kernels(reader: Reader, call: str) -> None:
    for n, at in ((0, AT), (N, -1), (N, -5)):
        reader.has_copy(COPY)
        reader.begins()
        expected: bytes | int = COPY[AT : AT + n]
        if call in AT_OFFSETS and at < 0 and (call, at) != ("preadv2", -1):
            expected = -errno.EINVAL
        assert reader.reads(call, n, at) == expected


@pytest.mark.parametrize("is_lacking", [False, True])
def test_a_read_with_flags_is_the_kernels(reader: Reader, is_lacking: bool) -> None:
    """A call of preadv2 with flags is left to the kernel, even if libc lacks preadv2."""
    reader.served.copy("f", COPY)
    reader.lib.reads_lack_preadv2(is_lacking)
    reader.begins()
    with (reader.served.root / "f").open("rb") as file:
        file.read()  # the source's pages are cached
    assert reader.reads("preadv2 with flags") in (SOURCE[AT : AT + N], -errno.EAGAIN)
    for at in (-1, AT):
        reader.lib.track_set(reader.fd, 0)
        os.lseek(reader.fd, AT, os.SEEK_SET)
        assert reader.reads("preadv2", at=at) == SOURCE[AT : AT + N]
    assert os.lseek(reader.fd, 0, os.SEEK_CUR) == AT
    reader.lib.reads_lack_preadv2(0)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.sampled_from([0, 1, 1000, 2**30, 0x7FFFF000, 2**40]), max_size=5))
def test_parts_have_as_many_bytes_as_one_call_moves(lib: Any, lengths: list[int]) -> None:
    parts = ffi.new("uint64_t[]", [x for n in lengths for x in (4096, n)] or 1)
    total = ffi.new("uint64_t *")
    fits = 0 < sum(lengths) <= 0x7FFFF000
    assert lib.reads_are_usable(parts, len(lengths), total) == fits
    if fits:
        assert total[0] == sum(lengths)


def test_the_number_of_parts_has_a_limit(lib: Any) -> None:
    parts, total = ffi.new("uint64_t[]", [1] * 2 * 1025), ffi.new("uint64_t *")
    for n, are in ((0, 0), (-1, 0), (1, 1), (1024, 1), (1025, 0)):
        assert lib.reads_are_usable(parts, n, total) == are
    assert lib.reads_are_usable(ffi.NULL, 1, total) == 0


CASES = [
    "served", "off", "switched", "bypass", "changed", "replacing", "other_file", "number", "unmet",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_descriptor_is_tracked_while_a_copy_may_serve_it(reader: Reader, case: str) -> None:
    """The library usually stops tracking a descriptor once no copy may serve it. There are three
    exceptions: Monarch is switched off and may be switched on again; the file has no entry yet; or
    the descriptor's own offset was used, so another thread may still need the descriptor's word."""
    served, entry = reader.served, reader.entry
    out = ffi.new("uint64_t[3]")
    for flags in (OFFSET, 0):
        word = reader.word(flags)
        reader.begins()
        if case in ("off", "switched"):
            served.control.off = 1
        elif case == "bypass":
            entry.word = State.BYPASS
        elif case == "changed":
            served.known.mark_changed(served.root / "f")
        elif case == "replacing":
            entry.version = 1
        elif case == "other_file":
            os.dup2(reader.other, reader.fd)
        if case in ("number", "switched"):
            word |= 3 << 4  # of another daemon
        elif case == "unmet":
            word = (int(reader.lib.claims_unmet(5)) + 1) << 32 | flags
        reader.lib.track_set(reader.fd, word)
        is_served = reader.lib.reads_find(served.s, reader.fd, out)
        assert is_served == (case == "served")
        if is_served:
            assert list(out) == [served.id("f"), int(entry.ino), 0]
        is_kept = flags or case in ("served", "off", "switched", "unmet")
        assert (reader.lib.track_word(reader.fd) == word) == bool(is_kept)
        assert reader.counted() == (100 if case == "bypass" and not flags else 0)
    served.control.off = 0


@pytest.mark.parametrize("call", CALLS)
def test_what_is_read_at_the_source_is_counted_once(reader: Reader, call: str) -> None:
    """If the descriptor has come to refer to another file, the library opens the original file by
    its path, and reads that file. These bytes, too, are counted once."""
    reader.begins()
    assert reader.reads(call) == SOURCE[AT : AT + N]
    assert reader.counted() == N
    reader.begins()
    reader.replaced()
    assert reader.reads(call) == SOURCE[AT : AT + N]
    assert reader.counted() == 2 * N


UNIT = 10  # unit of the unfinished copies in these tests [bytes]


def fill(reader: Reader, units: int, *, fails: bool = False) -> None:
    """Makes an unfinished copy. Its first `units` units are filled. If `fails` is true, the fill
    has failed."""
    reader.served.copy("f", COPY, State.FILLING)
    fills = native.cast("struct monarch_fills *", reader.lib.reads_fills(reader.served.s))
    fills.word[3] = reader.entry.word
    slot = fills.fill[3]
    slot.unit_bytes, slot.failed, slot.done[0] = UNIT, fails, (1 << units) - 1


def stats(reader: Reader, name: str) -> int:
    return sum(int(getattr(one, name)) for one in reader.served.clients.stats)


@pytest.mark.parametrize("call", ["pread", "preadv", "read", "readv"])
def test_what_is_filled_is_read_from_the_copy(reader: Reader, call: str) -> None:
    """A read waits for units that are not filled yet, unless the source is fast. If the read does
    not wait, or if a wait fails, it gets the remaining bytes from the source."""
    before = [0, 0]
    for units, waits, is_fast in itertools.product([0, 2, 3, 4, 8], [0, 1, 2, 9], [False, True]):
        fill(reader, units)
        reader.served.control.fast_sources = is_fast
        reader.lib.reads_wait(reader.served.s, 3, reader.served.id("f"), waits, 0)
        reader.begins()
        ready = min(max(units * UNIT - AT, 0), N)
        missing = (N - ready) // UNIT
        got = ready if is_fast else min(ready + waits * UNIT, N)
        assert reader.reads(call) == COPY[AT : AT + got] + SOURCE[AT + got : AT + N]
        gives_up = not is_fast and waits < missing
        # A call with a buffer of two parts can give up one wait in each part.
        most = missing if is_fast else min(waits, missing) + gives_up * (2 if "v" in call else 1)
        assert reader.lib.reads_waits() <= (0 if is_fast else most + 1)
        assert bool(reader.lib.reads_waits()) == (not is_fast and missing > 0)
        assert reader.lib.reads_progress() == got
        counted = [stats(reader, "bytes_while_filling"), stats(reader, "fallbacks")]
        assert counted[0] - before[0] == got
        assert (counted[1] > before[1]) == gives_up
        before = counted
        if waits and missing and not is_fast:
            noted = reader.lib.reads_noted_ns()
            assert 5_000_000 <= noted < 60 * SECOND, "the waits tell how fast the source is"
        elif is_fast or not missing:
            assert reader.lib.reads_noted_ns() < SECOND
    assert os.lseek(reader.fd, 0, os.SEEK_CUR) == AT + N * (call in IN_TURN)


def test_a_read_waits_for_each_unit_once(reader: Reader) -> None:
    """The duration of each successful wait is noted once. If a wait fails, the read takes its
    remaining bytes from the source, and the duration of this read of the source is noted too."""
    for waits, expected in ((0, 1), (2, 3), (4, 4)):
        fill(reader, 4)
        reader.served.control.fast_sources = 0
        reader.lib.reads_wait(reader.served.s, 3, reader.served.id("f"), waits, 0)
        reader.begins()
        reader.reads("pread")
        assert reader.lib.reads_waits() == min(waits + 1, 4)
        assert reader.lib.reads_notes() == expected

    # For a large file, the duration of a wait says nothing about the source, because the daemon may
    # have filled units for other readers first.
    reader.entry.size = 300_000
    fill(reader, 4)
    reader.lib.reads_wait(reader.served.s, 3, reader.served.id("f"), 9, 0)
    reader.begins()
    assert reader.reads("pread") == COPY[AT : AT + N]
    assert (reader.lib.reads_waits(), reader.lib.reads_notes()) == (4, 0)


def test_a_complete_copy_is_none_that_is_being_filled(reader: Reader) -> None:
    reader.has_copy(COPY)
    reader.begins()
    assert reader.reads("pread") == COPY[AT : AT + N]
    assert stats(reader, "bytes_while_filling") == 0


@pytest.mark.parametrize("case", ["failed", "replaced", "unrequested", "no slot"])
def test_a_copy_that_will_not_come_is_not_waited_for(reader: Reader, case: str) -> None:
    fill(reader, 4, fails=case == "failed")
    reader.served.control.fast_sources = 0
    reader.lib.reads_wait(reader.served.s, 3, reader.served.id("f"), 1, case == "replaced")
    if case == "unrequested":
        reader.served.control.fill_on_open = 0
        reader.entry.word = 0
    elif case == "no slot":
        reader.entry.word = reader.entry.word + (1 << 12)
    reader.begins()
    got = 20 if case == "replaced" else 0
    assert reader.reads("pread") == COPY[AT : AT + got] + SOURCE[AT + got : AT + N]
    assert reader.lib.reads_waits() == {"replaced": 1, "no slot": 2}.get(case, 0)
    assert stats(reader, "fallbacks") == (case == "no slot")


def test_a_file_without_a_copy_is_asked_for_and_waited_for(reader: Reader) -> None:
    reader.served.control.fast_sources = 0
    number = reader.served.id("f")
    fill(reader, 0)
    reader.entry.word = State.ABSENT
    reader.lib.reads_wait(reader.served.s, 3, number, 0, 0)
    reader.begins()
    assert reader.reads("pread") == SOURCE[AT : AT + N]
    assert reader.lib.reads_waits() == 1
    assert int(reader.served.clients.wanted.word[number // 64]) == 1 << number % 64


def test_a_read_into_memory_that_is_not_there_counts_nothing(reader: Reader) -> None:
    for is_replaced in (False, True):
        reader.begins()
        if is_replaced:
            reader.replaced()
        assert reader.lib.reads_call(b"pread", reader.fd, ffi.NULL, N, AT) == -errno.EFAULT
        assert reader.counted() == 0


@pytest.mark.parametrize("call", CALLS)
def test_a_descriptor_becomes_one_of_the_copy_when_it_is_read(reader: Reader, call: str) -> None:
    """A read at an explicit offset promotes the descriptor, that is, replaces it by a descriptor of
    the copy. A read at the descriptor's own offset does not. The library will not see later reads
    through a promoted descriptor, so it notes that this file has unseen reads."""
    copy = reader.served.copy("f", COPY)
    reader.begins(at=0)
    reader.lib.reads_tell(0)
    assert reader.reads(call, at=0) == COPY[:N]
    is_promoted = call in AT_OFFSETS
    assert os.path.samestat(os.fstat(reader.fd), copy.stat()) == is_promoted
    assert (reader.lib.track_word(reader.fd) == 0) == is_promoted
    assert reader.lib.reads_told(3) == (N if is_promoted else 0)
    assert stats(reader, "promotions") == is_promoted


@pytest.mark.parametrize("call", CALLS)
def test_a_descriptor_that_reads_at_the_source_tells_of_its_reads(
    reader: Reader, call: str
) -> None:
    """While a program reads a file directly at the source, the library notes each read. The note
    contains the offset, unless the call uses the descriptor's own offset. Once direct reading is
    over, the copy serves the reads."""
    for is_over in (0, 1):
        reader.has_copy(COPY)
        reader.begins(DIRECT | SHARED)
        reader.lib.reads_wait(reader.served.s, 3, reader.served.id("f"), 0, 0)
        reader.lib.reads_tell(is_over)
        assert reader.reads(call) == (COPY if is_over else SOURCE)[AT : AT + N]
        told = [int(reader.lib.reads_told(i)) for i in range(3)]
        assert told == ([0, 0, 0] if is_over else [1, N, AT if call in AT_OFFSETS else -1])
        notes = not is_over and "v" not in call
        assert reader.lib.reads_notes() == notes
        assert (1 if notes else -1) < reader.lib.reads_noted_ns() < SECOND


@pytest.mark.parametrize("call", CALLS)
def test_what_no_copy_may_serve_is_read_at_the_source(reader: Reader, call: str) -> None:
    """No copy serves a descriptor that is not tracked, a file that has changed, or a file whose
    copy may not be used. While Monarch is off, no copy serves any file."""
    for case in ("untracked", "untracked", "bypass", "changed", "replacing", "off"):
        reader.has_copy(COPY)
        reader.begins()
        if case == "untracked":
            reader.lib.track_set(reader.fd, 0)
        elif case == "bypass":
            reader.entry.word = State.BYPASS
        elif case == "replacing":
            reader.entry.version += 1
        elif case == "off":
            reader.served.control.off = 1
        else:
            reader.served.known.mark_changed(reader.served.root / "f")
        for _ in range(2):
            assert reader.reads(call) == SOURCE[AT : AT + N]
            os.lseek(reader.fd, AT, os.SEEK_SET)
    reader.served.control.off = 0
