"""A daemon that was killed is started again. A daemon that the user has stopped is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from autostart.started import (
    CAT,
    IDLE_READER,
    READER,
    Started,
    age,
    counted,
    reader_is_attached,
    stop,
)
from support.draws import sized
from support.files import Files
from support.session import wait_until
from support.steps import Steps


# Runs only with --long. The tests in test_start_faults.py, which always run, are shorter and also
# kill processes at each step.
@pytest.mark.long
def test_a_kill_at_any_step_costs_nothing_but_the_daemon(site: Started, files: Files) -> None:
    site.learn()
    with Steps(site.session, READER, files.path("f00001")) as reader:

        def read() -> None:
            reader.go()
            reader.wait()

        def reading(found: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
            read()
            return found()

        def kill(found: Callable[[], list[psutil.Process]], what: str) -> None:
            for process in wait_until(lambda: reading(found), what=what, every=0.02):
                process.kill()
                psutil.wait_procs([process], timeout=20)

        reader.wait()
        kill(site.starters, "the first starter")
        assert not site.daemons()
        kill(site.daemons, "the daemon of the second start, before it serves")
        site.wait_for_starter()
        kill(lambda: site.daemons() if site.session.connection.serves() else [], "the third")
        # The program keeps reading, but does not make a fourth start within ten minutes of the
        # first start.
        for _ in range(20):
            read()
        assert (site.starts(), site.starters()) == (3, [])
        site.session.paths.forget_starts()
        kill(site.daemons, "another daemon, after the earlier starts were forgotten")


def test_a_step_that_ends_may_start_it_again_and_a_user_who_stops_it_not(
    site: Started, files: Files
) -> None:
    site.learn()
    with Steps(site.session, READER, files.path("f00001")) as reader:
        reader.wait()
        stop(site.daemon())
        age(site)

        def is_started() -> bool:
            reader.go()
            reader.wait()
            return bool(site.daemons())

        wait_until(is_started, what="a second daemon", every=0.1)
        site.daemon()
        assert site.starts() == 2
        assert site.session.monarch("start").stdout.startswith("a daemon serves")
        wait_until(lambda: bool(reader_is_attached(site, reader)), what="the second session")
        assert site.session.monarch("stop").returncode == 0
        for _ in range(20):
            reader.go()
            reader.wait()
        assert (site.starts(), site.daemons()) == (0, [])


def killed_and_started_again_by_short_programs(site: Started, file: Path) -> None:
    (daemon,) = site.daemons()
    daemon.kill()
    psutil.wait_procs([daemon], timeout=20)

    def is_started() -> bool:
        assert site.run(CAT, file).returncode == 0
        return bool(site.daemons())

    wait_until(is_started, what="another daemon", every=0.2)
    site.daemon()


# Runs only with --long. The next test is similar, but always runs: it kills a daemon that `monarch
# start` has started.
@pytest.mark.long
def test_short_programs_start_a_killed_daemon_again(site: Started, files: Files) -> None:
    """Programs start a killed daemon again even if none of them lives long enough to notice that
    the daemon's heartbeat has stopped."""
    assert site.run(CAT, files.path("f00001")).returncode == 0
    site.daemon()
    killed_and_started_again_by_short_programs(site, files.path("f00001"))


def test_a_daemon_of_monarch_start_is_started_again(site: Started, files: Files) -> None:
    assert site.session.monarch("start").returncode == 0
    assert "wish yes" in site.session.paths.autostart.read_text().splitlines()
    killed_and_started_again_by_short_programs(site, files.path("f00001"))


def test_a_killed_daemon_that_is_not_wished_stays_away(unwished: Started, files: Files) -> None:
    """With `autostart: false`, no program starts a killed daemon again. A program that began before
    this setting was recorded still starts one starter. The starter records the setting, so no
    second starter runs."""
    record = unwished.session.paths.autostart
    with Steps(unwished.session, IDLE_READER, files.path("f00001")) as reader:
        reader.wait()
        unwished.session.start()
        wait_until(lambda: reader_is_attached(unwished, reader), what="the session")
        unwished.session.kill()

        def is_recorded() -> bool:
            reader.go()
            reader.wait()
            return record.exists()

        wait_until(is_recorded, what="the record", every=0.1)
        assert "wish no" in record.read_text().splitlines()
        # If the setting were not recorded, a second starter would run after 1 s.
        end = time.monotonic() + sized(1.5, 3)
        while time.monotonic() < end:
            reader.go()
            reader.wait()
            time.sleep(0.01)
        unwished.wait_for_starter()
        assert (counted(unwished), unwished.daemons()) == (1, [])
