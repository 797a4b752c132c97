"""The command top."""

import os
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Group
from rich.live import Live

from monarch_py.cli.options import examples, served_config_option
from monarch_py.cli.screen import console, show
from monarch_py.errors import SessionError
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
from monarch_py.report.top import View
from monarch_py.util.signals import handling

# Time [s] between two requests for the list of files that programs have opened. The view requests
# this list less often than the status, because the daemon needs more time for the list.
OPEN_S = 5.0
# Time [s] between the first two status reports. The first frame appears after the second report,
# because a rate is computed from two reports.
FIRST_S = 0.3
PIPE_WIDTH = 200
ESCAPE = b"\x1b"
QUIT = frozenset(b"qQ\x03\x04")
# Matches the bytes that a terminal sends for an arrow key or a function key. Such a key must not
# end the view, even if its bytes contain a letter of QUIT.
SEQUENCE = re.compile(rb"\x1b(\[[0-?]*[ -/]*|O)[@-~]")


class _OpenFiles(threading.Thread):
    """A thread that asks the daemon which files each program has opened. The view does not wait for
    the answers, because they may come late if a file system hangs."""

    def __init__(self, session: SessionDir, view: View) -> None:
        super().__init__(name="open files", daemon=True)
        self._session, self._view = session, view
        self._is_over = threading.Event()

    def run(self) -> None:
        try:
            while True:
                self._view.take_open(DaemonConnection(self._session).ask("open")["open"])
                if self._is_over.wait(OPEN_S):
                    return
        except SessionError:
            return  # The next status request of the view fails too, and reports the error.

    def end(self) -> None:
        self._is_over.set()


@contextmanager
def _keys() -> Iterator[bool]:
    """Yields whether standard input is a terminal. If it is, the terminal delivers each key at once
    inside the `with` block, and does not echo it."""
    if not sys.stdin.isatty():
        yield False
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield True
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def _screen() -> Iterator[Callable[[View], None]]:
    """Yields a function that shows a frame of a view. On a terminal, each frame replaces the
    previous frame. Otherwise, each frame is printed below the previous frame."""
    out = console()
    if not out.is_terminal:
        yield lambda view: show(Group(view.frame(PIPE_WIDTH), ""))
        return
    with Live(console=out, screen=True, auto_refresh=False) as live:
        yield lambda view: live.update(view.frame(out.width), refresh=True)


def _is_quit(until: float, *, has_keys: bool) -> bool:
    """Waits until the time `until`, and then returns False. If the user presses a key that ends the
    view, returns True at once.

    until : a value of time.monotonic() [s]
    has_keys : whether standard input is a terminal
    """
    if not has_keys:
        time.sleep(max(0.0, until - time.monotonic()))
        return False
    # Read the keys even if the time `until` has passed. It may have passed because the daemon
    # answered late.
    while select.select([sys.stdin], [], [], max(0.0, until - time.monotonic()))[0]:
        if _ends(os.read(sys.stdin.fileno(), 64)):
            return True
    return False


def _ends(keys: bytes) -> bool:
    """Whether the view must end after these keys.

    keys : the bytes that one read of the terminal has returned. b"" means that the terminal no
        longer exists. The view must end in this case too
    """
    others = SEQUENCE.sub(b"", keys)
    return not keys or others == ESCAPE or not QUIT.isdisjoint(others)


@click.command(
    short_help="Watch tiers, rates and programs.",
    epilog=examples("monarch top --count 1     # print the view once, for a log"),
)
@served_config_option
@click.option(
    "-d",
    "--delay",
    type=click.FloatRange(min=0.1),
    default=1.0,
    metavar="SECONDS",
    help="Time between two updates.  [default: 1]",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after this many updates.")
def top(config_file: Path, delay: float, count: int | None) -> None:
    """Watch a daemon: how full its tiers are, where the bytes come from, and who reads.

    Press q to end. If standard output is not a terminal, each update is printed below the last one.
    """
    session, view = SessionDir.of(config_file), View()
    view.take(DaemonConnection(session).ask("status"))
    opened = _OpenFiles(session, view)
    opened.start()
    try:
        # SIGTERM and SIGHUP raise SystemExit, so that `_keys` restores the terminal.
        with (
            handling((signal.SIGTERM, signal.SIGHUP), lambda number, _: sys.exit(128 + number)),
            _keys() as has_keys,
            _screen() as draw,
        ):
            until, looks = time.monotonic() + FIRST_S, 0
            while looks != count and not _is_quit(until, has_keys=has_keys):
                until, looks = time.monotonic() + delay, looks + 1
                view.take(DaemonConnection(session).ask("status"))
                draw(view)
    finally:
        opened.end()
