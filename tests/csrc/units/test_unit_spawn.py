"""Tests the calls of posix_spawn: before a child is made, the library records which files the
child will open for writing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any

import pytest
from csrc.units.loading import Made, ffi

CALLS = ("posix_spawn", "posix_spawnp", "pidfd_spawn", "pidfd_spawnp")
ANSWER = 19  # what libc's call returns
WRITE, TRUNCATE, CREATE = os.O_WRONLY, os.O_TRUNC, os.O_CREAT
Action = tuple[Any, ...]


class Spawning:
    def __init__(self, lib: Any) -> None:
        self.lib = lib

    def steps(self, *actions: Action, call: int = 0, has_list: bool = True) -> str:
        """Spawns a program with these actions. Returns the steps of the library and of libc."""
        self.lib.spawn_begin()
        try:
            for kind, *words in actions:
                given = [one.encode() if isinstance(one, str) else one for one in words]
                assert getattr(self.lib, f"spawn_{kind}")(*given) == 0
            assert self.lib.spawn_call(call, has_list, 1) == ANSWER
        finally:
            self.lib.spawn_end()
        return os.fsdecode(ffi.string(self.lib.spawn_steps()))

    def opened(self, *actions: Action) -> str:
        """Returns the path under which the library records the only file that the actions open for
        writing."""
        before, after = "file ", ", spawn p"
        found = self.steps(*actions)
        assert found.startswith(before) and found.endswith(after), found
        return found[len(before) : -len(after)]


@pytest.fixture
def spawning(lib: Any, session: Made) -> Iterator[Spawning]:
    yield Spawning(lib)


@pytest.mark.parametrize("call", range(len(CALLS)), ids=CALLS)
def test_changes_are_recorded_before_the_child_is_made(spawning: Spawning, call: int) -> None:
    """All arguments and errno reach libc unchanged, and the caller gets libc's answer."""
    actions = [("open", 5, "f", WRITE), ("close", 6), ("open", 7, "g", WRITE | TRUNCATE)]
    assert spawning.steps(*actions, call=call) == "file f, file g, spawn p"
    assert spawning.steps(call=call) == "spawn p"
    assert spawning.steps(*actions, call=call, has_list=False) == "spawn p"
    spawning.lib.spawn_without_session()
    assert spawning.steps(*actions, call=call) == "spawn p"


@pytest.mark.parametrize("call", [2, 3], ids=CALLS[2:])
def test_an_older_libc_lacks_the_calls_with_a_pidfd(spawning: Spawning, call: int) -> None:
    spawning.lib.spawn_begin()
    assert spawning.lib.spawn_call(call, 1, 0) == errno.ENOSYS
    spawning.lib.spawn_end()


@pytest.mark.parametrize(
    ("flags", "recorded"),
    [(os.O_RDONLY, ""), (os.O_RDONLY | os.O_DIRECTORY, ""), (WRITE, "file f, "),
     (os.O_RDWR, "file f, "), (TRUNCATE, "file f, "), (CREATE, "file f, names f, "),
     (WRITE | CREATE, "file f, names f, "), (WRITE | os.O_NOFOLLOW, "file f itself, ")],
)  # fmt: skip
def test_what_is_recorded_depends_on_the_flags(
    spawning: Spawning, flags: int, recorded: str
) -> None:
    """If the child may create the file, the library also records that the listing of the file's
    directory may change."""
    assert spawning.steps(("open", 5, "f", flags)) == f"{recorded}spawn p"


OPEN = ("open", 9, "f", WRITE)


