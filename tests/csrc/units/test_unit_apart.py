"""Tests threads that have their own table of descriptors."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.loading import ffi
from csrc.units.place import open_descriptors
from support.session import wait_until


@pytest.fixture
def gate() -> Iterator[int]:
    """The number of a descriptor that is open in the process."""
    ends = os.pipe()
    os.dup2(ends[0], 700)
    yield 700
    for fd in (*ends, 700):
        os.close(fd)


@pytest.mark.parametrize("is_old", [0, 1])
def test_the_thread_has_descriptors_of_its_own(
    lib: Any, tmp_path: Path, gate: int, is_old: int
) -> None:
    """A thread with its own table always has a free descriptor number, and the process does not get
    the descriptors that the thread opens. On an older kernel, the thread has a copy of the
    process's table, in which descriptor 0 is closed."""
    (tmp_path / "f").touch()
    out, before = ffi.new("int[]", 3), open_descriptors()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert lib.apart_look(bytes(tmp_path / "f"), gate, is_old, out) == 1
    assert list(out) == [0, is_old, 1]
    assert open_descriptors() == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


def test_what_the_thread_has_found_comes_back(lib: Any) -> None:
    most = int(lib.apart_most())
    for n in (1, 8, most - 1, most):
        assert lib.apart_data(n) == 1
    assert lib.apart_data(most + 1) == -1


def test_without_a_thread_nothing_is_done(lib: Any, tmp_path: Path) -> None:
    for _ in range(3):
        assert lib.apart_without_threads(bytes(tmp_path)) == 0


def test_a_thread_that_hangs_is_left_behind(lib: Any, tmp_path: Path) -> None:
    """If a thread hangs, its memory stays mapped, because the thread still uses it."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    before = len(os.listdir("/proc/self/task"))
    assert lib.apart_hang(bytes(path)) == 0
    os.close(os.open(path, os.O_WRONLY))
    wait_until(lambda: len(os.listdir("/proc/self/task")) <= before)
