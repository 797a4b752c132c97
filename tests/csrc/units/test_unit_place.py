"""Tests the calls after which a process sees other files, or has other rights: what the library
does before and after each call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from csrc.units.loading import ffi

CLONE_VM, CLONE_FS, CLONE_FILES = 0x100, 0x200, 0x400
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000


class Calls:
    def __init__(self, lib: Any) -> None:
        self.lib = lib
        lib.place_forget()

    def steps(self) -> str:
        return os.fsdecode(ffi.string(self.lib.place_steps()))

    def make(self, call: str, returned: int = 0, flags: int = 0) -> str:
        """Makes a call while libc's function is replaced by one that returns `returned`. Returns
        all steps."""
        assert self.lib.place_call(call.encode(), flags, returned) == returned
        return self.steps()

    def clone(
        self, flags: int, returned: int = 0, *, has_run: bool = True, has_stack: bool = True
    ) -> str:
        assert self.lib.place_clone(flags, has_run, has_stack, returned) == returned
        return self.steps()


@pytest.fixture
def calls(lib: Any) -> Iterator[Calls]:
    yield Calls(lib)
    lib.place_forget()


@pytest.mark.parametrize(
    ("call", "original"),
    [("capset", "capset h d"), ("setgroups", "setgroups 2 7 8"), ("initgroups", "initgroups u 1"),
     ("setgid", "setgid 1"), ("setegid", "setegid 1"), ("setregid", "setregid 1 2"),
     ("setresgid", "setresgid 1 2 3")],
)  # fmt: skip
def test_rights_are_checked_after_each_call_that_changes_them(
    calls: Calls, call: str, original: str
) -> None:
    """The library checks nothing after a call that has failed, because such a call has changed
    nothing."""
    assert calls.make(call) == f"{original}, rights"
    assert calls.make(call, -1) == original


def test_a_process_with_other_mounts_gets_no_copies(calls: Calls) -> None:
    """After a call that gives the process another mount namespace, the process gets no copies. The
    thread that replaces mappings ends before each such call, because the kernel refuses some of
    these calls to a process with several threads."""
    assert calls.make("setns") == "mappings, setns 3 4, foreign, rights"
    assert calls.make("setns", -1) == "mappings, setns 3 4"
    for flags, after in (
        (CLONE_NEWNS, ", foreign, rights"), (CLONE_NEWNS | CLONE_FS, ", foreign, rights"),
        (CLONE_NEWUSER, ", rights"), (CLONE_FS, ", rights"), (CLONE_NEWNET, ", rights"),
    ):  # fmt: skip
        assert calls.make("unshare", 0, flags) == f"mappings, unshare {flags:#x}{after}"
        assert calls.make("unshare", -1, flags) == f"mappings, unshare {flags:#x}"


def test_after_a_chroot_the_roots_are_checked_again(calls: Calls) -> None:
    assert calls.make("chroot") == "chroot /r, roots"
    assert calls.make("chroot", -1) == "chroot /r, roots"


@pytest.mark.parametrize(
    ("how", "flags", "is_own"),
    [("unshare", CLONE_FS, True), ("unshare", CLONE_NEWUSER, True), ("unshare", CLONE_NEWNS, False),
     ("clone", CLONE_VM, True), ("clone", CLONE_VM | CLONE_FILES, True),
     ("clone", CLONE_VM | CLONE_FS, False), ("clone", CLONE_FS, False), ("clone", 0, False)],
)  # fmt: skip
def test_a_chroot_of_one_thread_ends_copies_before_it(
    calls: Calls, how: str, flags: int, is_own: bool
) -> None:
    """If a thread has a root directory of its own, the library cannot tell whose root a chroot
    changes. So the process stops using copies before the chroot. The library notes the flags of
    unshare and clone before it makes these calls. For this reason, the process also stops using
    copies if the call that should have given a thread its own root has failed."""
    if how == "unshare":
        calls.make(how, -1, flags)
    else:
        calls.clone(flags)
    assert calls.make("chroot") == ("foreign, " if is_own else "") + "chroot /r, roots"


@pytest.mark.parametrize("flags", [CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNS | CLONE_NEWUSER | 17])
def test_a_child_with_its_own_namespaces_gets_no_copies(calls: Calls, flags: int) -> None:
    """The child switches copies off before the program's function runs. The function still gets the
    program's argument, and its result is the child's exit status."""
    assert calls.clone(flags, 3) == f"clone {flags:#x}, foreign, run"
    assert calls.clone(flags, 3, has_run=False) == f"clone {flags:#x}, plain"
    assert calls.clone(flags, 3, has_stack=False) == f"clone {flags:#x}, run"


@pytest.mark.parametrize("flags", [17, CLONE_VM | CLONE_FS | CLONE_FILES, CLONE_NEWNET])
def test_any_other_child_is_made_as_asked(calls: Calls, flags: int) -> None:
    assert calls.clone(flags, 4) == f"clone {flags:#x}, plain, run"
