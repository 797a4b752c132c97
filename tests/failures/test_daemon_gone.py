"""If the daemon is killed or suspended at any moment, readers still get the right bytes. A daemon
that starts afterwards serves readers again, including those that have run all the time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.draws import cases
from support.files import Files, Loop, check_all
from support.manifests import copies_in
from support.session import IN_UNITS, MIB, Session, wait_until
from support.steps import Steps

from monarch_py.demo.slowsource import SlowSource
from monarch_py.storage.tiers import tier_root

# The time limit for reading a file [s]. The library never waits for a daemon that is gone. The
# limit is long only because the machine may be busy.
FILE_LIMIT_S = 15.0


def moment_before_scan_ends(session: Session) -> None:
    wait_until(
        lambda: session.status()["catalog_entries"], what="a file that a reader has reported"
    )
    assert not session.status()["scanned"]


def moment_in_a_fill(session: Session) -> None:
    """Waits for the middle of the large file's fill. The fills of small files end too soon."""

    def filling() -> bool:
        begun = any(path.stat().st_size > MIB for path in copies_of(session))
        return begun and session.status()["sources"][0]["filling"] > 0

    wait_until(filling, what="a fill that has begun", every=0.001)


def moment_present(session: Session) -> None:
    session.wait_all_present()


def copies_of(session: Session) -> list[Path]:
    return list((tier_root(session.tiers[0]) / "c").iterdir())


@contextmanager
def slowed(source: SlowSource, moment: Callable[[Session], None]) -> Iterator[None]:
    """Makes the source slow until the block ends, so that the test does not miss `moment`."""
    if moment is moment_in_a_fill:
        source.rate(8 * MIB)
    elif moment is moment_before_scan_ends:
        source.latency(getattr=0.25)  # the scan takes 20 s; the reader's first file takes 1 to 2 s
    yield
    source.rate(0)
    source.latency(getattr=0)


@pytest.fixture
def source(tmp_path: Path, slowsource_binary: Path) -> Iterator[SlowSource]:
    mountpoint, backing = tmp_path / "mount", tmp_path / "backing"
    mountpoint.mkdir()
    backing.mkdir()
    with SlowSource(backing, mountpoint, binary=slowsource_binary) as mounted:
        yield mounted


@pytest.fixture
def files(source: SlowSource) -> Files:
    """Returns many small files and a large one, with their paths in the slow source."""
    made = Files(source.backing).add_many(40, 20_000)
    for i in range(20):
        made.add(f"d{i}/small", 500)
    made.add("large", 6 * MIB + 17)
    seen = Files(source.mountpoint)
    seen.digests = made.digests
    return seen


MOMENTS = [moment_before_scan_ends, moment_in_a_fill, moment_present]
# The cases that run with --long: each of MOMENTS, with a persistent and a non-persistent tier.
WITH_EACH = [(moment, persistent) for moment in MOMENTS for persistent in (False, True)]
# The cases that run without --long. `moment_present` is not among them: in every run, other tests
# (one below and test_many_daemons.py) kill a daemon when all copies are present.
WITH_ONE = [(moment_before_scan_ends, False), (moment_in_a_fill, True)]


def make_session(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files, persistent: bool
) -> Session:
    mount = tmp_path / "tier"
    mount.mkdir()
    tier = {"mount_point": mount, "max_storage_quota": 64 * MIB, "persistent": persistent}
    settings = {"scan_threads": 1, "shared_tpool_size": 1, **IN_UNITS}
    return session_factory(files.root, tiers=[tier], **settings)


@pytest.mark.parametrize(
    "case",
    cases(WITH_EACH, WITH_ONE),
    ids=lambda case: f"{case[0].__name__.removeprefix('moment_')}-{'kept' if case[1] else 'lost'}",
)
def test_readers_outlive_a_killed_daemon_and_find_the_next(
    session_factory: Callable[..., Session],
    tmp_path: Path,
    source: SlowSource,
    files: Files,
    case: tuple[Callable[[Session], None], bool],
) -> None:
    moment, persistent = case
    session = make_session(session_factory, tmp_path, files, persistent)
    with slowed(source, moment):
        session.start()
        with Loop(session, files, tmp_path) as loop:
            moment(session)
            debris = {path.name for path in copies_of(session)}
            session.kill()
            if persistent and moment is not moment_present:  # some copies may be recorded already
                debris -= {path.name for path in copies_in(session).values()}
            source.rate(0)
            source.latency(getattr=0)
            assert loop.wait_passes(2) < FILE_LIMIT_S
            check_all(session, files)
            session.start()
            wait_until(lambda: session.totals()["hits"] > 0, what="hits of the running reader")
            left = {path.name for path in copies_of(session)}
            if moment is not moment_present or not persistent:
                assert not debris & left
            session.wait_all_present()
            assert loop.wait_passes(2) < FILE_LIMIT_S
            loop.end()
    hits = session.totals()["hits"]
    check_all(session, files)
    assert session.totals()["hits"] == hits + len(files.digests)
    assert len(copies_of(session)) == len(files.digests)


