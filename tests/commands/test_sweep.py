"""`monarch sweep` removes what killed daemons have left behind. It keeps persistent copies, and
everything that running daemons use."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.command_line import run_monarch
from support.files import Files, check_all
from support.manifests import wait_recorded
from support.session import MIB, Session, wait_until

from monarch_py.commands import sweep
from monarch_py.config.load import load_config
from monarch_py.ipc import connection
from monarch_py.ipc.session import Segment, hold
from monarch_py.storage.opening import OpenTiers
from monarch_py.storage.tiers import tier_root
from monarch_py.util.processes import Identity

COUNT = 6


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(COUNT, 3000)


@pytest.fixture(scope="module", autouse=True)
def old_files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Files for the last test. They are made before the first test, so that they are old when the
    last test begins. The daemon records copies of old files at once."""
    return Files(tmp_path_factory.mktemp("old") / "source").add_many(COUNT, 3000)


def tiers(tmp_path: Path) -> list[dict[str, object]]:
    """Returns the settings of two tiers: a tier that is not persistent and has room for only some
    of the files, and a persistent tier."""
    found = []
    for name, quota in (("ram", 32 << 10), ("ssd", 16 * MIB)):
        (tmp_path / name).mkdir(exist_ok=True)
        tier = {"mount_point": tmp_path / name, "max_storage_quota": quota}
        found.append({**tier, "persistent": name == "ssd"})
    return found


def swept(session: Session, *words: str) -> subprocess.CompletedProcess[str]:
    return run_monarch(["sweep", *words], session.env(preload=False))


def copies(mount_point: Path) -> list[Path]:
    return sorted(tier_root(mount_point).glob("**/c/*"))


# Arguments: the configuration, and 0 or 1. With 0, the program opens the tiers and the staging
# area, as a daemon does when it starts. Then it kills itself, before it makes a control segment.
# With 1, it kills itself earlier, while it makes the directory for a tier's copies.
STARTS = """
import os, signal, sys
from pathlib import Path
from monarch_py.config.load import load_config
from monarch_py.daemon.copies.staging import open_staging
from monarch_py.ipc.session import SessionDir, hold
from monarch_py.storage.opening import OpenTiers
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
config = load_config(sys.argv[1])
session = SessionDir.of(config.file)
session.make()
lock = hold(session.lock, config.file)
if sys.argv[2] == "1":
    Path.rename = die
tiers = OpenTiers(config)
area = open_staging(config, session, tiers.memory_room, needed=False)
die()
"""


@pytest.mark.parametrize("when", ["0", "1"])
def test_a_daemon_that_was_killed_during_its_start_leaves_nothing(
    session_factory: Callable[..., Session], files: Files, tmp_path: Path, when: str
) -> None:
    (tmp_path / "area").mkdir()
    area = {"mount_point": str(tmp_path / "area"), "max_storage_quota": "1MiB"}
    session = session_factory(files.root, tiers=tiers(tmp_path), staging=area)
    words = [sys.executable, "-c", STARTS, str(session.config), when]
    died = subprocess.run(words, env=session.env(preload=False), check=False)
    assert died.returncode == -signal.SIGKILL
    made = {path.name[:2] for path in tmp_path.glob("*/monarch-*/*")}
    assert made == ({"c.", "lo"} if when == "1" else {"c", "lo", "ma", "st"})
    assert not session.paths.control.exists()
    done = swept(session)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 killed daemon found, 0 copies removed\n"
    assert [*(tmp_path / "ram").iterdir(), *(tmp_path / "area").iterdir()] == []
    assert swept(session).stdout == "0 killed daemons found, 0 copies removed\n"


def test_a_daemon_that_starts_keeps_its_tiers(
    session_factory: Callable[..., Session], files: Files, tmp_path: Path
) -> None:
    session = session_factory(files.root, tiers=tiers(tmp_path))
    config = load_config(session.config)
    session.paths.make()
    lock = hold(session.paths.lock, config.file)
    opened = OpenTiers(config)
    try:
        assert swept(session).stdout == "0 killed daemons found, 0 copies removed\n"
        assert session.paths.lock.exists()
        assert all(tier is not None and tier.is_in_place() for tier in opened.tiers)
    finally:
        opened.close(are_used=False)
        os.close(lock)


