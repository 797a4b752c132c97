"""Locks and leases that are taken through descriptors of copies have the same effect as without the
library: they exclude the same processes, and end at the same moment. Some of these processes run
under the library, others do not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support import draws
from support.commands import Commands
from support.session import Session

CONTENT = "the first line\nthe second line\n"
SLOT = st.integers(0, 2)
RANGES = st.sampled_from([(0, 0), (0, 5), (3, 4), (8, 2)])
KINDS = st.sampled_from(["F_RDLCK", "F_WRLCK", "F_UNLCK"])
OPERATIONS = st.one_of(
    st.tuples(st.just("open"), SLOT),
    st.tuples(st.just("close"), SLOT),
    st.tuples(st.sampled_from(["dup", "dup2"]), SLOT, SLOT),
    st.tuples(st.just("flock"), SLOT, st.sampled_from(["LOCK_SH", "LOCK_EX", "LOCK_UN"])),
    st.builds(
        lambda slot, name, kind, part: ("fcntl", slot, name, kind, *part),
        SLOT,
        st.sampled_from(["F_SETLK", "F_GETLK", "F_OFD_SETLK", "F_OFD_GETLK"]),
        KINDS,
        RANGES,
    ),
    st.tuples(st.just("lockf"), SLOT, st.sampled_from(["F_TEST", "F_ULOCK"]), st.just(4)),
    st.tuples(st.just("forked"), SLOT, st.just("")),
    st.tuples(st.sampled_from(["spawned", "other", "streamed", "read"]), SLOT),
)
PROGRAMS = st.lists(st.tuples(st.integers(0, 1), OPERATIONS), min_size=4, max_size=20)


READS, WRITES = (os.O_RDONLY, os.O_RDONLY), (os.O_RDONLY, os.O_RDWR)
# Name of a pair of processes -> whether each of the two processes is under the library, and the
# flags with which each opens the file. A process that opens the file for writing is never under the
# library: the library would send all later readers to the source.
KINDS_OF_PAIRS = {
    "none": ((False, False), READS),
    "both": ((True, True), READS),
    "first": ((True, False), READS),
    "second": ((False, True), READS),
    "no_writer": ((False, False), WRITES),
    "writer": ((True, False), WRITES),
}
# Name of a pair -> name of another pair, which runs without the library. Both pairs must get the
# same answers.
LIKE = {"both": "none", "first": "none", "second": "none", "writer": "no_writer"}


@dataclass
class Lockers:
    """Running pairs of processes, one pair of each kind. The two processes of a pair lock the same
    file.

    file : the file that the pair "none" locks
    pairs : name of a pair in KINDS_OF_PAIRS -> its two processes
    """

    session: Session
    file: Path
    pairs: dict[str, list[Commands]]


@pytest.fixture(scope="module")
def lockers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lockers]:
    top = tmp_path_factory.mktemp("locks")
    source = top / "source"
    source.mkdir()
    with Session(top, source) as session, ExitStack() as stack:
        pairs = {}
        for name in KINDS_OF_PAIRS:
            (source / name).write_text(CONTENT)
        session.start()
        session.wait_all_present()
        for name, (preloads, flags) in KINDS_OF_PAIRS.items():
            pairs[name] = [
                stack.enter_context(
                    Commands(session, "lock_steps.py", source / name, mode, preload=preload)
                )
                for preload, mode in zip(preloads, flags, strict=True)
            ]
        yield Lockers(session, source / "none", pairs)


def run(pair: list[Commands], program: list[tuple[int, tuple[Any, ...]]]) -> list[Any]:
    found = []
    for who, operation in program:
        answer = pair[who](*operation)
        found.append((who, operation, answer))
    for who in range(2):
        pair[who]("close_all")
    return found


OPEN = [(who, ("open", slot)) for who in (0, 1) for slot in (0, 1)]


@settings(
    max_examples=draws.sized(25, 200),
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(program=PROGRAMS)
def test_random_programs(lockers: Lockers, program: list[tuple[int, tuple[Any, ...]]]) -> None:
    expected = {like: run(lockers.pairs[like], OPEN + program) for like in set(LIKE.values())}
    for name, like in LIKE.items():
        assert run(lockers.pairs[name], OPEN + program) == expected[like], name


SH, EX, UN = "LOCK_SH", "LOCK_EX", "LOCK_UN"
TRY: list[tuple[int, tuple[Any, ...]]] = [(1, ("flock", 0, EX)), (1, ("flock", 0, UN))]
READ = ("fcntl", 0, "F_SETLK", "F_RDLCK", 0, 0)
# F_OFD_GETLK asks for a write lock, because a read lock would not conflict with another read lock.
ASK = (1, ("fcntl", 0, "F_OFD_GETLK", "F_WRLCK", 0, 0))
SCENES: dict[str, list[tuple[int, tuple[Any, ...]]]] = {
    "flock_and_close": [(0, ("flock", 0, EX)), *TRY, (0, ("close", 0)), *TRY],
    "dup_before": [(0, ("dup", 0, 2)), (0, ("flock", 0, EX)), (0, ("close", 0)), *TRY,
                   (0, ("close", 2)), *TRY],
    "dup_after": [(0, ("flock", 0, EX)), (0, ("dup", 0, 2)), (0, ("close", 0)), *TRY,
                  (0, ("flock", 2, UN)), *TRY],
    "dup_unlocks": [(0, ("dup", 0, 2)), (0, ("flock", 0, EX)), (0, ("flock", 2, UN)), *TRY],
    "dup2_over": [(0, ("flock", 0, EX)), *TRY, (0, ("dup2", 1, 0)), *TRY],
    "fork_keeps": [(0, ("flock", 0, EX)), (0, ("forked", 0, "")), *TRY],
    "fork_unlocks": [(0, ("flock", 0, EX)), (0, ("forked", 0, UN)), *TRY],
    "fork_converts": [(0, ("flock", 0, SH)), (0, ("forked", 0, EX)), (1, ("flock", 0, SH))],
    "spawn_keeps": [(0, ("flock", 0, EX)), (0, ("spawned", 0)), *TRY, (0, ("flock", 0, UN)), *TRY],
    "shared": [(0, ("flock", 0, SH)), (1, ("flock", 0, SH)), (0, ("flock", 0, EX)),
               (1, ("close", 0)), (0, ("flock", 0, EX))],
    "two_descriptors": [(0, ("flock", 0, EX)), (0, ("flock", 1, SH))],
    "posix": [(0, READ), ASK, (0, ("close", 0)), ASK],
    "posix_any_descriptor": [(0, READ), (0, ("close", 1)), ASK],
    "posix_other": [(0, READ), (0, ("other", 0)), ASK],
    "posix_stream": [(0, READ), (0, ("streamed", 0)), ASK],
    "posix_spawn": [(0, READ), (0, ("spawned", 0)), ASK],
    "posix_at_the_offset": [(0, ("seek", 0, 7)), (0, (*READ[:4], 2, 5, "SEEK_CUR")), ASK],
    "lockf": [(0, ("lockf", 0, "F_LOCK", 0)), (0, ("lockf", 0, "F_TEST", 0))],
    "lease": [(0, ("close", 1)), (1, ("close", 0)), (1, ("close", 1)), (0, ("lease", 0, "F_RDLCK")),
              (0, ("lease", 0, "F_UNLCK"))],
}  # fmt: skip


@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("scene", SCENES)
def test_scenes(lockers: Lockers, scene: str, name: str) -> None:
    program = OPEN + SCENES[scene]
    assert run(lockers.pairs[name], program) == run(lockers.pairs[LIKE[name]], program)


def backing_descriptors(process: Commands) -> list[str]:
    """Returns, for each backing descriptor of the process, the path of its file. Backing
    descriptors have numbers from 500 on."""
    fds = f"/proc/{process.process.pid}/fd"
    return [os.readlink(f"{fds}/{fd}") for fd in os.listdir(fds) if int(fd) >= 500]


def test_what_stands_behind_a_copy_goes_with_it(lockers: Lockers) -> None:
    locker = lockers.pairs["both"][0]
    locker("open", 0)
    assert backing_descriptors(locker) == []
    assert locker("flock", 0, EX) is None
    assert backing_descriptors(locker) == [str(lockers.file.with_name("both"))]
    locker("dup", 0, 1)
    assert len(backing_descriptors(locker)) == 2
    locker("spawned", 0)
    assert len(backing_descriptors(locker)) == 2
    locker("close_all")
    assert backing_descriptors(locker) == []


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_locks_end_with_their_process(lockers: Lockers, end: str) -> None:
    path = lockers.file.with_name("both")
    with (
        Commands(lockers.session, "lock_steps.py", path, os.O_RDONLY) as holder,
        Commands(lockers.session, "lock_steps.py", path, os.O_RDONLY, preload=False) as other,
    ):
        holder("open", 0)
        other("open", 0)
        assert holder("flock", 0, EX) is None
        assert other("flock", 0, EX) == "EAGAIN"
        if end == "kill":
            holder.process.kill()
        else:
            assert holder.process.stdin is not None
            holder.process.stdin.close()
            holder.process.stdin = None
        holder.process.wait(timeout=20)
        assert other("flock", 0, EX) is None


@pytest.mark.parametrize("way", ["flock", "fcntl", "dup"])
def test_after_a_lock_the_reader_sees_what_was_written(
    session_factory: Callable[..., Session], tmp_path: Path, way: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("old content")
    session = session_factory(source).start()
    session.wait_all_present()
    with Commands(session, "lock_steps.py", source / "file", os.O_RDONLY) as reader:
        reader("open", 0)
        reader("dup", 0, 1)
        assert reader("read", 0) == "old content"
        assert "/c/" in os.readlink(f"/proc/{reader.process.pid}/fd/3")  # the path of a copy
        (source / "file").write_text("what a writer without the library wrote")
        if way == "fcntl":
            assert reader("fcntl", 0, "F_SETLK", "F_RDLCK", 0, 0)[0] == 0
        else:
            assert reader("flock", 0, SH) is None
        seen = reader("read", 1 if way == "dup" else 0)
        assert seen == "what a writer without the library wrote"
        reader("open", 2)
        assert reader("read", 2) == seen


H5PY = """
import h5py, sys
with h5py.File(sys.argv[1], "r", locking=True) as file:
    print(file["x"][:].sum(), flush=True)
    sys.stdin.readline()
