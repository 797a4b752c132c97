"""Tests `monarch warm` on a slow source: the command is interrupted, runs beside other commands and
a job, and shows its progress."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.conftest import Factory
from cli.processes import on_a_terminal, running
from cli.warming import present, warm
from support import draws
from support.files import Files
from support.session import MIB, Session, wait_until
from support.signals import handles_sigterm

from monarch_py.daemon.fill.filler import ORDERS
from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.native import State

MANY = 60
# More files than the daemon passes to the copy engine at once.
BEYOND_ENGINE = ORDERS + 152


@pytest.fixture
def slow(tmp_path: Path, slowsource_binary: Path) -> Iterator[SlowSource]:
    """A source with sixty files of 10,000 bytes. Each open takes 10 ms."""
    mountpoint, backing = tmp_path / "mount", tmp_path / "backing"
    mountpoint.mkdir()
    backing.mkdir()
    Files(backing).add_many(MANY, 10_000)
    with SlowSource(backing, mountpoint, binary=slowsource_binary) as mounted:
        mounted.latency(open=0.01)
        yield mounted


@pytest.fixture
def slow_session(session_factory: Factory, slow: SlowSource) -> Session:
    session = session_factory(slow.mountpoint, prefetch="none", shared_tpool_size=1).start()
    session.wait_scanned()
    return session


def is_present(catalog: CatalogReader, entry: int) -> bool:
    return bool(word.state(catalog.words[entry]) == State.PRESENT)


def wanted(session: Session) -> int:
    source = session.status()["sources"][0]
    return int(source["wanted"] + source["filling"])


def test_an_interrupt_takes_back_what_is_not_begun(
    session_factory: Factory, slow: SlowSource
) -> None:
    Files(slow.backing).add_many(BEYOND_ENGINE, 10)
    slow.latency(open=0.005)
    session = session_factory(slow.mountpoint, prefetch="none", shared_tpool_size=1).start()
    session.wait_scanned()
    with running(session, "warm") as command:
        wait_until(lambda: present(session) > 5, what="the first copies")
        command.process.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=30)
    assert (command.process.returncode, err) == (130, "")
    assert out.startswith("interrupted; run it again to go on: ")
    # The engine has one thread, so it was copying only one file when the command was interrupted.
    # About 2,000 other files were in its queue. The command has cancelled their orders.
    assert wanted(session) <= 1
    at_end = present(session)
    assert f": {at_end} files (" in out or f": {at_end - 1} files (" in out
    slow.latency(open=0)
    wait_until(lambda: not wanted(session), what="the end of what was begun")
    before = session.status()["sources"][0]
    assert 5 < before["present"] <= at_end + 1
    assert session.status()["tiers"][0]["files"] == before["present"]
    done = warm(session)
    assert done.returncode == 0
    assert f" filled, {before['present']} (" in done.stdout
    assert present(session) == before["files"]
    assert session.totals()["fills"] == before["files"]


def test_of_large_files_only_a_few_are_begun(
    session_factory: Factory, slow: SlowSource, tmp_path: Path
) -> None:
    large = slow.backing / "large"
    large.mkdir()
    for number in range(12):
        with (large / str(number)).open("wb") as file:
            file.truncate(128 * MIB)
    tier = tmp_path / "roomy"
    tier.mkdir()
    tiers = [{"mount_point": tier, "max_storage_quota": 2048 * MIB}]
    session = session_factory(slow.mountpoint, tiers=tiers, prefetch="none").start()
    slow.rate(4 * MIB)
    with running(session, "warm", str(slow.mountpoint / "large")) as command:
        wait_until(lambda: wanted(session) == 12, what="the orders")
        command.process.send_signal(signal.SIGINT)
        command.communicate(timeout=30)
    told = session.status()["sources"][0]
    assert told["wanted"] == 0
    assert told["filling"] <= 4


@pytest.mark.parametrize("prefetch", ["none", "eager"])
def test_what_others_want_too_is_not_taken_back(
    session_factory: Factory, slow: SlowSource, prefetch: str
) -> None:
    """A command that is interrupted cancels its orders for copies. A file is still copied if
    another command has ordered it too, or if the configuration says `prefetch: eager`."""
    slow.latency(open=0.05)
    session = session_factory(slow.mountpoint, prefetch=prefetch, shared_tpool_size=1).start()
    session.wait_scanned()
    if prefetch == "eager":
        wait_until(lambda: present(session) > 2, what="the first copies")
    entries = list(range(session.status()["sources"][0]["files"] + 1))
    for ticket in ("one", "other") if prefetch == "none" else ("one",):
        session.connection.ask("warm", ticket=ticket, entries=entries)
    wait_until(lambda: present(session) > 4, what="the first copies")
    assert session.connection.ask("take_back", ticket="one") == {"files": 0}
    assert present(session) < MANY
    slow.latency(open=0)
    wait_until(lambda: present(session) == MANY, what="the files that are still ordered")
    wait_until(lambda: session.totals()["fills"] >= MANY, what="the fills to be counted")
    assert session.totals()["fills"] == MANY


def test_two_at_once_and_one_of_them_interrupted(
    session_factory: Factory, slow: SlowSource
) -> None:
    count = draws.sized(1000, 2500)
    Files(slow.backing).add_many(count, 10)
    session = session_factory(slow.mountpoint, prefetch="none", shared_tpool_size=1).start()
    session.wait_scanned()
    with running(session, "warm") as one, running(session, "warm") as other:
        # The commands `one` and `other` order all files. The command below also orders all files,
        # but begins later. So when it ends, `one` and `other` have ordered their files.
        wait_until(lambda: present(session) > 2, what="the first copies")
        assert " ordered, " in warm(session, "--no-wait", slow.mountpoint).stdout
        wait_until(lambda: handles_sigterm(one.process.pid), what="the first one's handler")
        one.process.terminate()
        assert one.process.wait(30) == 128 + signal.SIGTERM
        assert present(session) < count - 100
        slow.latency(open=0)
        _, err = other.communicate(timeout=30)
    # The command `other` has printed nothing but its progress.
    assert other.process.returncode == 0
    assert [line for line in err.splitlines() if " left" not in line] == []
    assert present(session) == session.totals()["fills"] == count


def test_a_daemon_that_ends_meanwhile(slow_session: Session) -> None:
    with running(slow_session, "warm") as command:
        wait_until(lambda: present(slow_session) > 2, what="the first copies")
        slow_session.kill()
        _, err = command.communicate(timeout=30)
    assert command.process.returncode == 3
    assert err.startswith("monarch: the daemon of this configuration was killed or crashed")


@pytest.mark.parametrize("prefetch", ["on_demand", "none"])
def test_a_job_comes_first(session_factory: Factory, slow: SlowSource, prefetch: str) -> None:
    # There are so many files that the program's files are still in the daemon's queue when the
    # program reads them.
    more = Files(slow.backing).add_many(BEYOND_ENGINE, 10, prefix="g")
    session = session_factory(slow.mountpoint, prefetch=prefetch, shared_tpool_size=1).start()
    session.wait_scanned()
    listed = session.directory / "list"
    listed.write_text("".join(f"{slow.mountpoint / name}\n" for name in more.digests))
    with running(session, "warm", "--from-file", str(listed)) as command:
        wait_until(lambda: wanted(session) > BEYOND_ENGINE - 100, what="the orders")
        paths = [slow.mountpoint / name for name in list(more.digests)[:-6:-1]]
        session.python("import sys\nfor p in sys.argv[1:]: open(p, 'rb').read()", *paths)
        assert session.totals()["fallbacks"] == 0
        catalog = CatalogReader.open(session.paths, session.connection.ask("where")["generation"])
        for path in paths:
            entry = catalog.find(0, path.name)
            wait_until(lambda e=entry: is_present(catalog, e), what=path.name)  # type: ignore[misc]
        assert present(session) < BEYOND_ENGINE - 100
        slow.latency(open=0)
        assert command.process.wait(30) == 0
    assert present(session) == BEYOND_ENGINE


def test_without_waiting(slow_session: Session) -> None:
    done = warm(slow_session, "--no-wait")
    assert done.returncode == 0
    assert " ordered, 0 (0 B) already there" in done.stdout
    assert wanted(slow_session)
    wait_until(lambda: present(slow_session) == MANY, what="what was ordered")


def test_what_the_source_does_not_give_fails_the_command_and_is_tried_again(
    slow_session: Session, slow: SlowSource
) -> None:
    slow.fail(errno.EIO)
    done = warm(slow_session)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.endswith(f" stay at the source: {MANY} failed\n")
    slow.fail(0)
    done = warm(slow_session)
    assert (done.returncode, present(slow_session)) == (0, MANY)


# --- progress -----------------------------------------------------------------------------------


def test_a_bar_on_a_terminal(slow_session: Session) -> None:
    of_terminal = {"TERM": "xterm", "COLUMNS": "120"}
    status, said = on_a_terminal(
        slow_session, "warm", columns=120, environment=of_terminal, is_for_errors=True
    )
    assert status == 0
    assert f" of {MANY} files, " in said
    assert " left" in said


def test_lines_elsewhere(slow_session: Session) -> None:
    script = (
        "import sys, monarch_py.cli.warm as w; w.LINE_S = 0.3\n"
        "from monarch_py.cli import main; main()\n"
    )
    words = slow_session.command("warm")[3:]
    done = slow_session.run([sys.executable, "-c", script, *words], preload=False)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines
    assert all(f" of {MANY} files, " in line and line.startswith("monarch: ") for line in lines)
