"""Tests of commands while the source's file system hangs, or after the dataset was removed.

Without --long, the tests set shorter limits for the waits of the commands.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.draws import sized
from support.files import Files
from support.impatient import impatient
from support.manifests import wait_recorded
from support.session import MIB, Session, suspended, wait_until
from support.watch import assert_quiet, settle

from monarch_py.demo.slowsource import SlowSource
from monarch_py.scan.walk import END_LIMIT_S
from monarch_py.storage.tiers import tier_root
from monarch_py.util import hanging

COUNT = 5
# Regular expressions for the messages that a command may print when its daemon ends.
ENDED = [
    "the daemon is ending",
    "the daemon ended before it answered",
    r"the daemon \(process \d+\) runs but accepts no commands: it is ending, or lacks memory, .*",
    "no daemon serves this configuration; start one with `monarch start`",
]
# HANGS_S: how long the source hangs, which is longer than any command may take [s]. ENDS_S: the
# limit for a command [s].
HANGS_S, ENDS_S = 120.0, 30.0
READ = "import sys\nfor path in sys.argv[1:]: open(path, 'rb').read()"
# A command that runs until its standard input ends.
WAITS = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def stopped(mounted: SlowSource) -> AbstractContextManager[None]:
    assert mounted.process is not None
    return suspended(mounted.process.pid)


def limits() -> dict[str, float]:
    answer_s, end_s = sized(2.0, hanging.LIMIT_S), sized(1.0, END_LIMIT_S)
    return {
        "monarch_py.util.hanging.LIMIT_S": answer_s,
        "monarch_py.config.load.LIMIT_S": answer_s,
        "monarch_py.daemon.server.END_LIMIT_S": end_s,
    }


@pytest.fixture
def impatient_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the time limits of commands that run in the test's process."""
    for name, value in limits().items():
        monkeypatch.setattr(name, value)