@pytest.mark.parametrize(
    "moment",
    cases(MOMENTS, [moment_in_a_fill]),  # without --long, the test above covers other moments
    ids=lambda moment: moment.__name__.removeprefix("moment_"),
)
def test_readers_do_not_wait_for_a_stopped_daemon(
    session_factory: Callable[..., Session],
    tmp_path: Path,
    source: SlowSource,
    files: Files,
    moment: Callable[[Session], None],
) -> None:
    session = make_session(session_factory, tmp_path, files, persistent=False)
    with slowed(source, moment):
        daemon = session.start().daemon
        assert daemon is not None
        with Loop(session, files, tmp_path) as loop:
            moment(session)
            daemon.send_signal(signal.SIGSTOP)
            wait_until(
                lambda: psutil.Process(daemon.pid).status() == psutil.STATUS_STOPPED,
                what="the daemon's standstill",
            )
            source.rate(0)
            source.latency(getattr=0)
            assert loop.wait_passes(2) < FILE_LIMIT_S
            check_all(session, files)
            daemon.send_signal(signal.SIGCONT)
            session.wait_all_present()
            hits = session.totals()["hits"]
            assert loop.wait_passes(2) < FILE_LIMIT_S
            assert session.totals()["hits"] >= hits + 2 * len(files.digests)
            loop.end()
    check_all(session, files)


# Keeps a descriptor of a copy open while the daemon that has made the copy is killed.
HOLDER = """
import json, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
names = ("st_dev", "st_ino", "st_mode", "st_nlink", "st_uid", "st_size", "st_mtime_ns")
for line in sys.stdin:
    if line == "open another\\n":
        os.close(os.open(sys.argv[2], os.O_RDONLY))
    found = os.fstat(fd)
    data = os.pread(fd, found.st_size, 0)
    same = data == open(sys.argv[1], "rb").read()
    print(json.dumps([same, [getattr(found, name) for name in names]]), flush=True)
"""


def test_a_descriptor_stays_its_file_when_daemons_come_and_go(
    session_factory: Callable[..., Session], tmp_path: Path, tree: Path
) -> None:
    session = session_factory(tree).start()
    session.wait_all_present()
    found = os.stat(tree / "a/f2")
    names = ("st_dev", "st_ino", "st_mode", "st_nlink", "st_uid", "st_size", "st_mtime_ns")
    expected = [True, [getattr(found, name) for name in names]]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", HOLDER, str(tree / "a/f2"), str(tree / "large")],
        env=session.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:

        def ask(what: str = "look") -> Any:
            assert holder.stdin is not None
            assert holder.stdout is not None
            holder.stdin.write(what + "\n")
            holder.stdin.flush()
            return json.loads(holder.stdout.readline())

        assert ask() == expected
        assert session.totals()["hits"] == 2
        session.kill()
        assert ask() == expected
        session.start().wait_all_present()
        opens = session.totals()["opens"]
        wait_until(
            lambda: ask("open another") and session.totals()["opens"] > opens,
            what="the reader's move to the new daemon",
        )
        assert ask() == expected
        session.stop()
        assert ask() == expected
        assert holder.stdin is not None
        holder.stdin.close()
        assert holder.wait(timeout=30) == 0


CHANGED_SINCE = """
fd = os.open(sys.argv[1], os.O_RDONLY)
step(os.fstat(fd).st_mode & 0o777)
os.fchmod(fd, 0o600)
step(os.fstat(fd).st_mode & 0o777, os.stat(sys.argv[1]).st_mode & 0o777)
"""


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "ended"])
def test_a_change_through_a_descriptor_of_an_older_daemons_copy_shows_in_it(
    session_factory: Callable[..., Session], tmp_path: Path, is_replaced: bool
) -> None:
    """A program has a descriptor of an old daemon's copy, and changes the file's mode through this
    descriptor. The descriptor and the source must show the new mode, even if a new daemon has made
    another copy."""
    path = Files(tmp_path / "source").add("a", 1000)
    path.chmod(0o644)
    session = session_factory(path.parent).start()
    session.wait_all_present()
    with Steps(session, CHANGED_SINCE, path) as program:
        assert program.wait() == [0o644]
        session.stop()
        path.chmod(0o640)
        if is_replaced:
            session.start()
            session.wait_all_present()
        program.go()
        assert program.wait() == [0o600, 0o600]
        program.end()
