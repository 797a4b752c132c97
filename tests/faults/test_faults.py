"""A sample of `python -m faults`: one fault in one system call, and every promise is held."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from support import draws
from trials.reading import build_reader

from faults.__main__ import SITES, plan
from faults.calls import CALLS, LATE_DAEMON_MS, LATE_READER_MS
from faults.scenario import build_faulter

# Of each role.
RUNS, MOST_DRAWN, SEED = draws.sized(1, 8), draws.sized(20, 80), 20261126


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program that puts faults in, and the reader."""
    if os.geteuid() != 0:
        pytest.skip("a filter of system calls for another program takes root")
    programs = tmp_path_factory.mktemp("programs")
    return build_faulter(programs), build_reader(programs)


# Each role has a test of its own, so that workers share the roles.
@pytest.mark.parametrize(
    ("role", "least"), [("daemon", 200), ("reader", 50), ("node", 90), ("planned", 90), ("run", 90)]
)
def test_a_sample_of_faults_breaks_no_promise(
    programs: tuple[Path, Path], role: str, least: int
) -> None:
    late_ms = {f"delay={LATE_DAEMON_MS}", f"delay={LATE_READER_MS}"}
    with SITES[role](*programs) as site:
        planned = list(plan(role, site.classes(role), []))
        assert len({call.key for _, call, _ in planned}) >= least, "the scenario has shrunk"
        quick = [each for each in planned if each[2].action not in late_ms]
        drawn = random.Random(SEED).sample(quick, min(MOST_DRAWN, len(quick)))
        # Threads run in another order each time: some calls do not come, and others are drawn.
        hits = 0
        for name, call, fault in drawn:
            outcome = site.fault(role, call, fault.action)
            assert not outcome.broken, (name, outcome)
            hits += outcome.hit
            if hits == RUNS:
                return
    raise AssertionError(f"of {MOST_DRAWN} faults {hits} were put in")


def test_a_fault_in_the_programs_own_call_is_found(programs: tuple[Path, Path]) -> None:
    """The harness itself: an error of the source that no program would have without the fault."""
    with SITES["reader"](*programs) as site:
        read = next(
            call
            for call in site.classes("reader")
            if call.call == "read" and "/source" in call.target
        )
        outcome = site.fault("reader", read, "error=5")
    assert outcome.hit
    assert any("errno 5" in what for what in outcome.broken), outcome


def test_calls_are_named_once() -> None:
    assert len({call.number for call in CALLS.values()}) == len(CALLS)