def begun(session: Session, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        impatient(session, limits(), *words),
        env=session.env(False, COLUMNS="400"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("impatient_here")
def test_no_command_hangs_with_the_source_or_needs_one_that_is_gone(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    tmp_path: Path,
) -> None:
    mounted = slow_factory()
    Files(mounted.backing).add_many(COUNT, 10_000)
    (tmp_path / "tier").mkdir()
    level = {"mount_point": tmp_path / "tier", "max_storage_quota": 4 * MIB, "persistent": True}
    session = session_factory(mounted.mountpoint, tiers=[level]).start()
    assert settle(session) == {"present": COUNT}
    wait_recorded(session, COUNT)
    session.stop()
    within = f"{limits()['monarch_py.util.hanging.LIMIT_S']:.0f} s"
    silent = f"{str(mounted.mountpoint)!r} does not answer within {within}; its file system hangs"
    with stopped(mounted):
        run, verify = begun(session, "run", "--", "true"), begun(session, "verify", "--source")
        interrupted, doctor = begun(session, "doctor"), begun(session, "doctor")
        for process in (interrupted, doctor):
            assert process.stdout is not None
            # `doctor` prints its findings one by one. It prints the first one long before it gives
            # up waiting for the source.
            assert process.stdout.readline().startswith("ok")
            assert process.poll() is None
            if process is interrupted:
                process.send_signal(signal.SIGINT)
        said, _ = interrupted.communicate(timeout=30)
        assert interrupted.returncode != 0
        assert silent not in said
        for process in (run, verify):
            said, error = process.communicate(timeout=30)
            assert (process.returncode, said) == (2, "")
            assert f"sources[0]: {silent}" in error
            assert error.count("\n") == 1
        said, error = doctor.communicate(timeout=30)
        assert (doctor.returncode, error) == (1, "")
        assert silent in said
        # `doctor` still examines the tiers.
        assert f"tier (ssd)       {session.tiers[0]}: quota 4 MiB" in said
        # `verify` without --source needs only the tiers.
        done = session.monarch("verify", timeout=30)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{COUNT} copies checked, 0 damaged\n"
        verified = (done.returncode, done.stdout, done.stderr)
    # `run` and `verify --source` must fail with a clear message if the source does not exist.
    # `verify` must still work.
    text = session.config.read_text()
    session.config.write_text(text.replace(str(mounted.mountpoint), str(tmp_path / "gone")))
    for words in (["run", "--", "true"], ["verify", "--source"]):
        done = session.monarch(*words)
        assert done.returncode == 2
        assert "cannot be used (No such file or directory)" in done.stderr
    done = session.monarch("verify")
    assert (done.returncode, done.stdout, done.stderr) == verified
    session.config.write_text(text)
    with stopped(mounted):
        done = session.monarch("clear", timeout=30)
        assert (done.stdout, done.stderr) == (f"{COUNT} copies removed\n", "")
    assert not tier_root(session.tiers[0]).exists()


def test_the_end_does_not_wait_for_a_source_that_hangs(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    tmp_path: Path,
) -> None:
    """Two daemons end in time although their threads hang at the source. In the first daemon, a
    fill hangs; in the second daemon, a scan hangs. The next daemon finds a clean tier."""
    mounted = slow_factory()
    behind = Files(mounted.backing).add_many(COUNT, 10_000)
    (tmp_path / "tier").mkdir()
    level = {"mount_point": tmp_path / "tier", "max_storage_quota": 4 * MIB, "persistent": True}
    session = session_factory(mounted.mountpoint, tiers=[level], prefetch="on_demand")
    with session.log.open("ab") as log:
        session.daemon = subprocess.Popen(
            impatient(session, limits(), "serve"),
            env=session.env(preload=False),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    session.wait_up()
    session.wait_scanned()
    mounted.latency(read=HANGS_S)
    warm = begun(session, "warm")
    wait_until(lambda: mounted.counts()["read"] > 0, what="a fill")
    with stopped(mounted):
        done = session.monarch("stop", timeout=ENDS_S)
        assert (done.returncode, done.stderr) == (0, "")
        said, error = warm.communicate(timeout=ENDS_S)
        assert warm.returncode == 3
        assert any(re.fullmatch(f"monarch: {why}\n", error) for why in ENDED), error
    mounted.latency(read=0)
    session.stop()  # reaps the daemon's process, which ends only when the source has answered
    mounted.latency(readdir=HANGS_S)
    mounted.reset()
    job = begun(session, "run", "--", *WAITS)
    wait_until(lambda: mounted.counts()["readdir"] > 0, what="a scan")
    with stopped(mounted):
        said, error = job.communicate(timeout=ENDS_S)
        assert (job.returncode, said) == (0, "")
        assert "wait for a source that does not answer" in session.paths.log.read_text()
    mounted.latency(readdir=0)
    session.start()
    session.wait_scanned()
    assert not list(session.tiers[0].glob("monarch-*/c/*"))
    session.python(READ, *map(mounted.mountpoint.joinpath, behind.digests))
    assert settle(session) == {"present": COUNT}
    assert_quiet(session)


@pytest.mark.long
def test_warm_names_a_source_that_hangs(
    session_factory: Callable[..., Session], slow_factory: Callable[..., SlowSource]
) -> None:
    mounted = slow_factory()
    behind = Files(mounted.backing).add_many(COUNT, 10_000)
    behind.wait_until_old()
    session = session_factory(mounted.mountpoint).start()
    assert session.monarch("warm").returncode == 0
    with stopped(mounted):
        done = session.monarch("warm")
        assert (done.returncode, done.stderr) == (
            3,
            f"monarch: {str(mounted.mountpoint)!r} does not answer within 5 s; its file system"
            " hangs\n",
        )


def test_a_daemon_ends_in_the_middle_of_a_long_listing(
    session_factory: Callable[..., Session], source: SlowSource
) -> None:
    for number in range(10_000):
        (source.backing / f"f{number}").touch()
    source.latency(readdir=0.1)
    session = session_factory(source.mountpoint).start()
    wait_until(lambda: source.counts()["readdir"] > 0, what="a listing")
    session.stop()
    until_the_end = source.counts()["readdir"]
    os.listdir(source.mountpoint)
    assert until_the_end < source.counts()["readdir"] / 3, "it went on to the last name"
