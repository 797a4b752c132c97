"""`monarch top` on a terminal, in a pipe, and when its daemon ends."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyte
import pytest
from cli.conftest import FILES, Factory
from support import draws
from support.session import MIB, Session

from monarch_py.cli.top import _is_quit
from monarch_py.report.rates import Rates, seconds_left
from monarch_py.report.top import View


class Terminal:
    """A pseudo-terminal on which a command runs, and the screen that it shows."""

    def __init__(self, columns: int, lines: int = 30) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.ours, self.theirs = pty.openpty()
        size = struct.pack("4H", lines, columns, 0, 0)
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, size)

    def wait(self, *texts: str, timeout: float = 30) -> str:
        """Waits until all these texts are on the screen, for at most `timeout` [s]. Returns the
        screen."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            shown = "\n".join(self.screen.display)
            if all(text in shown for text in texts):
                return shown
            self.read()
        raise AssertionError(f"{texts} are not all among:\n{shown}")

    def read(self) -> None:
        """Waits up to 0.1 s for output of the command, and updates the screen with it."""
        if select.select([self.ours], [], [], 0.1)[0]:
            self._stream.feed(os.read(self.ours, 65536))


@contextmanager
def running(session: Session, terminal: Terminal) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        session.command("top", "-d", "0.2"),
        env={**session.env(preload=False), "TERM": "xterm-256color"},
        stdin=terminal.theirs,
        stdout=terminal.theirs,
        stderr=terminal.theirs,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            os.close(terminal.ours)
            os.close(terminal.theirs)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, old_source: Path) -> Iterator[Session]:
    """One session for all tests that only query the daemon or read files."""
    with Session(tmp_path_factory.mktemp("looked_at"), old_source, prefetch="eager") as session:
        session.start().wait_all_present()
        yield session


@pytest.mark.parametrize("columns", draws.cases([58, 80, 200], short=[58, 200]))
def test_it_is_seen_on_a_terminal_until_q(session: Session, columns: int) -> None:
    terminal = Terminal(columns)
    with running(session, terminal) as process:
        shown = terminal.wait("opens", "100 %", "256 MiB", "tier", "source", "waits")
        assert f"{len(FILES)}" in shown
        os.write(terminal.ours, b"q")
        assert process.wait(20) == 0


def test_rates_are_right_within_a_look(session: Session) -> None:
    """The highest rate of opens on the screen differs by less than a factor of two from the rate
    that the program itself has counted."""
    code = (
        "import sys, time\n"
        "end, n = time.monotonic() + float(sys.argv[2]), 0\n"
        "while time.monotonic() < end:\n"
        "    open(sys.argv[1]).close(); n += 1; time.sleep(0.01)\n"
        "print(n / float(sys.argv[2]))\n"
    )
    seconds = draws.sized(1.0, 3.0)
    terminal, seen = Terminal(120), [0.0]
    with running(session, terminal):
        terminal.wait("opens")
        with subprocess.Popen(
            [sys.executable, "-c", code, str(session.source / "a"), str(seconds)],
            env=session.env(),
            stdout=subprocess.PIPE,
            text=True,
        ) as reader:
            while reader.poll() is None:
                terminal.read()
                line = next(
                    (x for x in terminal.screen.display if x.startswith("opens")), "opens 0/"
                )
                seen.append(float(line.split()[1].partition("/")[0].replace(",", "")))
            assert reader.stdout is not None
            rate = float(reader.stdout.read())
    assert rate * 0.5 < max(seen) < rate * 2


def test_in_a_pipe_each_look_is_printed(session: Session) -> None:
    done = session.monarch("top", "-n", "2", "-d", "0.1")
    assert (done.returncode, done.stdout.count("monarch top"), done.stderr) == (0, 2, "")


