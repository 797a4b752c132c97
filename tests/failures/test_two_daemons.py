"""If several daemons need the same session or tier, only one daemon gets it. The messages of the
other daemons name this daemon."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from support.draws import cases
from support.files import Files, check_all
from support.session import MIB, Session, wait_until
from support.watch import settle

from monarch_py.storage.tiers import tier_root


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(10, 10_000)


def level(tmp_path: Path, name: str, *, persistent: bool = False) -> dict[str, object]:
    (tmp_path / name).mkdir(exist_ok=True)
    return {
        "mount_point": tmp_path / name,
        "max_storage_quota": 16 * MIB,
        "persistent": persistent,
    }


def test_a_second_start_says_that_one_serves_already(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root)
    first = session.monarch("start")
    assert (first.returncode, first.stderr) == (0, "")
    pid = session.status()["pid"]
    try:
        second = session.monarch("start")
        assert (second.returncode, second.stderr) == (0, "")
        assert second.stdout == f"a daemon serves this configuration already (process {pid})\n"
        assert session.status()["pid"] == pid
        assert settle(session) == {"present": 10}
        check_all(session, files)
    finally:
        assert session.monarch("stop").returncode == 0
    wait_until(lambda: not psutil.pid_exists(pid), what="the end of the daemon")


def test_a_second_serve_exits_with_3_and_harms_nothing(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root).start()
    settle(session)
    second = session.monarch("serve")
    assert second.returncode == 3
    assert second.stderr.startswith("monarch: a daemon serves this configuration already (process ")
    assert second.stderr.count("\n") == 1
    hits = session.totals()["hits"]
    check_all(session, files)
    assert session.totals()["hits"] == hits + 10


# In every run, test_run_command.py starts two daemons at once.
@pytest.mark.long
def test_of_many_starts_at_once_one_wins(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root)
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: session.monarch("start"), range(4)))
    try:
        pid = session.status()["pid"]
        assert {answer.returncode for answer in done} == {0}
        for answer in done:
            said = answer.stdout + answer.stderr
            assert said.count("\n") == 1
            assert str(pid) in said
    finally:
        assert session.monarch("stop").returncode == 0
    wait_until(lambda: not psutil.pid_exists(pid), what="the end of the daemon")


@pytest.mark.parametrize("persistent", cases([False, True], [True]), ids=["lost", "kept"])
def test_another_configuration_goes_without_a_tier_that_is_held(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files, persistent: bool
) -> None:
    shared = level(tmp_path, "shared", persistent=persistent)
    first = session_factory(files.root, tiers=[shared]).start()
    settle(first)
    before = sorted(path.name for path in (tier_root(tmp_path / "shared") / "c").iterdir())
    other = session_factory(files.root, tiers=[shared, level(tmp_path, "own")])
    done = other.monarch("start")
    try:
        assert done.returncode == 0
        assert first.daemon is not None
        holder = f"process {first.daemon.pid}"
        why = (
            f"tier {tmp_path / 'shared'} is held by the daemon of {first.config} ({holder});"
            " it goes unused here: give tiers.yaml a directory of its own, for example"
            f" mount_point: {tmp_path / 'shared' / 'tiers'}"
        )
        assert done.stderr == f"monarch: {why}\n"
        tiers = other.status()["tiers"]
        assert [tier["usable"] for tier in tiers] == [False, True]
        assert tiers[0]["why"] == why
        assert settle(other) == {"present": 10}
        check_all(other, files)
        check_all(first, files)
    finally:
        assert other.monarch("stop").returncode == 0
    assert sorted(path.name for path in (tier_root(tmp_path / "shared") / "c").iterdir()) == before
    assert first.status()["tiers"][0]["usable"]
    check_all(first, files)


def test_without_any_other_tier_it_does_not_start(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files
) -> None:
    shared = level(tmp_path, "shared")
    first = session_factory(files.root, tiers=[shared]).start()
    settle(first)
    other = session_factory(files.root, tiers=[shared])
    serve = other.monarch("serve")
    assert serve.returncode == 4
    assert serve.stderr.splitlines()[-1].startswith("monarch: no tier can be used: tier ")
    start = other.monarch("start")
    assert start.returncode != 0
    assert start.stderr.count("\n") == 1
    assert f"is held by the daemon of {first.config} (process " in start.stderr
    # No daemon serves the second configuration, so its jobs read the source.
    check_all(first, files)
    done = other.monarch("run", "--", "sha256sum", str(files.path("f00000")))
    assert done.returncode == 0
    assert "reads from the source" in done.stderr
    assert files.digests["f00000"] in done.stdout


def test_a_tier_is_free_again_when_its_daemon_was_killed(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files
) -> None:
    shared = level(tmp_path, "shared")
    first = session_factory(files.root, tiers=[shared]).start()
    settle(first)
    first.kill()
    other = session_factory(files.root, tiers=[shared]).start()
    assert settle(other) == {"present": 10}
    check_all(other, files)
    # The copies of the killed daemon no longer exist, so its clients read the source.
    check_all(first, files)


def test_a_stopped_daemon_holds_its_session_and_no_command_hangs(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root).start()
    settle(session)
    assert session.daemon is not None
    session.daemon.send_signal(signal.SIGSTOP)
    try:
        serve = session.monarch("serve", timeout=30)
        assert serve.returncode == 3
        check_all(session, files)
        with pytest.raises(subprocess.TimeoutExpired):
            session.daemon.wait(timeout=0.1)
    finally:
        session.daemon.send_signal(signal.SIGCONT)
    wait_until(session.connection.runs, what="the daemon's answers")
    check_all(session, files)