def test_a_staging_area_beside_the_sessions_is_no_session(
    session_factory: Callable[..., Session], files: Files, tmp_path: Path
) -> None:
    (tmp_path / "shm").mkdir()
    area = {"mount_point": str(tmp_path / "shm"), "max_storage_quota": "1MiB"}
    session = session_factory(files.root, directory=tmp_path, staging=area).start()
    (staging,) = session.paths.path.parent.glob("staging-*")
    before = set(staging.iterdir())
    assert {path.name for path in before} == {"c", "lock"}
    assert swept(session).stdout == "0 killed daemons found, 0 copies removed\n"
    assert set(staging.iterdir()) == before


def in_shm(session: Session) -> set[str]:
    return {path.name for path in session.paths.path.iterdir()}


def test_what_runs_stays_until_it_is_stopped(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root).start()
    session.wait_all_present()
    before = copies(session.tiers[0])
    done = swept(session)
    assert (done.returncode, done.stderr) == (0, "")
    assert copies(session.tiers[0]) == before
    check_all(session, files)
    done = swept(session, "--stop")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 daemon stopped, 0 killed daemons found, 0 copies removed\n"
    session.stop()
    assert [*session.tiers[0].iterdir(), *session.shm.iterdir()] == []


def test_stop_names_what_removes_the_rest_of_a_killed_daemon(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root).start()
    session.kill()
    hint = "; `monarch sweep` removes what a killed daemon has left on this node\n"
    done = session.monarch("stop")
    assert done.returncode == 3
    assert done.stderr.endswith(f"there is nothing to stop{hint}")
    assert swept(session).returncode == 0
    assert session.monarch("stop").stderr.endswith("there is nothing to stop\n")


def test_a_daemon_outside_the_container_is_stopped(
    session_factory: Callable[..., Session], files: Files
) -> None:
    """`monarch sweep --stop` in a PID namespace of its own stops a daemon outside this namespace,
    although the command cannot see the daemon's process."""
    apart = ["unshare", "--fork", "--pid", "--mount-proc"]
    if subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("needs root, or the right to make PID namespaces")
    session = session_factory(files.root).start()
    done = subprocess.run(
        [*apart, sys.executable, "-m", "monarch_py", "sweep", "--stop"],
        env=session.env(preload=False),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 daemon stopped, 0 killed daemons found, 0 copies removed\n"
    session.stop()
    assert [*session.shm.iterdir()] == []


def test_a_suspended_daemon_is_killed(
    session_factory: Callable[..., Session], files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "STOP_LIMIT_S", 0.1)
    monkeypatch.setattr(connection, "ANSWER_LIMIT_S", 0.1)
    session = session_factory(files.root).start()
    session.wait_all_present()
    assert session.daemon is not None
    session.daemon.send_signal(signal.SIGSTOP)
    done = swept(session, "--stop")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"1 daemon stopped, 1 killed daemon found, \d copies removed\n", done.stdout)
    assert [*session.tiers[0].iterdir(), *session.shm.iterdir()] == []
    session.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a pid namespace")
