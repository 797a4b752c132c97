"""Where there is nothing to attach to, the library says so once and does nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.files import READ_ALL, Files, Loop, check_all
from support.session import Session, wait_until
from support.watch import settle

from monarch_py.native import ffi, lib

# A job of many processes: a shell, a pipe, Python, what Python starts and forks, a shell in a shell.
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
    session: Session, files: Files, *, preload: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", JOB, "job", str(files.root), sys.executable]
    return session.run(words, preload=preload, env=env)


def check_job(session: Session, files: Files, says: list[str], **env: str) -> None:
    """The job ends as without the library; it says these lines besides, each holding a text."""
    plain, found = run_job(session, files, preload=False), run_job(session, files, **env)
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
        session, files, [f"MONARCH_CONFIG names no file that can be found: {missing}"],
        MONARCH_CONFIG=missing,
    )  # fmt: skip


def test_no_daemon_is_said_once(session_factory: Callable[..., Session], files: Files) -> None:
    session = session_factory(files.root)
    check_job(session, files, [f"no daemon serves {session.config}"])
    session.start().stop()  # ended as it should: the same
    check_job(session, files, [f"no daemon serves {session.config}"])


def test_a_wrapper_that_becomes_the_job_does_not_say_it_twice(
    session_factory: Callable[..., Session], files: Files
) -> None:
    """`exec` at the end of a job script: one process, the library loaded twice."""
    session = session_factory(files.root)
    done = session.run(["sh", "-c", f"exec env nice cat {files.path('f00000')} > /dev/null"])
    assert done.returncode == 0
    assert done.stderr.count("monarch: ") == 1


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


@pytest.mark.parametrize("value", ["1", "yes", "true"])
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
        for _ in range(2):
            switch.touch()
            started = time.monotonic()
            wait_until(none_for_a_while, what="reads from the source")
            assert time.monotonic() - started < 5
            assert session.status()["switched_off"]
            check_all(session, files)
            assert none_for_a_while()
            switch.unlink()
            before = hits()
            wait_until(lambda: hits() > before, timeout=5, what="reads from the copies")
            assert not session.status()["switched_off"]
        loop.end()
    # What changes while everything is off must not come from an old copy later.
    switch.touch()
    changed = files.path("f00002")
    session.python("import sys; open(sys.argv[1], 'wb').write(b'new')", changed)
    files.digests["f00002"] = Files(tmp_path / "twin").digests.setdefault(
        "f00002", "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437"
    )
    check_all(session, files)
    switch.unlink()
    wait_until(lambda: not session.status()["switched_off"], what="the daemon's look at it")
    check_all(session, files)


# --- segments that are not what they should be ---------------------------------------------------


@pytest.fixture
def abandoned(session_factory: Callable[..., Session], files: Files) -> Session:
    """The segments of a killed daemon: nobody but the clients uses them."""
    session = session_factory(files.root).start()
    settle(session)
    check_all(session, files)
    session.kill()
    check_all(session, files)
    return session


def put(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_another_version_is_said_once(abandoned: Session, files: Files) -> None:
    at = ffi.offsetof("struct monarch_control", "version")
    put(abandoned.paths.control, at, (lib.MONARCH_VERSION + 1).to_bytes(4, "little"))
    check_job(abandoned, files, ["another version than libmonarch.so"])


def catalog_of(session: Session) -> Path:
    return next(session.paths.path.glob("catalog.*"))


def control_cut(session: Session) -> None:
    os.truncate(session.paths.control, 100)


def control_empty(session: Session) -> None:
    os.truncate(session.paths.control, 0)


def control_garbage(session: Session) -> None:
    path = session.paths.control
    path.write_bytes(os.urandom(path.stat().st_size))


def control_of_another_program(session: Session) -> None:
    put(session.paths.control, 0, b"\0" * 8)


def control_counts(session: Session) -> None:
    for field in ("sources", "tiers"):
        put(session.paths.control, ffi.offsetof("struct monarch_control", field), b"\xff" * 4)


def control_lengths(session: Session) -> None:
    """Longer paths than there is room for: of copies, which are put together in a buffer."""
    at = ffi.offsetof("struct monarch_control", "tier")
    at += ffi.offsetof("struct monarch_tier", "path_len")
    put(session.paths.control, at, b"\xff\xff\xff\x7f")


def control_open_to_others(session: Session) -> None:
    session.paths.control.chmod(0o644)


def control_of_another_user(session: Session) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a file away: run the tests as root")
    os.chown(session.paths.control, 65534, 65534)


def control_a_link(session: Session) -> None:
    path = session.paths.control
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def control_a_fifo(session: Session) -> None:
    session.paths.control.unlink()
    os.mkfifo(session.paths.control, 0o600)


def clients_gone(session: Session) -> None:
    session.paths.clients.unlink()


def clients_cut(session: Session) -> None:
    os.truncate(session.paths.clients, 4096)


def clients_garbage(session: Session) -> None:
    put(session.paths.clients, 0, os.urandom(4096))


def catalog_gone(session: Session) -> None:
    catalog_of(session).unlink()


def catalog_cut(session: Session) -> None:
    os.truncate(catalog_of(session), 4096)


def catalog_garbage(session: Session) -> None:
    path = catalog_of(session)
    path.write_bytes(os.urandom(path.stat().st_size))


def catalog_zeros(session: Session) -> None:
    path = catalog_of(session)
    path.write_bytes(bytes(path.stat().st_size))


def catalog_offsets(session: Session) -> None:
    """A header that is none behind the right magic and size."""
    at = ffi.offsetof("struct monarch_catalog", "capacity")
    put(catalog_of(session), at, os.urandom(ffi.sizeof("struct monarch_catalog") - at))


def catalog_entries(session: Session) -> None:
    """Everything behind a sound header is garbage."""
    path, at = catalog_of(session), ffi.sizeof("struct monarch_catalog")
    put(path, at, os.urandom(path.stat().st_size - at))


def directory_gone(session: Session) -> None:
    shutil.rmtree(session.paths.path)


DAMAGES = [
    control_cut,
    control_empty,
    control_garbage,
    control_of_another_program,
    control_counts,
    control_lengths,
    control_open_to_others,
    control_of_another_user,
    control_a_link,
    control_a_fifo,
    clients_gone,
    clients_cut,
    clients_garbage,
    catalog_gone,
    catalog_cut,
    catalog_garbage,
    catalog_zeros,
    catalog_offsets,
    catalog_entries,
    directory_gone,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_segments_harm_nobody(
    abandoned: Session, files: Files, damage: Callable[[Session], None]
) -> None:
    damage(abandoned)
    plain = abandoned.run([*READ_ALL, str(files.root)], preload=False)
    found = abandoned.run([*READ_ALL, str(files.root)])
    assert (found.returncode, found.stdout) == (0, plain.stdout)
    assert found.stderr.count("\n") <= 1
    # And the next daemon starts among the ruins.
    abandoned.start()
    settle(abandoned)
    hits = abandoned.totals()["hits"]
    check_all(abandoned, files)
    assert abandoned.totals()["hits"] == hits + 6
