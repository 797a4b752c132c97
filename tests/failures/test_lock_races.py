"""Tests of POSIX locks while the library closes its own descriptor of the same file."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from csrc.building import build_program
from support.files import Files
from support.session import IN_UNITS, MIB, Session, wait_until


def build(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    sources = [Path(__file__).with_name(source) for source in (f"{name}.c", "hold.c")]
    return build_program(tmp_path_factory.mktemp("race") / name, *sources, flags=["-pthread"])


@pytest.fixture(scope="module")
def lock_race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory, "lock_race")


@pytest.fixture(scope="module")
def lock_crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory, "lock_crowd")


@pytest.mark.parametrize("change", ["lock", "unlock", "convert", "wait"])
def test_locks_are_what_they_were_made_while_a_lock_is_put_on_a_copy(
    session_factory: Callable[..., Session], tmp_path: Path, lock_race: Path, change: str
) -> None:
    """The kernel drops all POSIX locks that a process has on a file when the process closes any
    descriptor of this file. The program's locks must stay as they are, even if another thread locks
    a copy and the library then closes a descriptor (see lock_race.c)."""
    files = Files(tmp_path / "source")
    files.add("a", 1000)
    session = session_factory(files.root).start()
    session.wait_all_present()
    found = []
    for preload in (True, False):
        done = subprocess.run(
            [lock_race, change, files.path("a")],
            env=session.env(preload),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode == 77:
            pytest.skip(f"seccomp filters cannot notify a listener here: {done.stderr}")
        assert (done.returncode, done.stderr) == (0, "")
        is_held, *locks = done.stdout.splitlines()
        assert bool(int(is_held)) == preload, (
            "without the library, a close was held; or with it, no close was held"
        )
        found.append(locks)
    assert found[0] == found[1]
    assert found[1] == ["0 free", "100 free" if change == "unlock" else "100 locked"]


@pytest.mark.parametrize("way", ["flock", "fcntl"])
def test_a_lock_that_meets_a_promotion_is_on_the_file(
    session_factory: Callable[..., Session],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    way: str,
) -> None:
    """A lock that is taken during a promotion must be on the source's file, so that other programs
    find it (see promoted_lock.c)."""
    program = build(tmp_path_factory, "promoted_lock")
    files = Files(tmp_path / "source")
    files.add("a", 3 * MIB)
    session = session_factory(files.root, **IN_UNITS).start()
    session.wait_scanned()
    with subprocess.Popen(
        [program, way, files.path("a")],
        env=session.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        wait_until(lambda: session.status()["sources"][0]["present"], what="the copy")
        said, _ = process.communicate("\n")
    if process.returncode == 77:
        pytest.skip("seccomp filters cannot notify a listener here")
    assert (process.returncode, said) == (0, "1 locked\n")


@pytest.mark.parametrize("call", ["fcntl", "lockf"])
def test_a_lock_that_is_doubtful_every_time_is_refused(
    session_factory: Callable[..., Session], tmp_path: Path, lock_crowd: Path, call: str
) -> None:
    """The library repeats a lock call if a close in the meantime may have dropped the lock. If this
    happens at every try, fcntl and lockf fail with ENOLCK (see lock_crowd.c)."""
    files = Files(tmp_path / "source")
    files.add("a", 1000)
    files.add("b", 1000)
    session = session_factory(files.root).start()
    session.wait_all_present()
    done = session.run([lock_crowd, call, files.path("a"), files.path("b")])
    if done.returncode == 77:
        pytest.skip(f"seccomp filters cannot notify a listener here: {done.stderr}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["ENOLCK", "0", "done"]
