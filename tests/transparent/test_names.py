"""Processes under the library create, remove, rename and change files. Other processes under the
library see these changes at once, as in a directory outside every source. If a process without the
library makes a change, processes under the library see it later."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support import draws
from support.commands import Commands
from support.session import Session, wait_until
from support.told import wait_told

TREES = draws.sized(100, 240)  # each example or case of a test uses up one tree
EXAMPLES = draws.sized(20, 150)

NAMES = ["a", "b", "new", "d", "d/x", "d/new", "d/sub", "d/sub/y", "l", "dl/x", "e", "e/new", ""]
CALLS = ["mkdir", "rmdir", "unlink", "mkfifo", "truncate", "read", "listdir", "entries", "inodes"]
CALLS += ["stat", "lstat", "exists", "exists", "access", "readlink", "realpath", "walk"]
WAYS = st.sampled_from(["absolute", "relative", "fd"])
PATHS = st.sampled_from(NAMES)
OPERATIONS = st.one_of(
    st.tuples(
        st.sampled_from(
            [
                "mkdir",
                "rmdir",
                "unlink",
                "mkfifo",
                "truncate",
                "listdir",
                "listdir",
                "entries",
                "stat",
                "stat",
                "lstat",
                "exists",
                "exists",
                "access",
                "readlink",
                "realpath",
                "walk",
                "inodes",
                "read",
            ]
        ),
        PATHS,
    ),
    st.tuples(st.just("create"), PATHS, st.sampled_from(["O_EXCL", "O_TRUNC", "O_APPEND"])),
    st.tuples(st.sampled_from(["rename", "link"]), PATHS, PATHS),
    st.tuples(st.just("symlink"), st.sampled_from(["a", "d", "../a", "nothing", "sub"]), PATHS),
    st.tuples(st.just("fopen"), PATHS, st.sampled_from(["w", "a", "r+", "wx"])),
)
PROGRAMS = st.lists(st.tuples(st.integers(0, 1), WAYS, OPERATIONS), min_size=5, max_size=25)


def make(root: Path) -> None:
    (root / "d" / "sub").mkdir(parents=True)
    (root / "e").mkdir()
    for name in ("a", "b", "d/x", "d/sub/y"):
        (root / name).write_text(f"the content of {name}")
    (root / "l").symlink_to("d/x")
    (root / "dl").symlink_to("d")


@dataclass
class Pairs:
    """Two processes that work on the source under the library, and two processes that work on an
    equal directory without the library."""

    session: Session
    plain: Path
    with_it: list[Commands]
    without: list[Commands]
    used: int = 0

    def next_tree(self) -> str:
        self.used += 1
        return f"t{self.used - 1:03d}"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    top = tmp_path_factory.mktemp("names")
    source, plain = top / "source", top / "plain"
    for i in range(TREES):
        make(source / f"t{i:03d}")
        make(plain / f"t{i:03d}")
    with Session(top, source) as session, ExitStack() as stack:
        session.start()
        wait_told(session)
        both = [
            [
                stack.enter_context(Commands(session, "file_steps.py", root, preload=preload))
                for _ in range(2)
            ]
            for root, preload in ((source, True), (plain, False))
        ]
        yield Pairs(session, plain, both[0], both[1])


def placed(tree: str, operation: tuple[str, ...]) -> list[str]:
    name, *words = operation
    paths = 2 if name in ("rename", "link") else 1
    first = 1 if name == "symlink" else 0
    for i in range(first, first + paths):
        words[i] = f"{tree}/{words[i]}" if words[i] else tree
    return [name, *words]


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(program=PROGRAMS)
def test_random_programs(pairs: Pairs, program: list[tuple[int, str, tuple[str, ...]]]) -> None:
    tree = pairs.next_tree()
    for i, (who, way, operation) in enumerate(program):
        words = placed(tree, operation)
        found = pairs.with_it[who](way, *words)
        assert found == pairs.without[who](way, *words), [*program[:i], (who, way, words)]
    for who in range(2):
        assert pairs.with_it[who]("absolute", "walk", tree) == pairs.without[who](
            "absolute", "walk", tree
        )


CHANGES: dict[str, list[list[str]]] = {
    "create": [["create", "new", "O_EXCL"]],
    "create_in_empty": [["create", "e/new", "O_EXCL"]],
    "write": [["create", "a", "O_APPEND", "more"]],
    "write_anew": [["create", "a", "O_TRUNC", "other"]],
    "truncate": [["truncate", "a"]],
    "fopen_w": [["fopen", "new", "w"]],
    "fopen_a": [["fopen", "d/new", "a"]],
    "mkdir": [["mkdir", "d/new"]],
    "mkdir_and_more": [["mkdir", "new"], ["mkdir", "new/x"], ["create", "new/x/y", "O_EXCL"]],
    "rmdir": [["rmdir", "e"]],
    "rename": [["rename", "a", "new"]],
    "rename_over": [["rename", "a", "d/x"]],
    "rename_directory": [["rename", "d", "new"]],
    "exchange": [["rename", "d", "new"], ["rename", "e", "d"], ["rename", "new", "e"]],
    "unlink": [["unlink", "d/x"]],
    "unlink_link": [["unlink", "l"]],
    "unlink_and_again": [["unlink", "a"], ["create", "a", "O_EXCL", "another"]],
    "empty": [["unlink", "d/sub/y"], ["rmdir", "d/sub"]],
    "symlink": [["symlink", "d", "new"]],
    "symlink_elsewhere": [["unlink", "dl"], ["symlink", "e", "dl"]],
    # The link leads to `e/new`, so the call creates this file.
    "create_through_a_link": [["symlink", "../e/new", "d/new"], ["create", "d/new", "O_APPEND"]],
    "touch_through_a_link": [["symlink", "../e/new", "d/new"], ["touch", "d/new"]],
    "link": [["link", "a", "d/new"]],
    "mkfifo": [["mkfifo", "new"]],
    "bind": [["bind", "new"]],
    "mkdtemp": [["temporary", "d", "mkdtemp"]],
    "mkstemp": [["temporary", "e", "mkstemp"]],
    "chmod": [["chmod", "a", "600"]],
    "chmod_directory": [["chmod", "d", "700"]],
}
LOOKS = [
    [call, path]
    for path in (*NAMES, "new/x", "new/x/y", "e/x", "e/sub/y", "dl/new", "d/sub/nothing")
    for call in ("exists", "lstat", "stat", "readlink", "access", "entries", "inodes", "read")
]


def look(who: Commands, tree: str, way: str) -> list[Any]:
    found = []
    answers = who.each([(way, *placed(tree, (*operation,))) for operation in LOOKS])
    for operation, answer in zip(LOOKS, answers, strict=True):
        if operation[0] == "entries" and isinstance(answer, list):
            for entry in answer:  # mkdtemp and mkstemp make random names of 6 characters
                entry[0] = "?" if len(entry[0]) == 6 else entry[0]
            answer.sort()
        found.append([*operation, answer])
    return found


@pytest.mark.parametrize("way", ["absolute", "fd"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_at_once_by_all(pairs: Pairs, change: str, way: str) -> None:
    tree = pairs.next_tree() if pairs.used < TREES else pytest.fail("more trees, please")
    assert look(pairs.with_it[1], tree, "absolute") == look(pairs.without[1], tree, "absolute")
    for operation in CHANGES[change]:
        words = placed(tree, (*operation,))
        made = pairs.with_it[0](way, *words)
        assert made == pairs.without[0](way, *words)
        assert made in (None, True), made
    # Two processes check the change. With --long, both do so with absolute and with relative paths.
    # Without --long, one uses absolute paths and the other relative paths. `way` decides which.
    other = 1 if way == "absolute" else 0
    for who, seen in draws.sized(
        [(other, "absolute"), (1 - other, "relative")],
        [(who, seen) for who in (1, 0) for seen in ("absolute", "relative")],
    ):
        assert look(pairs.with_it[who], tree, seen) == look(pairs.without[who], tree, seen)


def add(root: Path) -> None:
    (root / "new").write_text("new")
    (root / "e" / "new").mkdir()


def remove(root: Path) -> None:
    (root / "a").unlink()
    (root / "l").unlink()
    (root / "d" / "sub" / "y").unlink()
    (root / "d" / "sub").rmdir()


def replace(root: Path) -> None:
    for name in ("a", "d/sub/y"):
        (root / "fresh").write_text(f"another content of {name}")
        os.replace(root / "fresh", root / name)


def move(root: Path) -> None:
    os.rename(root / "d", root / "e" / "new")
    os.rename(root / "b", root / "new")


def exchange(root: Path) -> None:
    for old, new in (("d", "new"), ("e", "d"), ("new", "e")):
        os.rename(root / old, root / new)


def lead_elsewhere(root: Path) -> None:
    (root / "dl").unlink()
    (root / "dl").symlink_to("e")


def close_directory(root: Path) -> None:
    (root / "d").chmod(0o700)


def _await_sight(with_it: Commands, without: Commands, tree: str) -> None:
    expected = look(without, tree, "absolute")
    wait_until(
        lambda: look(with_it, tree, "absolute") == expected,
        timeout=20,
        what=f"the changes in {tree}, seen by a program under the library",
        every=0.1,
    )


CHANGES_FROM_OUTSIDE = [add, remove, replace, move, exchange, lead_elsewhere, close_directory]


def test_changes_from_outside_are_seen_in_time(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """Processes without the library change files. If `revalidate` is set, programs under the
    library see these changes after a while. Each change is made in a tree of its own."""
    source = tmp_path / "source"
    for change in CHANGES_FROM_OUTSIDE:
        make(source / change.__name__)
    session = session_factory(source, revalidate=1).start()
    wait_told(session)
    session.wait_all_present()
    with (
        Commands(session, "file_steps.py", source) as with_it,
        Commands(session, "file_steps.py", source, preload=False) as without,
    ):
        for change in CHANGES_FROM_OUTSIDE:
            tree = change.__name__
            assert look(with_it, tree, "absolute") == look(without, tree, "absolute"), tree
        for change in CHANGES_FROM_OUTSIDE:
            change(source / change.__name__)
        for change in CHANGES_FROM_OUTSIDE:
            _await_sight(with_it, without, change.__name__)


def test_changes_from_outside_are_seen_in_time_while_the_daemon_is_stopped(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """A stopped daemon does not compare the catalog with the source. When its last comparison is
    older than `revalidate`, the library reads a file's attributes from the source."""
    source = tmp_path / "source"
    make(source / "t")
    session = session_factory(source, revalidate=1).start()
    wait_told(session)
    path, daemon = source / "t" / "a", session.daemon
    assert daemon is not None
    with Commands(session, "file_steps.py", source) as reader:
        assert reader("absolute", "stat", "t/a") == ["-rw-r--r--", 1, path.stat().st_size]
        daemon.send_signal(signal.SIGSTOP)
        try:
            path.write_text("a content that is longer than the first one")
            expected = ["-rw-r--r--", 1, path.stat().st_size]
            wait_until(lambda: reader("absolute", "stat", "t/a") == expected, what="the new size")
        finally:
            daemon.send_signal(signal.SIGCONT)


