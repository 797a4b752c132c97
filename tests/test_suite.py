"""The test suite itself: how it treats ignored signals, and when it runs tests that must run
alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HUNG_UP = (signal.SIGHUP, signal.SIGINT)


def test_programs_that_tests_start_do_not_ignore_signals() -> None:
    done = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("SigIgn:"))
    ignored = int(line.split()[1], 16)
    assert not [number for number in HUNG_UP if ignored >> (number - 1) & 1]


def test_nor_does_a_suite_under_nohup() -> None:
    """Programs that tests start do not ignore SIGHUP and SIGINT, even if the suite itself was
    started with both signals ignored, as under nohup or in a shell's background."""
    name = test_programs_that_tests_start_do_not_ignore_signals.__name__
    inner = f"{Path(__file__).resolve()}::{name}"
    # The plugins that the suite needs, and no other.
    plugins = [word for name in ("xdist", "pytest_timeout") for word in ("-p", name)]
    words = [sys.executable, "-m", "pytest", "-q", *plugins, "-p", "no:cacheprovider", inner]
    script = "trap '' HUP INT; exec \"$@\""
    done = subprocess.run(
        ["sh", "-c", script, "sh", *words], capture_output=True, text=True, check=False,
        timeout=100, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


TESTS = """
import os, time
from pathlib import Path
import pytest

def note(kind):
    began = time.monotonic()
    time.sleep(0.02)
    with Path("log").open("a") as log:
        print(kind, os.getpid(), began, time.monotonic(), file=log)

@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("number", range(3))
def test_that_is_alone(number):
    note("alone")

@pytest.mark.parametrize("number", range(OTHERS))
def test_like_others(number):
    note("other")
"""


CONFTEST = """
import pytest
from support.alone import AloneLast

def pytest_xdist_make_scheduler(config, log):
    return AloneLast(config, log)

@pytest.fixture(params=["alone_last"])
def alone():
    pass
"""


@pytest.mark.parametrize("count", [30, 1])
def test_who_is_to_be_alone_runs_when_the_others_have_ended(tmp_path: Path, count: int) -> None:
    """Tests with the fixture `alone` run on one worker, after all other tests have ended. This also
    holds if there are fewer other tests than workers."""
    here = Path(__file__).parent
    (tmp_path / "test_some.py").write_text(TESTS.replace("OTHERS", str(count)))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    words = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "xdist"]
    done = subprocess.run(
        [*words, "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=100,
        env={**os.environ, "PYTHONPATH": str(here), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    others = [line for line in lines if line[0] == "other"]
    last = [line for line in lines if line[0] == "alone"]
    assert (len(others), len(last)) == (count, 3)
    assert len({line[1] for line in others}) == min(count, 2)
    assert len({line[1] for line in last}) == 1
    assert max(float(line[3]) for line in others) <= min(float(line[2]) for line in last)
