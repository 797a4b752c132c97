"""If there is no daemon to which the library can attach, the library reports this once and does
nothing else."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.draws import cases, sized
from support.files import Files, Loop, check_all, digest
from support.session import Session, wait_until
from support.watch import settle

from monarch_py.native import ffi, lib

# A job of many processes: a shell, a pipe, a shell started by the shell, Python, and processes that
# Python starts or forks.
JOB = """
cat "$1"/f00000 | sha256sum
ls "$1" | wc -l
(sh -c 'sha256sum "$0"/f00001' "$1")
"$2" -c '
import os, subprocess, sys
print(len(open(sys.argv[1] + "/f00002", "rb").read()), flush=True)
for i in range(3):
    subprocess.run(["sh", "-c", "cat $0 | sha256sum", sys.argv[1] + "/f00003"], check=True)
if os.fork() == 0:
    os.execvp("sha256sum", ["sha256sum", sys.argv[1] + "/f00001"])
os.wait()
' "$1"
cat "$1"/nothing
exit 7
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(6, 4000)


def run_job(
    session: Session, files: Files, env: Mapping[str, str], *, preload: bool = True
) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", JOB, "job", str(files.root), sys.executable]
    return session.run(words, preload=preload, env=env)


def check_job(session: Session, files: Files, says: list[str], **env: str) -> None:
    """Checks that the job ends as it does without the library. For each text in `says`, the library
    must print one line that contains the text."""
    plain, found = run_job(session, files, {}, preload=False), run_job(session, files, env)
    assert (found.returncode, found.stdout) == (7, plain.stdout)
    ours = [line for line in found.stderr.splitlines() if line.startswith("monarch: ")]
    others = [line for line in found.stderr.splitlines() if not line.startswith("monarch: ")]
    assert others == plain.stderr.splitlines()
    assert len(ours) == len(says), ours
    for line, text in zip(ours, says, strict=True):
        assert text in line


def test_a_configuration_that_is_missing_is_said_once(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files
) -> None:
    session = session_factory(files.root)
    missing = str(tmp_path / "missing.yaml")
    check_job(
        session, files, [f"MONARCH_CONFIG names a file that cannot be found: {missing}"],
        MONARCH_CONFIG=missing,
    )  # fmt: skip
    check_job(
        session, files, [f"MONARCH_SITE_CONFIG names a file that cannot be found: {missing}"],
        MONARCH_CONFIG="", MONARCH_SITE_CONFIG=missing,
    )  # fmt: skip


def test_our_own_command_says_itself_what_is_missing(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files
) -> None:
    """The library prints no message in a shell script that is named `monarch`. Monarch's own
    command has this name too, and prints its own message about what is missing."""
    session = session_factory(files.root)
    script, other = tmp_path / "monarch", tmp_path / "other"
    for file in (script, other):
        file.write_text("#!/bin/sh\n:\n")
        file.chmod(0o755)
    missing = {"MONARCH_CONFIG": str(tmp_path / "missing.yaml")}
    assert session.run([str(script)], env=missing).stderr == ""
    assert session.run([str(other)], env=missing).stderr.count("monarch: ") == 1


def test_no_daemon_is_said_once(session_factory: Callable[..., Session], files: Files) -> None:
    session = session_factory(files.root)
    check_job(session, files, [f"no daemon serves {session.config}"])


def test_after_a_daemon_was_stopped_nothing_is_said(
    session_factory: Callable[..., Session], files: Files
) -> None:
    """After `monarch stop`, the library prints no message about the missing daemon, neither in a
    shell nor in the commands that the shell starts."""
    session = session_factory(files.root)
    session.start().stop()
    assert session.paths.stopped.exists()
    check_job(session, files, [])
    session.start()
    assert not session.paths.stopped.exists()


