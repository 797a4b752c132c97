"""Tests the library's table of backing descriptors. A backing descriptor is the library's own
descriptor of a file of the source. It belongs to a descriptor of the program, and is
closed with that descriptor."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from csrc.units.place import is_open

FIRST = 500  # the lowest number of a backing descriptor


@dataclass
class Pair:
    """A descriptor of the program, and its backing descriptor."""

    fd: int
    behind: int


def is_inherited(fd: int) -> bool:
    return not fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


@pytest.fixture
def pairs(lib: Any, tmp_path: Path) -> Iterator[list[Pair]]:
    """Three descriptors of the program, each with its backing descriptor. The program's descriptors
    have adjacent numbers, and so have the backing descriptors."""
    made: list[Pair] = []
    lib.backing_forget()
    try:
        for i in range(3):
            (tmp_path / f"f{i}").write_text(f"{i}")
            first = os.open(tmp_path / f"f{i}", os.O_RDONLY)
            fd = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 400 + i)
            behind = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, FIRST + i)
            os.close(first)
            made.append(Pair(fd, behind))
            assert lib.backing_note(fd, behind, -1)
        assert [pair.fd for pair in made] == [made[0].fd + i for i in range(3)]
        assert [pair.behind for pair in made] == [made[0].behind + i for i in range(3)]
        yield made
    finally:
        for pair in made:
            lib.backing_close(pair.fd)
            for fd in (pair.fd, pair.behind):
                if is_open(fd):
                    os.close(fd)
        assert lib.backing_count() == 0


def behind(lib: Any, pairs: list[Pair]) -> list[int]:
    return [int(lib.backing_number(pair.fd)) for pair in pairs]


def test_each_descriptor_knows_what_stands_behind_it(lib: Any, pairs: list[Pair]) -> None:
    assert behind(lib, pairs) == [pair.behind for pair in pairs]
    for pair in pairs:
        assert lib.backing_is_backing(pair.behind)
        assert not lib.backing_is_backing(pair.fd)
        assert lib.backing_number(pair.behind) == -1
    assert lib.backing_count() == 3
    for no in (-1, 65536, 2**31 - 1):
        assert lib.backing_number(no) == -1
        assert not lib.backing_is_backing(no)


def test_a_second_one_is_refused_and_another_replaces_it(lib: Any, pairs: list[Pair]) -> None:
    """Two threads may each make a backing descriptor for the same descriptor. The table keeps the
    first. A thread that knows the present backing descriptor can replace it."""
    pair = pairs[0]
    other = fcntl.fcntl(pair.behind, fcntl.F_DUPFD_CLOEXEC, FIRST)
    assert not lib.backing_note(pair.fd, other, -1)
    assert not lib.backing_is_backing(other) and lib.backing_count() == 3
    assert lib.backing_note(pair.fd, other, pair.behind)
    assert lib.backing_number(pair.fd) == other and lib.backing_is_backing(other)
    assert not lib.backing_is_backing(pair.behind) and lib.backing_count() == 3
    lib.backing_close(pair.fd)
    assert not is_open(other)


def test_a_close_closes_what_stands_behind_and_nothing_else(lib: Any, pairs: list[Pair]) -> None:
    lib.backing_close(pairs[1].fd)
    assert [is_open(pair.behind) for pair in pairs] == [True, False, True]
    assert behind(lib, pairs) == [pairs[0].behind, -1, pairs[2].behind]
    assert lib.backing_count() == 2
    lib.backing_close(pairs[0].behind)  # the program closes a backing descriptor
    assert behind(lib, pairs) == [-1, -1, pairs[2].behind]
    assert lib.backing_count() == 1 and is_open(pairs[0].behind)


@pytest.mark.parametrize("replaced", ["file", "writable", "pipe"])
def test_a_number_that_the_program_has_reused_is_the_programs(
    lib: Any, pairs: list[Pair], tmp_path: Path, replaced: str
) -> None:
    """The program has closed a backing descriptor by a direct system call, and has opened something
    else on its number. The library must not close this number later."""
    if replaced == "file":
        other = os.open(__file__, os.O_RDONLY)
    elif replaced == "writable":
        other = os.open(tmp_path / "f0", os.O_RDWR)
    else:
        other, more = os.pipe()
        os.close(more)
    os.dup2(other, pairs[0].behind)
    os.close(other)
    assert not lib.backing_is_backing(pairs[0].behind)
    lib.backing_close(pairs[0].fd)
    assert is_open(pairs[0].behind)


def test_a_range_that_is_closed_keeps_what_stands_behind_others(
    lib: Any, pairs: list[Pair]
) -> None:
    """When a range of numbers is closed, a backing descriptor in the range stays open if it belongs
    to a descriptor of the program outside the range. The test tries all edges of a range."""
    numbers = [pair.behind for pair in pairs]
    for first in range(numbers[0] - 1, numbers[2] + 2):
        for last in (numbers[0] - 1, *numbers, numbers[2] + 1, 2**32 - 1):
            inside = [n for n in numbers if first <= n <= last]
            expected = inside[0] if inside else last + 1
            if first <= last:
                assert lib.backing_that_stays(first, first, last) == expected, (first, last)
    # A range that contains all descriptors of the program: no backing descriptor in it stays open.
    assert lib.backing_that_stays(0, pairs[0].fd, 2**32 - 1) == 2**32
    # A range without backing descriptors: the result is the first number after the range.
    assert lib.backing_that_stays(0, 0, pairs[1].fd) == pairs[1].fd + 1
    # A range that contains all backing descriptors, but only the third descriptor of the program.
    # The first backing descriptor must stay open, and the third backing descriptor must not.
    assert lib.backing_that_stays(numbers[0], pairs[2].fd, 2**32 - 1) == numbers[0]
    assert lib.backing_that_stays(numbers[2], pairs[2].fd, 2**32 - 1) == 2**32


@pytest.mark.parametrize("begin", range(-1, 3))
@pytest.mark.parametrize("end", [-1, 0, 1, 2, 90])
def test_a_range_closes_what_stands_behind_its_descriptors(
    lib: Any, pairs: list[Pair], begin: int, end: int
) -> None:
    first, last = pairs[0].fd + begin, pairs[0].fd + end
    lib.backing_close_range(first, last)
    closed = [first <= pair.fd <= last for pair in pairs]
    assert [not is_open(pair.behind) for pair in pairs] == closed
    assert lib.backing_count() == 3 - sum(closed)
    lib.backing_close_range(0, 2**32 - 1)
    assert lib.backing_count() == 0
    assert not any(is_open(pair.behind) for pair in pairs)


def test_a_range_may_have_only_the_last_descriptor_behind(lib: Any, pairs: list[Pair]) -> None:
    """A call may name a range of only one number, which is the number of the highest backing
    descriptor in the table."""
    last = pairs[2].behind
    assert lib.backing_that_stays(last, last, last) == last
    lib.backing_close_range(last, last)
    assert lib.backing_count() == 3
    os.dup2(pairs[0].fd, last)  # the program opens its own file on this number
    lib.backing_close_range(last, last)
    assert lib.backing_count() == 2
    assert is_open(last)


def test_flags_of_a_range_are_those_of_what_stands_behind(lib: Any, pairs: list[Pair]) -> None:
    for pair in pairs:
        os.set_inheritable(pair.behind, True)
    lib.backing_flag_range(pairs[1].fd, pairs[1].fd)
    assert [is_inherited(pair.behind) for pair in pairs] == [True, False, True]
    lib.backing_flag_range(pairs[2].fd, 2**32 - 1)
    assert [is_inherited(pair.behind) for pair in pairs] == [True, False, False]


@pytest.mark.parametrize("inherited", [False, True])
def test_a_duplicate_gets_its_own_with_its_own_flag(
    lib: Any, pairs: list[Pair], inherited: bool
) -> None:
    fresh = os.dup(pairs[0].fd)
    os.set_inheritable(fresh, inherited)
    try:
        lib.backing_duplicate(pairs[0].fd, fresh)
        own = lib.backing_number(fresh)
        assert own >= FIRST and own not in [pair.behind for pair in pairs]
        assert is_inherited(own) == inherited
        assert os.path.sameopenfile(own, pairs[0].behind)
        assert lib.backing_count() == 4
    finally:
        lib.backing_close(fresh)
        os.close(fresh)
    assert not is_open(own) and is_open(pairs[0].behind)
    lib.backing_duplicate(pairs[0].fd, pairs[0].fd)
    lib.backing_duplicate(pairs[0].fd, -1)
    assert lib.backing_count() == 3


@pytest.mark.parametrize(
    ("from_fd", "flags", "gives_way"),
    [(0, 0, True), (0, os.O_CLOEXEC, True), (0, os.O_NONBLOCK, False), (-1, 0, False)],
)
def test_a_number_that_the_program_takes_is_given_up(
    lib: Any, pairs: list[Pair], from_fd: int, flags: int, gives_way: bool
) -> None:
    """The program is about to call dup3 with the number of a backing descriptor as the new number.
    The backing descriptor first moves to another number. If dup3 is going to fail, the backing
    descriptor keeps its number."""
    fd = pairs[1].fd if from_fd == 0 else -1
    old = pairs[0].behind
    lib.backing_replace(fd, old, flags)
    now = lib.backing_number(pairs[0].fd)
    assert (now != old) == gives_way
    assert lib.backing_is_backing(now) and lib.backing_count() == 3
    assert is_open(old) != gives_way
    assert not is_inherited(now)
    lib.backing_close(pairs[0].fd)
    assert not is_open(now)


def test_a_number_that_is_replaced_loses_what_stands_behind_it(lib: Any, pairs: list[Pair]) -> None:
    lib.backing_replace(pairs[1].fd, pairs[1].fd, 0)  # dup3 onto the same number
    assert lib.backing_count() == 3
    lib.backing_replace(pairs[1].fd, 2**30, 0)  # dup3 will fail: the number is beyond the limit
    assert lib.backing_count() == 3
    lib.backing_replace(pairs[1].fd, pairs[2].fd, 0)
    assert behind(lib, pairs) == [pairs[0].behind, pairs[1].behind, -1]
    assert not is_open(pairs[2].behind)


@pytest.mark.parametrize("call", ["close", "flag"])
def test_a_descriptor_above_the_one_behind_it_belongs_to_its_range(
    lib: Any, pairs: list[Pair], call: str
) -> None:
    """The program's descriptor has a higher number than its backing descriptor. A call on a range
    that contains the program's descriptor, but not the backing descriptor, changes the backing
    descriptor too."""
    last = pairs[2]
    fd = fcntl.fcntl(last.fd, fcntl.F_DUPFD_CLOEXEC, last.behind + 1)
    lib.backing_close(last.fd)
    last.behind = fcntl.fcntl(fd, fcntl.F_DUPFD, FIRST)
    os.close(last.fd)
    last.fd = fd
    assert last.behind < fd and lib.backing_note(fd, last.behind, -1)
    if call == "flag":
        lib.backing_flag_range(fd, fd)
        assert not is_inherited(last.behind)
        return
    assert lib.backing_that_stays(last.behind, last.behind, fd) == fd + 1
    lib.backing_close_range(fd, fd)
    assert not is_open(last.behind) and lib.backing_count() == 2


def test_a_number_at_the_limit_keeps_what_stands_behind_it(lib: Any, pairs: list[Pair]) -> None:
    """If the new number of a dup3 is not below the limit on descriptors, the call will fail, and
    the descriptor with this number stays open. So its backing descriptor must stay open too. If the
    limit is one higher, the call succeeds, and the library closes the backing descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for above, is_kept in ((0, True), (1, False)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (pairs[2].fd + above, hard))
        try:
            lib.backing_replace(pairs[0].fd, pairs[2].fd, 0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert is_open(pairs[2].behind) == is_kept
