"""Tests mmap: whether the library maps the copy or the source's file, and what it records."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place, open_descriptors
from csrc.units.serving import Served

PAGE = mmap.PAGESIZE
SIZE = 2 * PAGE + 100
READ, WRITE, EXECUTE = mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_EXEC
PRIVATE, SHARED, FIXED, ANONYMOUS = mmap.MAP_PRIVATE, mmap.MAP_SHARED, 0x10, mmap.MAP_ANONYMOUS
DIRECT = 1 << 62
SOURCE, COPY, OTHER = b"s", b"c", b"o"
NUMBER = 700  # a descriptor number that nothing else in this process uses


class Maps:
    """A source with the file f, which has a copy, and another file. NUMBER is a descriptor of f at
    the source. The two files and the copy each consist of one repeated letter. The letters
    differ."""

    def __init__(self, lib: Any, place: Place, root: Path, tier: Path) -> None:
        self.lib, self.path = lib, root / "f"
        root.mkdir()
        tier.mkdir(mode=0o700)
        self.path.write_bytes(SOURCE * SIZE)
        (root / "other").write_bytes(OTHER * SIZE)
        self.served = Served(lib, place, root, tier)
        self.served.control.promote_mappings = 1
        self.copy = self.served.publish("f", COPY * SIZE)
        lib.track_number(self.served.s, 0, 1)
        fd = os.open(self.path, os.O_RDONLY)
        os.dup2(fd, NUMBER)
        os.close(fd)
        self.other = os.open(root / "other", os.O_RDONLY)
        self.track()

    def track(self, flags: int = 0) -> None:
        self.lib.track_track(self.served.s, NUMBER, self.served.id("f"), flags)

    def map(
        self, n: int = SIZE, *, comes: bool = True, there: bool = True, other: int = -1,
        prot: int = READ, flags: int = PRIVATE, offset: int = 0, at: int = 0, fd: int = NUMBER,
    ) -> tuple[bytes | int, str]:  # fmt: skip
        """Maps `n` bytes. Returns two values: the letters in the mapping (or -errno), and the steps
        of the library.

        comes : whether the copy is complete or being made
        there : whether the copy is complete after the wait
        other : the descriptor that another thread duplicates to the number `fd` during the wait;
        -1: none
        """
        self.lib.map_answers(comes, there, other)
        out = ffi.new("char[]", n) if n and prot & READ else ffi.NULL
        done = int(self.lib.map_file(at, n, prot, flags, fd, offset, out))
        content = bytes(ffi.buffer(out)) if out != ffi.NULL else b""
        steps = os.fsdecode(ffi.string(self.lib.map_steps()))
        return done or bytes(sorted(set(content) - {0})), steps


@pytest.fixture
def maps(lib: Any, place: Place, tmp_path: Path) -> Iterator[Maps]:
    lib.track_forget()
    lib.backing_forget()
    one = Maps(lib, place, tmp_path / "data", tmp_path / "tier")
    before = open_descriptors()
    yield one
    assert open_descriptors() == before
    one.served.end()
    lib.track_forget()
    os.close(NUMBER)
    os.close(one.other)


def test_a_complete_copy_is_mapped(maps: Maps) -> None:
    """The library does not see reads through a mapping, so the mapped part of the file counts as
    read when it is mapped."""
    for n, offset, read in (
        (SIZE, 0, SIZE), (PAGE, 0, PAGE), (PAGE, PAGE, PAGE), (PAGE, 2 * PAGE, 100),
        (2 * PAGE, PAGE, SIZE - PAGE),
    ):  # fmt: skip
        found, steps = maps.map(n, offset=offset)
        assert (found, steps) == (COPY, f"wait {SIZE}, forget {n}, read {read}")


@pytest.mark.parametrize("case", ["none comes", "not in time", "removed", "replaced"])
def test_without_a_complete_copy_the_source_is_mapped(maps: Maps, case: str) -> None:
    """If there is no complete copy after the wait, the library maps the source's file. Later, it
    may replace this mapping by a mapping of the copy."""
    if case == "removed":
        maps.copy.unlink()
    elif case == "replaced":
        maps.served.entry("f").version += 1
    found, steps = maps.map(comes=case != "none comes", there=case != "not in time")
    begin = "" if case == "none comes" else f"wait {SIZE}, "
    noted = f"forget {SIZE}, add {SIZE} of {SIZE} at 0, "
    if case == "replaced":
        assert (found, steps) == (SOURCE, "")
    else:
        assert (found, steps) == (SOURCE, f"{begin}{noted}read {SIZE}, count {SIZE}")


@pytest.mark.parametrize("flags", [PRIVATE, SHARED])
def test_a_mapping_may_be_replaced_later_unless_the_configuration_forbids_it(
    maps: Maps, flags: int
) -> None:
    found, steps = maps.map(PAGE, comes=False, flags=flags, offset=PAGE)
    added = f"add {PAGE} of {SIZE} at {PAGE}{' shared' * (flags == SHARED)}"
    assert (found, steps) == (SOURCE, f"forget {PAGE}, {added}, read {PAGE}, count {PAGE}")
    maps.served.control.promote_mappings = 0
    assert maps.map(PAGE, comes=False, flags=flags)[1] == f"read {PAGE}, count {PAGE}"


def test_a_descriptor_that_is_read_directly_is_handed_over(maps: Maps) -> None:
    """mmap does not wait for the copy, because the daemon makes the copy from the pages that the
    program reads through the mapping."""
    maps.track(DIRECT)
    found, steps = maps.map()
    assert found == SOURCE and steps.startswith("hand over, forget ") and "wait" not in steps


def test_a_file_that_comes_on_the_descriptors_number_is_not_mapped(maps: Maps) -> None:
    """During the wait, another thread closes the descriptor, and opens another file, which gets the
    descriptor's number. The library then opens the program's file by its name."""
    assert maps.map(there=False, other=maps.other)[0] == SOURCE
    assert os.fstat(NUMBER).st_ino == os.fstat(maps.other).st_ino


@pytest.mark.parametrize("case", ["untracked", "anonymous", "executable"])
def test_other_mappings_are_the_kernels(maps: Maps, case: str) -> None:
    """The library passes these calls to the kernel. It only forgets older mappings at the same
    addresses: before the call if the program has chosen the address, and otherwise after the
    call."""
    prot, flags = READ | EXECUTE * (case == "executable"), PRIVATE
    content = b"" if case == "anonymous" else OTHER if case == "untracked" else SOURCE
    flags |= ANONYMOUS * (case == "anonymous")
    fd = maps.other if case == "untracked" else NUMBER
    assert maps.map(PAGE, prot=prot, flags=flags, fd=fd) == (content, f"forget {PAGE}")
    at = int(maps.lib.map_free(PAGE))
    found = maps.map(PAGE, prot=prot, flags=flags | FIXED, at=at, fd=fd)
    assert found == (content, f"forget {PAGE}")


def test_a_mapping_at_a_chosen_address_is_forgotten_first(maps: Maps) -> None:
    at = int(maps.lib.map_free(SIZE))
    found, steps = maps.map(at=at, flags=PRIVATE | FIXED)
    assert found == COPY and steps.startswith(f"forget {SIZE}, wait {SIZE}, forget {SIZE}, ")


def test_a_call_that_the_kernel_refuses_changes_nothing(maps: Maps) -> None:
    for comes in (True, False):
        wait = f"wait {SIZE}" if comes else ""
        assert maps.map(0, comes=comes) == (-errno.EINVAL, wait)
        assert maps.map(PAGE, comes=comes, offset=1) == (-errno.EINVAL, wait)
        assert maps.map(PAGE, comes=comes, prot=WRITE, flags=SHARED) == (-errno.EACCES, wait)
    assert maps.map(PAGE, fd=999) == (-errno.EBADF, "")