def test_a_wrapper_that_becomes_the_job_does_not_say_it_twice(
    session_factory: Callable[..., Session], files: Files
) -> None:
    """If a job script ends with `exec`, its process loads the library a second time, but reports
    only once that no daemon serves."""
    session = session_factory(files.root)
    done = session.run(["sh", "-c", f"exec env nice cat {files.path('f00000')} > /dev/null"])
    assert done.returncode == 0
    assert done.stderr.count("monarch: ") == 1, done.stderr


def test_without_a_configuration_nothing_is_said(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root)
    check_job(session, files, [], MONARCH_CONFIG="")


def test_a_job_finds_the_daemon_that_starts_under_it(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files
) -> None:
    session = session_factory(files.root)
    with Loop(session, files, tmp_path) as loop:
        loop.wait_passes(2)
        session.start()
        wait_until(lambda: session.totals()["hits"] > 0, what="hits of the running job")
        loop.wait_passes(2)
        assert loop.process.stdin is not None
        loop.process.stdin.close()
        assert loop.process.wait(timeout=30) == 0
        assert loop.said().count("\n") == 1
        assert f"no daemon serves {session.config}" in loop.said()


@pytest.mark.parametrize("value", cases(["1", "yes", "true"], ["yes"]))
def test_disabled_it_does_nothing(
    session_factory: Callable[..., Session], files: Files, value: str
) -> None:
    session = session_factory(files.root).start()
    settle(session)
    opens = session.totals()["opens"]
    check_job(session, files, [], MONARCH_DISABLE=value)
    assert session.totals()["opens"] == opens
    maps = session.run(["cat", "/proc/self/maps"], env={"MONARCH_DISABLE": value}).stdout
    assert "libmonarch.so" in maps
    assert str(session.shm) not in maps
    check_job(session, files, [], MONARCH_DISABLE="0")
    assert session.totals()["opens"] > opens


def test_a_switch_file_turns_a_running_job_off_and_on(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files
) -> None:
    switch = tmp_path / "off"
    session = session_factory(files.root, switch_file=str(switch)).start()
    settle(session)

    def hits() -> int:
        return int(session.totals()["hits"])

    def none_for_a_while() -> bool:
        before = hits()
        loop.wait_passes(3)
        return hits() == before

    with Loop(session, files, tmp_path) as loop:
        loop.wait_passes(1)
        assert hits() > 0
        for _ in range(sized(1, 2)):
            switch.touch()
            started = time.monotonic()
            wait_until(none_for_a_while, what="reads from the source")
            assert time.monotonic() - started < 20
            wait_until(lambda: session.status()["switched_off"], what="the daemon's reaction")
            check_all(session, files)
            assert none_for_a_while()
            switch.unlink()
            wait_until(lambda: not none_for_a_while(), what="reads from the copies")
        loop.end()
    # The library is switched off, and a program changes a file. When the library is switched on
    # again, the file must not be read from its old copy.
    switch.touch()
    changed = files.path("f00002")
    session.python("import sys; open(sys.argv[1], 'wb').write(b'new')", changed)
    files.digests["f00002"] = digest(b"new")
    check_all(session, files)
    switch.unlink()
    wait_until(lambda: not session.status()["switched_off"], what="the daemon's reaction")
    check_all(session, files)


@pytest.mark.parametrize("case", cases([(-1, -8), (1, 0), (1, 4096)], [(-1, -8), (1, 4096)]))
def test_another_version_is_said_once(
    session_factory: Callable[..., Session], files: Files, case: tuple[int, int]
) -> None:
    """The library reports once that the daemon has another version. The first number of `case` is
    added to the version, and the second to the size of the daemon's segment [bytes]. An older
    version may have a smaller segment."""
    version, size = case
    session = session_factory(files.root).start()
    session.kill()
    at = ffi.offsetof("struct monarch_control", "version")
    with session.paths.control.open("r+b") as control:
        control.seek(at)
        control.write((lib.MONARCH_VERSION + version).to_bytes(4, "little"))
        control.truncate(ffi.sizeof("struct monarch_control") + size)
    check_job(session, files, ["another version than libmonarch.so"])
