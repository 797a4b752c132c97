"""If the session's directory or a part of it is removed while a daemon serves, the daemon ends, and
no program reads old copies. This happens if the epilogue of a batch system empties shared memory,
or if systemd empties it when the user logs out (RemoveIPC).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.draws import cases
from support.files import Files
from support.segments import is_changed, segments
from support.session import Session, wait_until
from support.steps import Steps
from support.watch import settle

from monarch_py.storage.tiers import tier_root

# The daemon must end within this time [s]. An idle daemon checks its session once a second.
NOTICED_S = 5.0
# At each step, opens the file again, and reports the path of the descriptor and the file's first
# bytes.
REOPEN = """
while True:
    fd = os.open(sys.argv[1], os.O_RDONLY)
    found = os.readlink(f"/proc/self/fd/{fd}"), os.read(fd, 100).decode("latin-1")
    os.close(fd)
    if not step(*found):
        break
"""
WRITE = "import sys; open(sys.argv[1], 'r+b').write(b'new content')"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(5, 3000)


def assert_said(line: str, lost: Path) -> None:
    assert line.startswith(f"monarch: the daemon has ended because {lost} was removed or replaced")


def test_the_whole_directory(session_factory: Callable[..., Session], files: Files) -> None:
    session = session_factory(files.root)
    assert session.monarch("start").returncode == 0
    daemon = psutil.Process(session.status()["pid"])
    path = files.path("f00001")
    settle(session)
    with Steps(session, REOPEN, path) as process:
        assert process.wait()[0] != str(path)
        shutil.rmtree(session.paths.path)
        session.python(WRITE, path)
        wait_until(lambda: not daemon.is_running(), timeout=NOTICED_S, what="the daemon's end")
        # The log was removed too, so the daemon has made a new one.
        assert_said(session.paths.log.read_text(), session.paths.control)
        process.go()
        opened, content = process.wait()
        assert opened == str(path)
        assert content.startswith("new content")
        assert not list((tier_root(session.tiers[0]) / "c").glob("*"))
        session.start()
        settle(session)

        def is_served() -> bool:
            process.go()
            opened, content = process.wait()
            assert content.startswith("new content")
            return str(opened) != str(path)

        wait_until(is_served, what="a copy by the new daemon", every=0.1)


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("other"))
    path.with_name("other").replace(path)


PARTS = ["clients", "catalog", "socket", "control replaced"]


# Without --long, one file is removed, and one file is replaced.
@pytest.mark.parametrize("part", cases(PARTS, ["catalog", "control replaced"]))
def test_a_part_of_it(session_factory: Callable[..., Session], files: Files, part: str) -> None:
    session = session_factory(files.root).start()
    settle(session)
    name, _, is_replaced = part.partition(" ")
    path = next(session.paths.path.glob(f"{name}*"))
    replace(path) if is_replaced else path.unlink()
    daemon = session.daemon
    assert daemon is not None
    wait_until(lambda: daemon.poll() is not None, timeout=NOTICED_S, what="the daemon's end")
    assert daemon.returncode == 3
    assert_said(session.log.read_text().splitlines()[-1], path)
    session.start()


def test_a_change_after_a_daemon_was_killed_and_its_session_removed(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root)
    script = (
        "step(); fd = os.open(sys.argv[1], os.O_WRONLY); step(os.write(fd, b'new')); os.close(fd)"
    )
    with segments(session, killed=True), Steps(session, script, files.path("f00000")) as process:
        process.wait()
        shutil.rmtree(session.paths.path)
        with segments(session) as daemon:
            process.go()
            assert process.wait() == [3]
            assert is_changed(daemon, files.path("f00000"))


def test_a_process_that_only_reads_leaves_a_removed_session_by_itself(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root).start()
    settle(session)
    path = files.path("f00001")
    with Steps(session, REOPEN, path) as process:
        assert process.wait()[0] != str(path)
        session.kill()
        process.go()
        assert process.wait()[0] != str(path)
        shutil.rmtree(session.paths.path)
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))

        def is_of_now() -> bool:
            process.go()
            return list(process.wait()) == [str(path), ""]

        wait_until(is_of_now, timeout=NOTICED_S, what="the source's file", every=0.1)