def test_a_file_that_was_found_after_the_scan_is_compared_as_well(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    make(source / "t")
    session = session_factory(source, revalidate=1).start()
    wait_told(session)
    (source / "t" / "new").write_text("first")
    with Commands(session, "file_steps.py", source) as reader:
        wait_until(lambda: reader("absolute", "read", "t/new") == "first", what="the new file")
        session.wait_all_present()
        (source / "t" / "fresh").write_text("second")
        os.replace(source / "t" / "fresh", source / "t" / "new")
        wait_until(lambda: reader("absolute", "read", "t/new") == "second", what="its new content")
        assert reader("absolute", "stat", "t/new") == ["-rw-r--r--", 1, len("second")]


def test_with_the_source_asked_each_time_a_change_from_outside_is_seen_at_once(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    make(source / "t")
    session = session_factory(source, metadata="source").start()
    session.wait_all_present()
    with (
        Commands(session, "file_steps.py", source) as with_it,
        Commands(session, "file_steps.py", source, preload=False) as without,
    ):
        assert look(with_it, "t", "absolute") == look(without, "t", "absolute")
        assert session.totals()["metadata_hits"] == 0
        (source / "t" / "a").write_text("other content, in place")
        for change in (replace, remove, move, lead_elsewhere):
            assert look(with_it, "t", "absolute") == look(without, "t", "absolute")
            change(source / "t")
            assert look(with_it, "t", "absolute") == look(without, "t", "absolute")