"""


def test_h5py_locks_writers_out(session_factory: Callable[..., Session], tmp_path: Path) -> None:
    if find_spec("h5py") is None:
        pytest.skip("h5py is missing: install the extra 'programs'")
    import h5py

    source = tmp_path / "source"
    source.mkdir()
    with h5py.File(source / "store.h5", "w") as file:
        file["x"] = list(range(100))
    session = session_factory(source).start()
    session.wait_all_present()
    write = "import h5py, sys; h5py.File(sys.argv[1], 'a', locking=True)"
    reader = subprocess.Popen(
        [sys.executable, "-c", H5PY, source / "store.h5"],
        env=session.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "4950\n"
        writer = [sys.executable, "-c", write, str(source / "store.h5")]
        refused = session.run(writer, preload=False)
        assert refused.returncode != 0 and "lock" in refused.stderr
        reader.communicate("go\n", timeout=60)
        assert reader.returncode == 0
        assert session.run(writer, preload=False).returncode == 0
    finally:
        reader.kill()
        reader.communicate()


# daemon(3) forks inside libc, where the library does not intercept the fork. The child then takes a
# lock through a descriptor that it has inherited.
DETACHED = """
import ctypes, fcntl, os, sys
first, second = (open(path) for path in sys.argv[1:])
fcntl.flock(first, fcntl.LOCK_SH)
assert ctypes.CDLL(None).daemon(1, 1) == 0
fcntl.flock(second, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.readline()
"""


def test_a_child_of_a_fork_inside_libc_locks_at_the_source(
    session_factory: Callable[..., Session], tree: Path
) -> None:
    session = session_factory(tree).start()
    session.wait_all_present()
    paths = [str(tree / "a/f1"), str(tree / "a/f2")]
    started = subprocess.Popen(
        [sys.executable, "-c", DETACHED, *paths],
        env=session.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "locked\n"
        assert session.run(["flock", "-n", paths[1], "true"], preload=False).returncode == 1
    finally:
        started.communicate("go\n", timeout=60)  # ends the child, if it still runs
    assert session.run(["flock", "-n", paths[1], "true"], preload=False).returncode == 0
