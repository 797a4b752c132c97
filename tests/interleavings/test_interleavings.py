"""The library and the catalog's writer, in every order of their steps within a bound: what happens
to an entry, to a copy that is being filled, and to a descriptor that becomes its copy's, while
other threads close, replace, lock and read. The mappings have a model (tests/csrc)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from csrc.test_sanitizers import with_names
from support.segments import segments
from support.session import MIB, Session

from interleavings.bugs import BUGS
from interleavings.building import Trials

LIMIT_S, MOST_RUNS = 300, 1 << 20
# The counts of each trial that must not be 0, and its interrupts; with --long it has one more.
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


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return Trials(tmp_path_factory.mktemp("interleavings"))


@pytest.fixture(scope="module")
def program(trials: Trials) -> Path:
    return trials.program("trials")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory."""
    with tempfile.TemporaryDirectory(prefix="monarch-interleavings-", dir="/dev/shm") as path:
        yield Path(path)


def run(
    program: Path, directory: Path, name: str, interrupts: int, most: int
) -> subprocess.CompletedProcess[str]:
    """A trial in a session without a daemon. most : runs"""
    for place in ("source", "tier", "kept"):
        (directory / place).mkdir(mode=0o700)
    tier = directory / "tier"
    session = Session(
        directory,
        directory / "source",
        tiers=[{"mount_point": tier, "max_storage_quota": 64 * MIB}],
    )
    fd = os.open(tier, os.O_RDONLY)
    with segments(session) as shared:
        shared.set_tiers([SimpleNamespace(fd=fd, copies=tier)])  # type: ignore[list-item]
        done = subprocess.run(
            [program, name, str(interrupts), str(most), directory],
            env=session.env(preload=False, MONARCH_CONFIG=str(session.config)),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    os.close(fd)
    return done


@pytest.mark.parametrize("name", TRIALS)
def test_no_order_of_steps_is_wrong(program: Path, place: Path, name: str) -> None:
    met, interrupts = TRIALS[name]
    done = run(program, place, name, interrupts, MOST_RUNS)
    assert done.returncode == 0, with_names(done.stderr, program)
    counts = json.loads(done.stdout)
    assert all(counts[what] for what in met), counts
    assert counts["runs"] < MOST_RUNS


@pytest.mark.long
@pytest.mark.parametrize("name", TRIALS)
def test_no_order_with_one_more_interrupt_is_wrong(program: Path, place: Path, name: str) -> None:
    done = run(program, place, name, TRIALS[name][1] + 1, MOST_RUNS)
    assert done.returncode == 0, with_names(done.stderr, program)


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_found(trials: Trials, place: Path, bug: str) -> None:
    program = trials.program(f"trials_{bug.replace(' ', '_')}", *BUGS[bug].changes)
    done = run(program, place, BUGS[bug].trial, 2, 1 << 14)
    assert done.returncode == 1 and re.search(
        r"run \d+: .*(not so|: word|does not end|nobody goes on)", done.stderr
    ), done
