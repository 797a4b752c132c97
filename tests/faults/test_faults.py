"""A sample of the runs of `python -m faults`: a fault in one system call breaks no promise."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from support import draws
from trials.reading import build_reader

from faults.__main__ import SITES, plan
from faults.calls import CALLS, LATE_DAEMON_MS, LATE_READER_MS
from faults.classes import CallClass
from faults.scenario import Site, build_faulter

# For each role, the test draws faults at random and tries them one after the other. It ends when
# RUNS of these faults have taken place. It tries at most MOST_DRAWN faults.
RUNS, MOST_DRAWN, SEED = draws.sized(1, 8), draws.sized(20, 80), 20261126


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Builds the program that makes faults, and the reader."""
    if os.geteuid() != 0:
        pytest.skip("only root can filter another program's system calls")
    programs = tmp_path_factory.mktemp("programs")
    return build_faulter(programs), build_reader(programs)


@pytest.fixture(scope="module")
def traced(
    programs: tuple[Path, Path],
) -> Iterator[Callable[[str], tuple[Site, list[CallClass]]]]:
    """Yields a function that returns a role's site and the classes of the role's calls. All tests
    of a role get the same site and the same classes."""
    with ExitStack() as stack:

        @cache
        def site_of(role: str) -> tuple[Site, list[CallClass]]:
            site = stack.enter_context(SITES[role](*programs))
            return site, site.classes(role)

        yield site_of


# Each role has a test of its own, so that several workers can test different roles.
@pytest.mark.parametrize(
    ("role", "least"), [("daemon", 200), ("node", 90), ("planned", 90), ("run", 90), ("reader", 50)]
)
def test_a_sample_of_faults_breaks_no_promise(
    traced: Callable[[str], tuple[Site, list[CallClass]]], role: str, least: int
) -> None:
    left_out = {f"delay={LATE_DAEMON_MS}", f"delay={LATE_READER_MS}"}
    if role == "run" and not draws.is_long:
        # A "kill" works only in a call of `monarch run` itself. Most classes of calls belong to
        # processes that `monarch run` has started, so most "kill" faults would not take place.
        left_out.add("kill")
    site, classes = traced(role)
    planned = list(plan(role, classes, []))
    assert len({call.key for _, call, _ in planned}) >= least, "the scenario has shrunk"
    quick = [each for each in planned if each[2].action not in left_out]
    drawn = random.Random(SEED).sample(quick, min(MOST_DRAWN, len(quick)))
    # Threads run in another order each time, so the call in which a fault is to occur may not
    # happen. The next fault is then tried.
    hits = 0
    for name, call, fault in drawn:
        outcome = site.fault(role, call, fault.action)
        assert not outcome.broken, (name, outcome)
        hits += outcome.hit
        if hits == RUNS:
            return
    raise AssertionError(f"only {hits} of {MOST_DRAWN} faults took place")


def test_a_fault_in_the_programs_own_call_is_found(
    traced: Callable[[str], tuple[Site, list[CallClass]]],
) -> None:
    """If the program itself gets a read error of the source, the outcome has a broken promise."""
    site, classes = traced("reader")
    read = next(call for call in classes if call.call == "read" and "/source" in call.target)
    outcome = site.fault("reader", read, "error=5")
    assert outcome.hit
    assert any("errno 5" in what for what in outcome.broken), outcome


def test_calls_are_named_once() -> None:
    assert len({call.number for call in CALLS.values()}) == len(CALLS)
