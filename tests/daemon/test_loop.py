"""Tests how often the daemon's loop takes a turn when there is nothing to do."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from support.draws import sized
from support.epoch import make_files
from support.session import MIB, Session, wait_until

from monarch_py.config.load import load_config
from monarch_py.daemon.pacing import (
    BUSY_TURN_MS,
    FEW,
    LONG_REST_S,
    REST_BACK,
    TURN_MS,
    may_rest_on,
    rest_after,
)
from monarch_py.daemon.segments import COUNTERS
from monarch_py.daemon.server import Daemon
from monarch_py.ipc.session import Segment
from monarch_py.native import lib

# The daemon's loop sleeps for less than this time [s] while there is work, and for more otherwise.
LONG = 0.6
# An open that takes this long [ns] shows that programs wait for the source.
SLOW_NS = 5_000_000


def test_a_loop_that_is_rung_all_the_time_rests(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """The daemon's loop uses only a small part of a core even if programs wake it all the time."""
    root = tmp_path / "source"
    make_files(root, 3, 100)
    session = session_factory(root).start()
    session.wait_scanned()
    assert session.daemon is not None
    daemon = psutil.Process(session.daemon.pid)
    segment = Segment.open(session.paths.clients, writable=True)
    clients = segment.as_struct("struct monarch_clients")
    began_s, times = time.monotonic(), daemon.cpu_times()
    while time.monotonic() - began_s < sized(0.5, 1):
        lib.monarch_ring_doorbell(clients)
    now = daemon.cpu_times()
    assert now.user + now.system - times.user - times.system < 0.4 * (time.monotonic() - began_s)


