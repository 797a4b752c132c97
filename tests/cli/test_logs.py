"""`monarch logs`, and the commands that find the user's only daemon."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli.conftest import Monarch
from support.session import Session, wait_until

from monarch_py.ipc.session import hold


@pytest.fixture
def written(session: Session) -> Session:
    """A session with two logs of 30 lines each, and without a daemon."""
    session.paths.make()
    for path, name in ((session.paths.log_before, "before"), (session.paths.log, "now")):
        path.write_text("".join(f"{name} {number}\n" for number in range(30)))
    return session


def test_a_daemons_log_outlives_it(started: tuple[Session, int]) -> None:
    session, pid = started
    said = session.monarch("logs")
    assert (said.returncode, said.stderr) == (0, "")
    assert f"process {pid} serves {session.config} (version " in said.stdout
    assert session.monarch("stop").returncode == 0
    assert "has ended" in session.monarch("logs").stdout
    session.config.unlink()
    assert "has ended" in session.monarch("logs").stdout


@pytest.mark.parametrize(
    ("words", "before", "now"), [([], 20, 30), (["-n", "3"], 3, 3), (["--lines=40"], 30, 30)]
)
def test_the_end_of_the_log_before_stands_first(
    written: Session, words: list[str], before: int, now: int
) -> None:
    said = written.monarch("logs", *words)
    assert said.stdout.splitlines() == [
        f"==> {written.paths.log_before} <==",
        *(f"before {number}" for number in range(30 - before, 30)),
        f"==> {written.paths.log} <==",
        *(f"now {number}" for number in range(30 - now, 30)),
    ]


@contextmanager
def following(session: Session, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as out:
        process = subprocess.Popen(
            session.command("logs", "-f", "-n", "1"), env=session.env(preload=False), stdout=out
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_log_is_followed_into_that_of_the_next_daemon(written: Session, tmp_path: Path) -> None:
    output = tmp_path / "followed"

    def said(line: str) -> None:
        wait_until(lambda: f"{line}\n" in output.read_text(), what=f"the line {line!r}")

    with following(written, output) as process:
        said("now 29")
        with written.paths.log.open("a") as log:
            log.write("now 30\n")
        said("now 30")
        # The new log is already longer than the old log when it appears. So its length does not
        # show that the file was replaced.
        written.paths.log.write_text("".join(f"next {number}\n" for number in range(60)))
        said("next 59")
        assert "next 0\n" in output.read_text()
        written.paths.log.unlink()
        written.paths.log.write_text("last\n")
        said("last")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    lines = output.read_text().splitlines()
    assert len(lines) == len(set(lines))


def test_without_a_log_there_is_one_sentence(session: Session) -> None:
    said = session.monarch("logs")
    assert (said.returncode, said.stdout) == (3, "")
    assert said.stderr == (
        f"monarch: no daemon of {session.config} has left a log on this node; `monarch serve` logs"
        " to its own standard error\n"
    )


# --- the only daemon ----------------------------------------------------------------------------


def test_the_only_daemon_is_found(started: tuple[Session, int], monarch: Monarch) -> None:
    session, pid = started
    for command in ("logs", "status", "stop"):
        said = monarch(command, MONARCH_SHM=str(session.shm))
        assert said.returncode == 0, said.stderr
        assert str(pid) in said.stdout


def test_what_needs_a_daemon_needs_no_name(
    started: tuple[Session, int], monarch: Monarch, tmp_path: Path
) -> None:
    session, _ = started
    (tmp_path / "more").mkdir()
    for words in (["warm"], ["source", "add", str(tmp_path / "more")], ["ls"], ["top", "-n", "1"]):
        said = monarch(*words, MONARCH_SHM=str(session.shm))
        assert said.returncode == 0, said.stderr


def test_a_staging_area_is_no_daemon_of_its_own(
    session_factory: Callable[..., Session], source: Path, monarch: Monarch
) -> None:
    session = session_factory(source, staging={"max_storage_quota": 8 << 20}).start()
    for command in ("status", "stop"):
        said = monarch(command, MONARCH_SHM=str(session.shm))
        assert said.returncode == 0, said.stderr


def test_several_daemons_are_listed(written: Session, monarch: Monarch, tmp_path: Path) -> None:
    others = [tmp_path / "a b.yaml", tmp_path / "c.yaml"]
    locks = []
    try:
        for number, config in enumerate(others):
            directory = written.paths.path.parent / str(number)
            directory.mkdir()
            locks.append(hold(directory / "lock", config))
        for command in ("logs", "status", "stop"):
            said = monarch(command, MONARCH_SHM=str(written.shm))
            assert (said.returncode, said.stdout) == (2, "")
            assert said.stderr == (
                f"monarch: 2 of your daemons run on this node; give -c '{others[0]}'"
                f" or -c {others[1]}\n"
            )
        said = written.monarch("stop")
        assert said.returncode == 3
        assert said.stderr == (
            "monarch: no daemon serves this configuration, so there is nothing to stop; your"
            f" daemons serve {others[0]}, {others[1]}\n"
        )
    finally:
        for lock in locks:
            os.close(lock)


def test_no_daemon_at_all(monarch: Monarch) -> None:
    for command in ("logs", "status", "stop", "warm"):
        said = monarch(command)
        assert said.returncode == 2
        assert (
            "no configuration is named, and none of your daemons runs on this node" in said.stderr
        )
