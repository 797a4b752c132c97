"""The suite itself: what it needs of the shell that it was started in."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

HUNG_UP = (signal.SIGHUP, signal.SIGINT)


def test_programs_that_tests_start_do_not_ignore_signals() -> None:
    done = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("SigIgn:"))
    ignored = int(line.split()[1], 16)
    assert not [number for number in HUNG_UP if ignored >> (number - 1) & 1]


def test_nor_does_a_suite_under_nohup() -> None:
    """As nohup and a shell's background start it."""
    name = test_programs_that_tests_start_do_not_ignore_signals.__name__
    inner = f"{Path(__file__).resolve()}::{name}"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", inner]
    script = "trap '' HUP INT; exec \"$@\""
    done = subprocess.run(
        ["sh", "-c", script, "sh", *words], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout
