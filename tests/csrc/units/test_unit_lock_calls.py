"""Tests the lock calls: on which descriptor the library takes the lock, and what it does before and
after the call. The program's descriptor is 5. If descriptor 5 refers to a copy, the library has
another descriptor, which refers to the source's file."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Any

import pytest
from csrc.units.loading import ffi

FLOCK, LOCKF, FCNTL = range(3)
GETLK, SETLK, SETLKW = fcntl.F_GETLK, fcntl.F_SETLK, fcntl.F_SETLKW
OFD_GETLK, OFD_SETLK, OFD_SETLKW, GETLEASE = 36, 37, 38, 1025
ROUNDS = 32
CHANGING = [(LOCKF, fcntl.LOCK_EX), (FCNTL, SETLK), (FCNTL, SETLKW)]
OTHER = [(FCNTL, command) for command in (OFD_GETLK, OFD_SETLK, OFD_SETLKW, GETLEASE)]


class Locks:
    def __init__(self, lib: Any) -> None:
        self.lib = lib

    def call(
        self, kind: int, command: int, *, settles: bool = True, behind: int = -1,
        keeps: bool = True, awaits: bool = True, doubts: int = 0, error: int = 0,
    ) -> tuple[int, str]:  # fmt: skip
        """Makes a lock call on descriptor 5. Returns its result or -errno, and the steps.

        settles : False: another thread takes too long to replace descriptor 5
        behind : the descriptor that refers to the source's file; -1: descriptor 5 itself; -2: there
        is none
        keeps : False: another thread takes too long to replace a descriptor of the source's file
        awaits : False: the library takes too long to close a descriptor of its own
        doubts : number of rounds whose result is doubtful, because the library has closed a
        descriptor of its own during the lock call
        error : errno with which the kernel refuses the lock; 0: the kernel grants the lock
        """
        result = -1 if error else 0
        self.lib.locks_answer(settles, behind, keeps, awaits, doubts, result, error)
        done = int(self.lib.locks_call(kind, command))
        return done, os.fsdecode(ffi.string(self.lib.locks_steps()))

    @staticmethod
    def text(kind: int, command: int, fd: int) -> str:
        name = ("flock", "lockf", "fcntl")[kind]
        return f"{name} {fd} {command}" + " 9" * (kind == LOCKF)


@pytest.fixture
def locks(lib: Any) -> Locks:
    return Locks(lib)


@pytest.mark.parametrize(("kind", "command"), [(FLOCK, 2), *CHANGING, (FCNTL, GETLK), *OTHER])
@pytest.mark.parametrize("behind", [-1, 3, 6])
def test_a_lock_is_taken_on_the_sources_file(
    locks: Locks, kind: int, command: int, behind: int
) -> None:
    """After a lock was granted, the library compares the file with the catalog, because the lock's
    previous holder may have changed the file. Before a call that changes POSIX locks or asks about
    one (F_GETLK), the library waits until no close of its own descriptors is under way."""
    on = 5 if behind < 0 else behind
    changes = (kind, command) in CHANGING
    before = [f"keep {on}"]
    before += ["posix"] if changes and behind >= 0 else []
    before += ["await"] if changes or (kind, command) == (FCNTL, GETLK) else []
    before.append(locks.text(kind, command, on))
    after = ["compare 5" if behind < 0 else "compare behind 5"]
    assert locks.call(kind, command, behind=behind) == (0, ", ".join(before + after))
    for error in (errno.EAGAIN, errno.EINTR):
        refused = locks.call(kind, command, behind=behind, error=error)
        assert refused == (-error, ", ".join(before))


@pytest.mark.parametrize(("kind", "command"), [(FLOCK, 2), *CHANGING, (FCNTL, GETLK), *OTHER])
def test_without_the_sources_file_no_lock_is_granted(locks: Locks, kind: int, command: int) -> None:
    """The call fails with ENOLCK if the library cannot lock the source's file. For example, another
    thread takes too long to replace a descriptor of the file, or the process has no free descriptor
    for the source's file."""
    assert locks.call(kind, command, settles=False) == (-errno.ENOLCK, "")
    assert locks.call(kind, command, behind=-2) == (-errno.ENOLCK, "")
    assert locks.call(kind, command, keeps=False) == (-errno.ENOLCK, "keep 5")


def test_while_a_descriptor_is_being_closed_no_lock_changes(locks: Locks) -> None:
    """If the library takes too long to close a descriptor of its own, a call that changes locks
    fails with ENOLCK. F_GETLK, which only asks about a lock, still gets the kernel's answer,
    although this answer may be outdated."""
    for kind, command in CHANGING:
        assert locks.call(kind, command, awaits=False) == (-errno.ENOLCK, "keep 5, await")
    found = locks.call(FCNTL, GETLK, awaits=False)
    assert found == (0, f"keep 5, await, fcntl 5 {GETLK}, compare 5")


@pytest.mark.parametrize(("kind", "command"), CHANGING)
@pytest.mark.parametrize("error", [0, errno.EAGAIN, errno.EACCES])
def test_a_doubtful_result_is_tried_again(
    locks: Locks, kind: int, command: int, error: int
) -> None:
    """A result is doubtful if the library has closed a descriptor of its own during the call: a
    granted lock may be lost again, and a refusal may be due to a lock of the library itself. If the
    result is still doubtful after ROUNDS calls, the library returns ENOLCK for a granted lock, and
    the kernel's errno for a refusal."""
    one_round = "await, " + locks.text(kind, command, 5)
    after = "" if error else ", compare 5"
    for doubts in (0, 1, 5, ROUNDS - 1):
        rounds = ", ".join([one_round] * (doubts + 1))
        assert locks.call(kind, command, doubts=doubts, error=error) == (
            -error, f"keep 5, {rounds}{after}")  # fmt: skip
    result, steps = locks.call(kind, command, doubts=1000, error=error)
    assert result == -(error or errno.ENOLCK) and steps.count("await") == ROUNDS
    assert "compare" not in steps


def test_other_results_are_not_doubtful(locks: Locks) -> None:
    for kind, command in CHANGING:
        for error in (errno.EINTR, errno.EBADF, errno.EDEADLK):
            result, steps = locks.call(kind, command, doubts=1000, error=error)
            assert result == -error and steps.count("await") == 1
    for kind, command in (*OTHER, (FCNTL, GETLK), (FLOCK, 2)):
        result, steps = locks.call(kind, command, doubts=1000)
        assert result == 0 and steps.count(locks.text(kind, command, 5)) == 1


def test_the_commands_of_locks_are_known(lib: Any) -> None:
    for command in (GETLK, SETLK, SETLKW, OFD_GETLK, OFD_SETLK, OFD_SETLKW, GETLEASE):
        assert lib.locks_is_lock(command)
    for command in (fcntl.F_GETFD, fcntl.F_SETFL, fcntl.F_DUPFD, 8, 39, 1024, 1026):
        assert not lib.locks_is_lock(command)
