"""If the source fails, lacks files or is unmounted, programs see the same as without Monarch."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import users
from support.files import READ_ALL, Files, Loop, check_all, read_all, same_without
from support.session import MIB, Session, wait_until
from support.users import environment, ours
from support.watch import assert_quiet, settle

from monarch_py.demo.slowsource import SlowSource

NOBODY = users.ALICE


@pytest.fixture
def files(source: SlowSource) -> Files:
    made = Files(source.backing).add_many(20, 30_000)
    seen = Files(source.mountpoint)
    seen.digests = made.digests
    return seen


def _ends(session: Session, command: list[str], status: int) -> bool:
    return session.run(command).returncode == status


def test_a_missing_file_is_missing(session_factory: Callable[..., Session], tree: Path) -> None:
    session = session_factory(tree).start()
    session.wait_scanned()
    (tree / "a/f1").unlink()  # the file is in the catalog, but has no copy
    shutil.rmtree(tree / "a/b")
    for name in ("nothing", "a/f1", "a/b/f2", "a/f2/below_a_file", "to_file", "to_directory/f1"):
        done = same_without(session, ["cat", str(tree / name)])
        assert done.returncode == 1, name
        # Until the daemon has tried to fill the file, `stat` shows the attributes that the scan has
        # found.
        look = ["stat", "-c", "%n %s %i", str(tree / name)]
        here = session.run(look, preload=False).returncode
        wait_until(partial(_ends, session, look, here), what=f"what {name} is")
        same_without(session, look)
    # Three files were in the catalog and could not be filled: a/f1, a/b/f2 and a/b/f1. The last one
    # was opened through a link.
    wait_until(
        lambda: session.status()["sources"][0]["bypass"] == {"changed": 3}, what="the lost files"
    )
    session.want_all()
    same_without(session, ["sh", "-c", f"cd {tree} && sha256sum a/* c/* large empty"])


def test_what_a_program_itself_removes_is_gone_at_once(
    session_factory: Callable[..., Session], tree: Path
) -> None:
    session = session_factory(tree).start()
    session.wait_all_present()
    script = (
        "import os, sys\n"
        "path = sys.argv[1]\n"
        "assert open(path, 'rb').read()\n"
        "os.unlink(path)\n"
        "try: open(path)\n"
        "except FileNotFoundError: print('gone')\n"
    )
    assert session.python(script, tree / "large") == "gone\n"
    same_without(session, ["cat", str(tree / "large")])


def test_errors_of_the_source_are_the_programs_own(
    session_factory: Callable[..., Session], tmp_path: Path, source: SlowSource, files: Files
) -> None:
    session = session_factory(files.root).start()
    session.wait_scanned()
    source.fail(errno.EIO)
    for name in list(files.digests)[:3]:
        done = same_without(session, ["cat", str(files.path(name))])
        assert done.returncode == 1
        assert "Input/output error" in done.stderr
    source.fail(0)
    found = settle(session)
    assert found["present"] + found.get("failed", 0) == 20
    check_all(session, files)
    # While the source fails, a process that has used the source before still reads the copies.
    left = Files(files.root)
    left.digests = dict(list(files.digests.items())[3:])
    with Loop(session, left, tmp_path) as loop:
        loop.wait_passes(1)
        source.fail(errno.EIO)
        loop.wait_passes(3)
        source.fail(0)
        loop.end()
    assert_quiet(session)


def test_a_source_that_fails_in_the_middle_of_a_fill(
    session_factory: Callable[..., Session], source: SlowSource, files: Files
) -> None:
    behind = Files(source.backing)
    behind.add("large", 8 * MIB)
    files.digests |= behind.digests
    session = session_factory(files.root).start()
    session.wait_scanned()
    source.rate(8 * MIB)
    session.python("import sys; open(sys.argv[1]).close()", files.path("large"))
    source.reset()
    wait_until(lambda: source.counts()["bytes_read"] > MIB, what="the beginning of the fill")
    source.fail(errno.EIO)
    wait_until(
        lambda: session.status()["sources"][0]["bypass"] == {"failed": 1}, what="the failed fill"
    )
    source.fail(0)
    source.rate(0)
    assert not list((session.tiers[0] / f"monarch-{os.geteuid()}" / "c").iterdir())
    check_all(session, files)


def test_the_source_is_unmounted_in_the_middle(
    session_factory: Callable[..., Session],
    tmp_path: Path,
    slowsource_binary: Path,
) -> None:
    mountpoint, backing = tmp_path / "place", tmp_path / "behind"
    mountpoint.mkdir()
    behind = Files(backing).add_many(20, 30_000)
    files = Files(mountpoint)
    with SlowSource(backing, mountpoint, binary=slowsource_binary) as source:
        files.digests = dict(list(behind.digests.items())[:10])
        session = session_factory(files.root).start()
        session.wait_scanned()
        with Loop(session, files, tmp_path) as loop:
            wait_until(
                lambda: session.status()["sources"][0]["present"] == 10, what="half of the copies"
            )
            loop.wait_passes(1)
            source.__exit__(None, None, None)
            # A process that has read the files before still reads the copies.
            loop.wait_passes(2)
            loop.end()
        # The source is not mounted now, so a new process sees the empty directory of the mount
        # point.
        assert read_all(session, files.root) == {}
        for name in list(behind.digests)[5:15]:
            assert same_without(session, ["cat", str(files.path(name))]).returncode == 1
        assert_quiet(session)
        with SlowSource(backing, mountpoint, binary=slowsource_binary):
            assert len(read_all(session, files.root)) == 20
            files.digests = behind.digests
            check_all(session, files)
            assert session.monarch("status").returncode == 0
        session.stop()


# --- as another user -------------------------------------------------------------------------


open_place = pytest.fixture(users.open_place)


def as_nobody(*argv: str | Path) -> list[str]:
    return users.as_user(NOBODY, *argv)


@pytest.fixture(scope="module")
def python() -> str:
    return users.python_for_all()


@pytest.fixture
def guarded(open_place: Path) -> Files:
    files = Files(open_place / "source").add_many(4, 5000)
    files.path("f00001").chmod(0o600)
    files.add("closed/inside", 5000)
    files.path("closed").chmod(0o700)
    files.add("readable_below/inside", 5000)
    files.path("readable_below").chmod(0o711)
    return files


def test_another_user_gets_no_file_that_is_not_theirs_from_our_copies(
    session_factory: Callable[..., Session], open_place: Path, guarded: Files, python: str
) -> None:
    place = open_place / "session"
    place.mkdir()
    session = session_factory(guarded.root, directory=place).start()
    settle(session)
    check_all(session, guarded)
    reading = [python, *READ_ALL[1:], str(guarded.root)]
    runs = [
        session.run(as_nobody(*words, *reading), preload=False) for words in (ours(session), [])
    ]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].returncode == runs[1].returncode == 0
    # No daemon serves the other user under this configuration, and the library says so.
    assert runs[0].stderr.count("\n") == 1
    assert "no daemon serves" in runs[0].stderr
    assert "EACCES" in runs[0].stdout
    # A process that attaches as our user, and then becomes the other user, must see the same files
    # with and without the library.
    script = (
        "import os, sys\n"
        "open(sys.argv[2], 'rb').read()\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "for path in sys.argv[1:]:\n"
        "    try: print(len(open(path, 'rb').read()))\n"
        "    except OSError as error: print(error)\n"
    )
    names = ["f00001", "f00000", "closed/inside", "readable_below/inside"]
    paths = [str(guarded.path(name)) for name in names]
    same_without(session, [sys.executable, "-I", "-S", "-c", script, *paths])


def test_a_whole_session_as_an_ordinary_user(
    session_factory: Callable[..., Session], open_place: Path, guarded: Files, python: str
) -> None:
    place = open_place / "session"
    place.mkdir()
    (place / "tier0").mkdir()
    session = session_factory(guarded.root, directory=place)
    for path in (place, place / "tier0", place / "shm"):
        os.chown(path, NOBODY, NOBODY)
    env = environment(session)

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=60, check=False
        )

    def monarch(*words: str) -> list[str]:
        return as_nobody(python, *session.command(*words)[1:])

    def source_status() -> dict[str, Any]:
        said = run(monarch("status", "--json"))
        found: dict[str, Any] = json.loads(said.stdout)["sources"][0] if not said.returncode else {}
        return found

    with (
        (place / "daemon.log").open("w") as log,
        subprocess.Popen(monarch("serve"), env=env, stdout=log, stderr=log) as daemon,
    ):
        try:
            # `status` starts a process each time, so the test polls slowly.
            wait_until(lambda: source_status().get("scanned"), what="the daemon's scan", every=0.3)
            reading = [python, *READ_ALL[1:], str(guarded.root)]
            expected = run(as_nobody(*reading))
            assert "EACCES" in expected.stdout
            for _ in range(2):
                found = run(as_nobody(*ours(session), *reading))
                assert (found.returncode, found.stderr) == (0, "")
                assert found.stdout == expected.stdout
                wait_until(
                    lambda: source_status()["present"] == 3, what="the end of all fills", every=0.3
                )
            status = source_status()
            # Two directories cannot be listed, and one file cannot be read.
            assert (status["scan_errors"], status["bypass"]) == (2, {"failed": 1})
            assert (place / "shm" / f"monarch-{NOBODY}").stat().st_mode & 0o777 == 0o700
        finally:
            daemon.terminate()
    assert "Traceback" not in (place / "daemon.log").read_text()
