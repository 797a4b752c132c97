"""Runs the library and the daemon's engine in every interleaving of their steps with at most a
given number of interrupts (scheduler.h).

The trials cover catalog entries, copies that are being filled, claims, and descriptors that are
promoted or that wait until a fill of their file is ordered. In each trial, other threads close
descriptors, or replace, lock or read the files. Mappings are tested with a model instead
(tests/csrc).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import draws

from interleavings.bugs import BUGS
from interleavings.building import Trials
from interleavings.exploring import explore

LIMIT_S, MOST_ORDERS = 300.0, 1 << 20
# With --long, a trial may take LONG_LIMIT_S [s], and each process runs at most LONG_ORDERS of the
# trial's orders.
LONG_LIMIT_S, LONG_ORDERS = 3600.0, 1 << 20
# For each trial, the counters that must not be 0 after it, and the largest number of interrupts in
# an order. A run with --long allows one more interrupt.
TRIALS = {
    "entry": (["hits", "misses"], 1),
    "coming": (["promotions", "waits"], 1),
    "closing": (["promotions"], 2),
    "replacing": (["promotions"], 2),
    "offset": (["waits"], 1),
    "lock": (["promotions"], 1),
    "handover": (["handed"], 1),
    "flags": (["handed"], 1),
    "filling": (["waits", "bytes_while_filling"], 1),
    "failing": (["waits", "bytes_while_filling"], 1),
    "recalled": (["handed", "opened_again"], 1),
    "granted": (["handed", "opened_again", "reads_of_handed"], 1),
    "ordered": (["handed", "reads_of_handed"], 1),
    "limit": (["handed", "opened_again", "reads_of_handed"], 1),
    "shared": (["handed", "opened_again", "reads_of_handed"], 1),
    "claimed": (["handed", "reads_of_handed"], 1),
    "released": (["opened_again"], 1),
    "killed": (["opened_again"], 1),
}
# WHOLE: trials with so few interleavings that each of them is run. For every other trial, a run
# without --long tries only interleavings whose first interrupt is at decision 4, 8, 12 etc. (for
# the trial `offset`: at decision 2, 4, 6 etc.). These interleavings suffice to find the bugs that
# bugs.py plants for the trial.
WHOLE = ("lock", "filling", "failing")
PARTS = {name: 4 for name in TRIALS if name not in WHOLE} | {"offset": 2}
NTH = draws.sized(PARTS, {})


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return Trials(tmp_path_factory.mktemp("interleavings"))


@pytest.fixture(scope="module")
def program(trials: Trials) -> Path:
    return trials.program("trials")


@pytest.fixture
def place() -> Iterator[Path]:
    """Yields a directory in memory."""
    with tempfile.TemporaryDirectory(prefix="monarch-interleavings-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.mark.parametrize("name", TRIALS)
def test_no_order_of_steps_is_wrong(program: Path, place: Path, name: str) -> None:
    met, interrupts = TRIALS[name]
    nth = NTH.get(name, 1)
    found = explore(program, place, name, interrupts, most=MOST_ORDERS, limit_s=LIMIT_S, nth=nth)
    assert not found.wrong, found.wrong
    assert all(found.counts[what] for what in met), found.counts
    assert found.counts["runs"] < MOST_ORDERS


@pytest.mark.long
@pytest.mark.parametrize("name", TRIALS)
def test_no_order_with_one_more_interrupt_is_wrong(program: Path, place: Path, name: str) -> None:
    interrupts = TRIALS[name][1] + 1
    found = explore(program, place, name, interrupts, most=LONG_ORDERS, limit_s=LONG_LIMIT_S)
    assert not found.wrong, found.wrong


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_found(trials: Trials, place: Path, bug: str) -> None:
    program = trials.program(f"trials_{bug.replace(' ', '_')}", *BUGS[bug].changes)
    trial = BUGS[bug].trial
    nth = NTH.get(trial, 1)
    found = explore(program, place, trial, 2, most=1 << 14, limit_s=LIMIT_S, nth=nth)
    assert re.search(
        r"run \d+: .*(check failed|: word|does not end|no thread can continue)", found.wrong
    ), found