def test_a_daemon_in_a_container_is_stopped(
    session_factory: Callable[..., Session], files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`monarch sweep --stop` stops a daemon in another PID namespace, although the process ID in
    the daemon's lock is not valid in the test's namespace. If such a daemon is suspended, `sweep`
    cannot end it, and reports this."""
    monkeypatch.setattr(sweep, "STOP_LIMIT_S", 2.0)
    monkeypatch.setattr(connection, "ANSWER_LIMIT_S", 1.0)
    container = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    session = session_factory(files.root).start(prefix=container)
    done = swept(session, "--stop")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 daemon stopped, 0 killed daemons found, 0 copies removed\n"
    assert session.daemon is not None
    assert session.daemon.wait(timeout=30) == 0
    assert [*session.tiers[0].iterdir(), *session.shm.iterdir()] == []

    # A suspended daemon exceeds any time limit, so the test sets short limits.
    monkeypatch.setattr(sweep, "STOP_LIMIT_S", 0.2)
    monkeypatch.setattr(connection, "ANSWER_LIMIT_S", 0.2)
    session.start(prefix=container)
    assert session.daemon is not None
    (daemon,) = psutil.Process(session.daemon.pid).children()
    daemon.suspend()
    done = swept(session, "--stop")
    assert done.returncode == 1
    assert ") does not end" in done.stderr
    session.kill()


def test_a_daemon_that_a_hanging_file_system_holds_is_named(
    session_factory: Callable[..., Session], files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_factory(files.root).start()
    assert session.daemon is not None
    pid = session.daemon.pid
    os.kill(pid, signal.SIGSTOP)
    for limit in ("STOP_LIMIT_S", "KILL_LIMIT_S"):
        monkeypatch.setattr(sweep, limit, 0.1)
    monkeypatch.setattr(connection, "ANSWER_LIMIT_S", 0.1)
    monkeypatch.setattr(Identity, "send", lambda *_: None)
    done = swept(session, "--stop")
    assert done.returncode == 1
    assert f"the daemon (process {pid}) cannot be killed, so its copies stay; run" in done.stderr
    assert list(session.tiers[0].iterdir())
    session.kill()


def test_a_tier_that_another_daemon_holds_now_stays(
    session_factory: Callable[..., Session], files: Files, tmp_path: Path
) -> None:
    (tmp_path / "first").mkdir()
    first = session_factory(files.root, directory=tmp_path / "first").start()
    first.wait_all_present()
    first.kill()
    tier = {"mount_point": first.tiers[0], "max_storage_quota": MIB}
    second = session_factory(files.root, tiers=[tier]).start()
    second.wait_all_present()
    held = copies(first.tiers[0])
    assert len(held) == COUNT
    assert swept(first).stdout == "1 killed daemon found, 0 copies removed\n"
    assert copies(first.tiers[0]) == held
    check_all(second, files)


def test_a_session_of_another_version_is_named(
    session_factory: Callable[..., Session], files: Files
) -> None:
    session = session_factory(files.root).start()
    session.wait_all_present()
    session.kill()
    segment = Segment.open(session.paths.control, writable=True)
    segment.as_struct("struct monarch_control").version += 1
    before = copies(session.tiers[0])
    done = swept(session)
    assert done.returncode == 1
    assert "control was made by another version of Monarch; " in done.stderr
    assert copies(session.tiers[0]) == before
    # `monarch sweep --stop` is run at the end of a user's last job. So it removes even what another
    # version of Monarch has left in shared memory.
    assert swept(session, "--stop").returncode == 1
    assert [*session.shm.iterdir()] == []
    assert swept(session, "--stop").returncode == 0


def test_what_a_killed_daemon_left_goes_and_persistent_copies_stay(
    session_factory: Callable[..., Session], old_files: Files, tmp_path: Path
) -> None:
    (tmp_path / "area").mkdir()
    area = {"mount_point": str(tmp_path / "area"), "max_storage_quota": "1MiB"}
    session = session_factory(old_files.root, tiers=tiers(tmp_path), staging=area).start()
    session.wait_all_present()
    ram, ssd = copies(tmp_path / "ram"), copies(tmp_path / "ssd")
    assert ram
    assert ssd
    wait_recorded(session, len(ssd), tier=1)
    session.kill()
    done = swept(session)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"1 killed daemon found, {len(ram)} copies removed\n"
    assert [*(tmp_path / "ram").iterdir(), *(tmp_path / "area").iterdir()] == []
    assert copies(tmp_path / "ssd") == ssd
    assert in_shm(session) <= {"log", "log.1", "turn", "users"}
    assert swept(session).stdout == "0 killed daemons found, 0 copies removed\n"
    session.start()
    wait_until(lambda: session.status()["tiers"][1]["files"] == len(ssd), what="the old copies")
    check_all(session, old_files)
