"""Tests momentary descriptors, which the library opens for a single call. No child may inherit such
a descriptor: a thread that is about to open one waits until no fork is under way, and a fork waits
until all of them are closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def lib(lib: Any) -> Iterator[Any]:
    lib.momentary_script(1)
    yield lib
    lib.momentary_script(0)


def test_a_fork_waits_until_descriptors_are_closed(lib: Any) -> None:
    """The fork waits for at most 20 ms, because a tier that hangs must not stop the program."""
    assert lib.momentary_begin() == 0 and lib.momentary_open() == 1
    lib.momentary_other(3, 0)
    assert lib.momentary_fork() == 3
    assert (lib.momentary_open(), lib.momentary_forking()) == (0, 1)
    lib.momentary_forked()
    assert lib.momentary_forking() == 0
    assert lib.momentary_fork() == 0, "no descriptor is open"
    lib.momentary_forked()
    lib.momentary_begin()
    lib.momentary_other(0, 0)
    assert 15 <= lib.momentary_fork() <= 20


def test_a_descriptor_waits_for_a_fork(lib: Any) -> None:
    """A thread that waits to open a descriptor does not count as a thread with an open descriptor.
    Otherwise the thread and the fork would wait for each other."""
    lib.momentary_fork()
    lib.momentary_other(3, 1)
    assert lib.momentary_begin() == 3
    assert (lib.momentary_open(), lib.momentary_forking()) == (1, 0)
    lib.momentary_end()
    lib.momentary_fork()
    lib.momentary_fork()
    lib.momentary_other(3, 1)
    assert lib.momentary_begin() > 3, "another thread still forks"


def test_a_fork_that_was_left_by_a_jump_is_waited_for_briefly(lib: Any) -> None:
    """A signal handler may jump out of a fork. The library then never sees the end of the fork. For
    this reason, a fork counts as under way for at most 100 ms."""
    lib.momentary_fork()
    assert 90 <= lib.momentary_begin() <= 100
    assert lib.momentary_open() == 1 and lib.momentary_forking() == 1
    assert lib.momentary_begin() == 0 and lib.momentary_open() == 2
    lib.momentary_end()
    lib.momentary_end()
    lib.momentary_fork()
    lib.momentary_pass(50)
    assert 40 <= lib.momentary_begin() <= 50


def test_a_child_that_forgets_counts_from_zero(lib: Any) -> None:
    """After a fork, the child may still report the end of something that its parent has begun: a
    momentary descriptor, or the fork itself. Such a report leaves the child's counts at 0."""
    lib.momentary_begin()
    lib.momentary_fork()
    lib.momentary_forget()
    assert (lib.momentary_open(), lib.momentary_forking()) == (0, 0)
    lib.momentary_end()
    lib.momentary_forked()
    assert (lib.momentary_open(), lib.momentary_forking()) == (0, 0)
    assert lib.momentary_begin() == 0 and lib.momentary_open() == 1
    assert lib.momentary_begin() == 0 and lib.momentary_open() == 2
    lib.momentary_end()
    assert lib.momentary_open() == 1
