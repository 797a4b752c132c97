"""Tests which memory calls end a mapping's wait for its copy, and which calls change the advice of
a waiting mapping."""

from __future__ import annotations

import ctypes
import errno
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi

PAGE = mmap.PAGESIZE
FORGET = -1
READ, WRITE = mmap.PROT_READ, mmap.PROT_WRITE
MAYMOVE, FIXED = 1, 2
LOCK_ONFAULT = 1
NORMAL, RANDOM, SEQUENTIAL, WILLNEED, DONTNEED, FREE, COLD, PAGEOUT, POPULATE_READ = (
    0, 1, 2, 3, 4, 8, 20, 21, 22,
)  # fmt: skip


class Memory:
    """A mapping of four pages of a file. The pages are readable and, by default, private."""

    def __init__(self, lib: Any, path: Path, flags: int = mmap.MAP_PRIVATE) -> None:
        self.lib, self.path = lib, path
        self._libc = ctypes.CDLL(None)
        self._libc.mmap.restype = ctypes.c_size_t
        self._libc.mmap.argtypes = [*[ctypes.c_size_t] * 2, *[ctypes.c_int] * 3, ctypes.c_size_t]
        self._libc.munmap.argtypes = [ctypes.c_size_t] * 2
        with path.open("r+b") as file:
            self.at = self._libc.mmap(0, 4 * PAGE, READ, flags, file.fileno(), 0)

    def end(self) -> None:
        """Unmaps the pages of the file that are still mapped. By now, the addresses of the other
        pages may belong to other memory, which stays mapped."""
        for line in Path("/proc/self/maps").read_text().splitlines():
            if line.endswith(str(self.path)):
                begin, end = (int(word, 16) for word in line.split()[0].split("-"))
                self._libc.munmap(begin, end - begin)

    def call(self, name: str, *arguments: int) -> int:
        return int(getattr(self.lib, f"remap_{name}")(*arguments))

    def said(self, name: str, *arguments: int) -> tuple[int, list[tuple[int, ...]]]:
        """Makes the call. Returns its result, and what the library has told the table of mappings
        before the system call. Each message consists of the first page, the number of bytes, and
        the advice or FORGET."""
        self.lib.remap_forget()
        result = self.call(name, *arguments)
        out = ffi.new("int64_t[32]")
        n = self.lib.remap_said(out)
        words = [tuple(out[4 * i : 4 * i + 4]) for i in range(n)]
        assert all(mapped for *_, mapped in words), "it was told after the call"
        return result, [((at - self.at) // PAGE, n, what) for at, n, what, _ in words]

    def flags(self, page: int) -> str:
        """Returns the protection and the flags that the kernel reports in /proc for a page."""
        at = self.at + page * PAGE
        for part in re.split(r"^(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text(), flags=re.M):
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", part)
            if found and int(found[1], 16) <= at < int(found[2], 16):
                flags = re.search(r"VmFlags:(.*)", part)
                return found[3] + (flags[1] if flags else "")
        return ""


@pytest.fixture
def memory(lib: Any, tmp_path: Path) -> Iterator[Memory]:
    (tmp_path / "f").write_bytes(b"x" * 8 * PAGE)
    (tmp_path / "pages").write_bytes(b"".join(bytes([i]) * PAGE for i in b"0123"))
    lib.remap_lacks(0)
    one = Memory(lib, tmp_path / "f")
    yield one
    one.end()
    lib.remap_lacks(0)


def test_memory_that_is_unmapped_waits_for_nothing(memory: Memory) -> None:
    at = memory.at
    assert memory.said("munmap", at + PAGE, 2 * PAGE) == (0, [(1, 2 * PAGE, FORGET)])
    assert [bool(memory.flags(i)) for i in range(4)] == [True, False, False, True]
    assert memory.call("munmap", at + 3, PAGE) == -errno.EINVAL


def test_memory_that_moves_waits_for_nothing(memory: Memory) -> None:
    """If memory is moved to the place of a mapping, the mapping no longer waits for its copy. The
    moved memory waits for nothing either."""
    at = memory.at
    assert memory.said("mremap", at, 4 * PAGE, 2 * PAGE, 0, 0) == (at, [(0, 4 * PAGE, FORGET)])
    assert [bool(memory.flags(i)) for i in range(3)] == [True, True, False]
    to = at + PAGE
    moved = memory.said("mremap", at, PAGE, PAGE, MAYMOVE | FIXED, to)
    assert moved == (to, [(0, PAGE, FORGET), (1, PAGE, FORGET)])
    assert [bool(memory.flags(i)) for i in range(2)] == [False, True]
    assert memory.said("mremap", to, PAGE, 0, 0, 0) == (-errno.EINVAL, [(1, PAGE, FORGET)])


@pytest.mark.parametrize("is_lacking", [False, True])
def test_memory_with_another_protection_waits_for_nothing(memory: Memory, is_lacking: bool) -> None:
    """Memory that the program makes writable or unreadable no longer waits for its copy. This also
    holds with a libc that lacks pkey_mprotect."""
    memory.lib.remap_lacks(is_lacking)
    at, said = memory.at, [(1, PAGE, FORGET)]
    for call, more in (("mprotect", ()), ("pkey_mprotect", (-1,))):
        for prot, expected in ((READ, []), (READ | WRITE, said), (0, said), (READ, [])):
            assert memory.said(call, at + PAGE, PAGE, prot, *more) == (0, expected)
            flags = memory.flags(1)[:3]
            assert flags == f"{'r' if prot & READ else '-'}{'w' if prot & WRITE else '-'}-"
    for key in (0, 16):  # some processors have no keys, and none has key 16
        result, told = memory.said("pkey_mprotect", at + PAGE, PAGE, READ, key)
        assert told == said
        assert result == 0 if key == 0 and result >= 0 else result < 0


@pytest.mark.parametrize(
    ("advice", "said"),
    [(NORMAL, NORMAL), (RANDOM, RANDOM), (SEQUENTIAL, SEQUENTIAL), (WILLNEED, None),
     (DONTNEED, None), (COLD, None), (PAGEOUT, None), (POPULATE_READ, None), (FREE, FORGET),
     (9, FORGET), (10, FORGET), (11, FORGET), (16, FORGET), (23, FORGET), (99, FORGET)],
)  # fmt: skip
def test_advice_on_the_order_of_reads_is_kept(
    memory: Memory, advice: int, said: int | None
) -> None:
    """Advice on the order of reads is kept. Advice that takes effect at once is not kept. If the
    program gives any other advice, the mapping no longer waits for its copy, because the library
    does not know what this advice means for the copy."""
    expected = [] if said is None else [(1, PAGE, said)]
    for call in ("madvise", "posix_madvise"):
        memory.call("madvise", memory.at, 4 * PAGE, NORMAL)
        assert memory.said(call, memory.at + PAGE, PAGE, advice)[1] == expected
        flags = [memory.flags(i).split() for i in range(3)]
        assert ["sr" in one for one in flags] == [False, advice == SEQUENTIAL, False]
        assert ["rr" in one for one in flags] == [False, advice == RANDOM, False]
    if advice == 99:
        assert memory.said("madvise", memory.at, PAGE, advice)[0] == -errno.EINVAL
        assert memory.said("posix_madvise", memory.at, PAGE, advice)[0] == errno.EINVAL


@pytest.mark.parametrize("is_lacking", [False, True])
@pytest.mark.parametrize(
    ("call", "more"), [("mlock", ()), ("mlock2", (0,)), ("mlock2", (LOCK_ONFAULT,))]
)
def test_locked_memory_waits_for_nothing(
    memory: Memory, call: str, more: tuple[int, ...], is_lacking: bool
) -> None:
    memory.lib.remap_lacks(is_lacking)
    at = memory.at + PAGE
    assert memory.said(call, at, PAGE, *more) == (0, [(1, PAGE, FORGET)])
    flags = [memory.flags(i).split() for i in range(3)]
    assert ["lo" in one for one in flags] == [False, True, False]
    assert ("lf" in flags[1]) == bool(more and more[0])
    assert memory.said("mlock2", at, PAGE, 64)[0] == -errno.EINVAL


def test_while_all_memory_is_locked_no_mapping_waits(memory: Memory) -> None:
    memory.lib.remap_forget()
    assert memory.call("mlockall", 0) == -errno.EINVAL
    assert [memory.lib.remap_refusals(i) for i in (0, 1)] == [0, 1]
    assert memory.call("munlockall") == 0
    assert [memory.lib.remap_refusals(i) for i in (0, 1)] == [1, 1]


def test_memory_with_other_pages_waits_for_nothing(memory: Memory) -> None:
    said = [(0, PAGE, FORGET)]
    assert memory.said("remap_file_pages", memory.at, PAGE, READ, 0, 0) == (-errno.EINVAL, said)
    shared = Memory(memory.lib, path := memory.path.with_name("pages"), mmap.MAP_SHARED)
    assert ctypes.string_at(shared.at, 1) == b"0"
    assert shared.said("remap_file_pages", shared.at, PAGE, 0, 2, 0) == (0, said)
    content = [ctypes.string_at(shared.at + i * PAGE, PAGE) for i in range(4)]
    pages = path.read_bytes()
    assert content == [pages[i * PAGE : (i + 1) * PAGE] for i in (2, 1, 2, 3)]
    shared.end()