@pytest.mark.parametrize(
    ("actions", "opened"),
    [
        ([("chdir", "a")], "a/f"),
        ([("chdir", "a"), ("chdir", "b")], "a/b/f"),
        ([("chdir", "a"), ("chdir", "/b"), ("chdir", "c")], "/b/c/f"),
        ([("fchdir", 7)], "7:f"),
        ([("fchdir", 7), ("chdir", "a")], "7:a/f"),
        ([("chdir", "a"), ("fchdir", 7)], "7:f"),
        ([("fchdir", 6), ("fchdir", 7)], "7:f"),
        ([("dup2", 5, 7), ("fchdir", 7)], "5:f"),
        ([("dup2", 5, 6), ("dup2", 6, 7), ("fchdir", 7), ("chdir", "a")], "5:a/f"),
        ([("dup2", 7, 5), ("fchdir", 7)], "7:f"),
        ([("fchdir", 7), ("dup2", 5, 7)], "7:f"),
        ([("open", 7, "d", 0), ("fchdir", 7)], "d/f"),
        ([("open", 7, "/d", 0), ("fchdir", 7)], "/d/f"),
        ([("open", 6, "d", 0), ("fchdir", 7)], "7:f"),
        ([("open", 6, "d", 0), ("dup2", 6, 7), ("fchdir", 7)], "d/f"),
        ([("chdir", "a"), ("open", 7, "d", 0), ("fchdir", 7), ("chdir", "b")], "a/d/b/f"),
        ([("fchdir", 5), ("open", 7, "d", 0), ("fchdir", 7)], "5:d/f"),
        ([("open", 7, "d", 0), ("chdir", "a")], "a/f"),
        ([("close", 3), ("chdir", "a"), ("close", 7)], "a/f"),
    ],
)  # fmt: skip
def test_a_relative_path_starts_from_the_childs_directory(
    spawning: Spawning, actions: list[Action], opened: str
) -> None:
    """Earlier actions change the child's directory, and the library records the file relative to
    that directory. If an action opens that directory by a path, or changes to it by a path, the
    record contains this path. Otherwise, it contains the number of a descriptor of this process:
    "5:f" is the file f in the directory of descriptor 5."""
    assert spawning.opened(*actions, OPEN) == opened
    assert spawning.opened(*actions, ("open", 9, "/f", WRITE)) == "/f"
    assert spawning.opened(*actions, OPEN, ("chdir", "late"), ("fchdir", 1)) == opened


def test_a_path_that_the_kernel_would_refuse_is_not_recorded(spawning: Spawning) -> None:
    """The kernel refuses a path that is too long. Even a much longer path must not overflow the
    library's buffer."""
    longest = int(spawning.lib.spawn_path_max()) - 2
    for directory in ("", "d" * 200):
        begin = [("chdir", directory)] if directory else []
        rest = longest - len(directory) - bool(directory)
        path = f"{directory}/" * bool(directory) + "f" * rest
        assert spawning.opened(*begin, ("open", 5, "f" * rest, WRITE)) == path
        for more in (2, 100, 5000):
            assert spawning.steps(*begin, ("open", 5, "f" * (rest + more), WRITE)) == "spawn p"
    assert spawning.steps(("chdir", "d" * 4094), OPEN) == "spawn p"


WRONG = [
    "open fails", "tag of open", "fd of open", "flags of open", "mode of open", "path of open",
    "dup2 fails", "tag of dup2", "from of dup2", "to of dup2", "number",
    "chdir fails", "tag of chdir", "path of chdir", "fchdir fails", "tag of fchdir", "fd of fchdir",
    "number with directories",
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_list_with_another_layout_is_not_read(lib: Any, wrong: str) -> None:
    """The layout of the list is private to libc. So before the library reads a program's list, it
    checks in a list of its own that each field is where it should be."""
    assert not lib.spawn_is_layout_expected(wrong.encode())
    assert lib.spawn_is_layout_expected(b"")


@pytest.mark.parametrize("missing", ["neither", "addchdir_np", "addfchdir_np"])
def test_an_older_libc_has_no_actions_for_directories(lib: Any, missing: str) -> None:
    name = missing if missing == "neither" else f"posix_spawn_file_actions_{missing}"
    assert lib.spawn_is_layout_expected(name.encode())