def test_a_loop_that_nobody_rings_sleeps_long(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """There is a staging area, so programs report their opens. Without a plan, nothing in the
    daemon's loop waits for these reports, so the loop sleeps long. Short sleeps would be expensive,
    because a turn on a core that has slept starts with cold caches."""
    root, area = tmp_path / "source", tmp_path / "staging"
    area.mkdir()
    make_files(root, 3, 100)
    staging = {"mount_point": str(area), "max_storage_quota": MIB}
    session = session_factory(root, staging=staging).start()
    segment = Segment.open(session.paths.control, writable=False)
    control = segment.as_struct("struct monarch_control")
    assert control.follow_opens
    beat, since = int(control.heartbeat), time.monotonic()

    def sleeps_long() -> bool:
        nonlocal beat, since
        if int(control.heartbeat) != beat:
            beat, since = int(control.heartbeat), time.monotonic()
        return time.monotonic() - since > LONG

    wait_until(sleeps_long)


@pytest.mark.parametrize(
    ("took_s", "names_last_s", "is_short", "rest_s"),
    [
        (0.001, math.inf, False, 0.009),  # the loop leaves nine tenths of the time to programs
        (0.1, math.inf, False, 0.05),
        (0.1, math.inf, True, 0.01),
        (0.1, 2.0, True, 0.01),
        (0.1, 0.0, False, 0.01),  # the next files are needed now
        (0.1, 0.03, False, 0.03),
        (0.001, 0.2, False, 0.05),  # a quarter of names_last_s
        (0.1, 0.2, False, 0.05),
        (0.001, 9.0, False, 0.1),
    ],
)
def test_the_loop_rests_until_its_next_iteration_is_needed(
    took_s: float, names_last_s: float, is_short: bool, rest_s: float
) -> None:
    assert rest_after(took_s, names_last_s, is_short=is_short) == pytest.approx(rest_s)


@pytest.mark.parametrize(
    ("names_last_s", "orders", "filled", "is_more", "may"),
    [
        (math.inf, 0, 9, False, True),  # all files are ordered
        (math.inf, 100, 50, True, True),  # the remaining 50 orders suffice for the second rest
        (math.inf, 100, 51, True, False),
        (0.1, 0, 0, False, True),  # the scan's files suffice for exactly both rests
        (0.09, 100, 0, False, False),
    ],
)
def test_the_loop_rests_on_while_the_engine_has_work(
    names_last_s: float, orders: int, filled: int, is_more: bool, may: bool
) -> None:
    assert may_rest_on(0.05, names_last_s, orders, filled, is_more=is_more) == may


@pytest.fixture
def make_daemon(
    monkeypatch: pytest.MonkeyPatch, session_factory: Callable[..., Session], tmp_path: Path
) -> Iterator[Callable[..., Daemon]]:
    """Makes daemons in this process. Their loops do not run."""
    root = tmp_path / "source"
    make_files(root, 3, 100)
    with ExitStack() as stack:

        def make(awaits_s: float = 0.0) -> Daemon:
            session = session_factory(root, prefetch="auto")
            monkeypatch.setenv("MONARCH_SHM", str(session.shm))
            session.paths.make()
            daemon = Daemon(load_config(session.config), session.paths, awaits_s=awaits_s)
            stack.callback(daemon.close)
            return daemon

        yield make


def count(daemon: Daemon, **opened: int) -> None:
    """Adds each value of `opened` to the counter that its key names, as the library does when it
    counts opened files."""
    for counter, number in opened.items():
        daemon.shared._stats[0, COUNTERS.index(counter)] += number


@pytest.mark.parametrize(
    ("opened", "is_long"),
    [
        ({"hits": 1}, True),
        ({}, False),
        ({"hits": 1, "misses": 1, "source_opens": 1, "source_open_ns": SLOW_NS}, False),
    ],
)
def test_the_loop_rests_longer_while_programs_open_only_copies(
    monkeypatch: pytest.MonkeyPatch,
    make_daemon: Callable[..., Daemon],
    opened: dict[str, int],
    is_long: bool,
) -> None:
    daemon = make_daemon()
    rest = daemon.filler.engine.rest

    def rest_beside_programs(limit_s: float) -> bool:
        count(daemon, **opened)
        return rest(limit_s)

    monkeypatch.setattr(daemon.filler.engine, "rest", rest_beside_programs)

    def rest_s() -> float:
        """Returns how long the loop rests after an iteration of a millisecond."""
        began_s = time.monotonic()
        daemon._pacing.rest(0.001, busy=False)
        return time.monotonic() - began_s

    if is_long:
        assert rest_s() >= REST_BACK * 0.001
    else:  # busy processors make a rest longer, so only the shortest of the rests is judged
        assert min(rest_s() for _ in range(5)) < REST_BACK * 0.001


@pytest.mark.parametrize(
    ("in_use", "others", "dropping", "pause_ms"),
    [
        (0, 0, 0, TURN_MS),
        (FEW, 0, 0, TURN_MS),  # the engine orders and ends these fills without the loop
        (FEW + 1, 0, 0, BUSY_TURN_MS),
        (1, 1, 0, BUSY_TURN_MS),
        (1, 0, 1, BUSY_TURN_MS),  # a file whose copy is removed may wait for the loop
    ],
)
def test_the_loop_sleeps_longer_while_only_programs_have_files_filled(
    monkeypatch: pytest.MonkeyPatch,
    make_daemon: Callable[..., Daemon],
    in_use: int,
    others: int,
    dropping: int,
    pause_ms: int,
) -> None:
    daemon = make_daemon()
    orders = {True: in_use, False: others, None: in_use + others}
    monkeypatch.setattr(daemon.filler.engine, "pending", lambda *, in_use=None: orders[in_use])
    monkeypatch.setattr(daemon.filler.copies, "_dropping", dropping)
    daemon._pacing.rest(0.001, busy=False)
    assert daemon._pacing.pause_ms(quiet=0) == pause_ms


@pytest.mark.parametrize(("open_ns", "rests"), [(SLOW_NS, False), (1000, True)])
def test_the_first_opens_of_a_fast_source_wait_for_no_iteration(
    make_daemon: Callable[..., Daemon], open_ns: int, rests: bool
) -> None:
    """The first opens wake the loop. If they show that programs hardly wait for the source, the
    loop's next iteration comes later."""
    daemon = make_daemon(3600.0)
    daemon._turn()
    count(daemon, misses=1, source_opens=1, source_open_ns=open_ns)

    def wait_s() -> float:
        rung = int(daemon.shared.clients.doorbell)
        lib.monarch_ring_doorbell(daemon.shared.clients)
        began_s = time.monotonic()
        daemon._pacing.wait(rung, 250)
        return time.monotonic() - began_s

    if rests:
        assert wait_s() >= LONG_REST_S
    else:
        assert min(wait_s() for _ in range(5)) < LONG_REST_S
