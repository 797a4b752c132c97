"""A sample of `python -m faults`: one fault in one system call, and every promise is held."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from trials.reading import build_reader

from faults.__main__ import SITES, plan
from faults.calls import CALLS, LATE_DAEMON_MS, LATE_READER_MS, Fault
from faults.classes import CallClass
from faults.scenario import Site, build_faulter

Run = tuple[str, CallClass, Fault]

# Of each role.
RUNS, MOST_DRAWN, SEED = 4, 20, 20261126


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    if os.geteuid() != 0:
        pytest.skip("a filter of system calls for another program takes root")
    programs = tmp_path_factory.mktemp("programs")
    faulter, reader = build_faulter(programs), build_reader(programs)
    with ExitStack() as stack:
        yield {r: stack.enter_context(make(faulter, reader)) for r, make in SITES.items()}


@pytest.fixture(scope="module")
def classes(sites: dict[str, Site]) -> dict[str, list[CallClass]]:
    return {role: site.classes(role) for role, site in sites.items()}


@pytest.fixture(scope="module")
def planned(classes: dict[str, list[CallClass]]) -> dict[str, list[Run]]:
    """The faults of each role, without those that a role before it gets."""
    met: list[CallClass] = []
    found = {}
    for role, calls in classes.items():
        found[role] = list(plan(role, calls, met))
        met += calls
    return found


@pytest.mark.parametrize(
    ("role", "least"), [("daemon", 200), ("reader", 50), ("node", 90), ("planned", 20), ("run", 50)]
)
def test_every_role_makes_calls_of_many_kinds(
    planned: dict[str, list[Run]], role: str, least: int
) -> None:
    """Else the scenario has shrunk."""
    assert len({call.key for _, call, _ in planned[role]}) >= least


@pytest.mark.parametrize("role", SITES)
def test_a_sample_of_faults_breaks_no_promise(
    sites: dict[str, Site], planned: dict[str, list[Run]], role: str
) -> None:
    late_ms = {f"delay={LATE_DAEMON_MS}", f"delay={LATE_READER_MS}"}
    quick = [each for each in planned[role] if each[2].action not in late_ms]
    drawn = random.Random(SEED).sample(quick, MOST_DRAWN)
    # Threads take turns in another order each time: some calls do not come, and others are drawn.
    hits = 0
    for name, call, fault in drawn:
        outcome = sites[role].fault(role, call, fault.action)
        assert not outcome.broken, (name, outcome)
        hits += outcome.hit
        if hits == RUNS:
            return
    raise AssertionError(f"of {MOST_DRAWN} faults {hits} were put in")


def test_a_fault_in_the_programs_own_call_is_found(
    sites: dict[str, Site], classes: dict[str, list[CallClass]]
) -> None:
    """The harness itself: an error of the source that no program would have without the fault."""
    read = next(
        call for call in classes["reader"] if call.call == "read" and "/source" in call.target
    )
    outcome = sites["reader"].fault("reader", read, "error=5")
    assert outcome.hit
    assert any("errno 5" in what for what in outcome.broken), outcome


def test_calls_are_named_once() -> None:
    assert len({call.number for call in CALLS.values()}) == len(CALLS)