def test_the_first_looks_show_the_programs(session: Session) -> None:
    """The first screens show the files that programs have open. `monarch top` asks the daemon for
    these files at the start, and again every 5 s."""
    code = "import sys; f = open(sys.argv[1]); print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(session.source / "a")],
        env=session.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"up\n"
        done = session.monarch("top", "-n", "10", "-d", "0.15")
        reader.communicate()
    assert re.search(rf"^python\S* {reader.pid} +1 +tier 0 1 +a$", done.stdout, re.M), done.stdout


def test_a_signal_leaves_the_terminal_in_order(session: Session) -> None:
    # Mode 1049 is the terminal's second screen. pyte numbers private modes as mode << 5.
    terminal, full_screen = Terminal(100), 1049 << 5
    with running(session, terminal) as process:
        terminal.wait("opens")
        assert not termios.tcgetattr(terminal.theirs)[3] & termios.ECHO
        assert full_screen in terminal.screen.mode
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
        assert termios.tcgetattr(terminal.theirs)[3] & termios.ECHO
        terminal.read()
        assert full_screen not in terminal.screen.mode


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(b"\x1b[A", False), (b"\x1bOQ", False), (b"x", False), (b"\x1b", True), (b"xyq", True)],
)
def test_which_keys_end_it(monkeypatch: pytest.MonkeyPatch, keys: bytes, expected: bool) -> None:
    ours, theirs = pty.openpty()
    tty.setcbreak(theirs)
    with os.fdopen(ours, "wb", buffering=0) as keyboard, os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        keyboard.write(keys)
        assert _is_quit(time.monotonic() + 0.2, has_keys=True) == expected
        # A key that was pressed earlier counts even if there is no time left to wait for keys. No
        # time is left if a query of the daemon takes longer than the interval between queries.
        keyboard.write(keys)
        assert _is_quit(time.monotonic() - 1, has_keys=True) == expected


def test_it_ends_with_its_daemon(session_factory: Factory, source: Path) -> None:
    session, terminal = session_factory(source).start(), Terminal(100)
    with running(session, terminal) as process:
        terminal.wait("opens")
        session.stop()
        assert process.wait(20) == 3


# --- rates from reports -------------------------------------------------------------------------


def report(uptime_s: float, **totals: float) -> dict[str, Any]:
    rates = ("opens", "hits", "waits", "wait_seconds", "filled_bytes", "bytes_from_tier")
    source_reads = ("source_bytes_read_by_fills", "source_bytes_read_by_programs")
    names = (*rates, *source_reads, "bytes_from_peers")
    source = {
        "bytes": 100 * MIB, "present_bytes": 40 * MIB, "bypass_bytes": {"excluded": 10 * MIB},
    }  # fmt: skip
    return {
        "pid": 1,
        "uptime_seconds": uptime_s,
        "totals": {**dict.fromkeys(names, 0), **totals},
        "nodes": None,
        "tiers": [{"usable": True, "free_bytes": 1000 * MIB}, {"usable": False, "free_bytes": 0}],
        "sources": [source],
    }


def test_rates_are_differences_by_the_second() -> None:
    before = report(10, opens=100, hits=50, wait_seconds=1)
    rates = Rates.between(before, report(12, opens=300, hits=150, wait_seconds=4))
    assert (rates.opens, rates.hit_ratio, rates.waiting) == (100, 0.5, 1.5)
    assert Rates.between(None, before) == Rates.between({**before, "pid": 2}, before) == Rates()
    assert Rates().hit_ratio is None


def test_the_time_that_is_left() -> None:
    assert seconds_left(report(1), 10 * MIB) == 5
    full = report(1)
    full["tiers"][0]["free_bytes"] = 20 * MIB
    assert seconds_left(full, 10 * MIB) == 2
    assert seconds_left(report(1), 0) is None


def test_rates_of_fills_are_of_the_last_seconds() -> None:
    view = View()
    for second in range(60):
        view.take(report(second, filled_bytes=0))
    assert len(view._reports) <= 22
