"""Daemons, peers and readers are killed, stopped and started repeatedly (killing.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import draws
from trials.killing import PAUSE_US, SHARED, run
from trials.sites import SITES


# The short cases have 30 interventions in all, about two of each kind. With --long, the kinds occur
# with the frequencies of WEIGHTS.
@pytest.mark.parametrize(
    ("site", "seed", "count"),
    [
        ("alone", 1, 30 - 2 * len(SHARED)),
        ("shared", 1, 2 * len(SHARED)),
        pytest.param("alone", 2, 700, marks=pytest.mark.long),
        pytest.param("shared", 2, 300, marks=pytest.mark.long),
    ],
)
def test_readers_notice_nothing(
    tmp_path: Path, slowsource_binary: Path, reader: Path, site: str, seed: int, count: int
) -> None:
    with SITES[site](tmp_path, slowsource_binary) as made:
        tally = run(made, reader, seed, count, draws.sized(3 * PAUSE_US, PAUSE_US))
    print(tally)
    assert tally.kills[made.kind] and tally.kills["reader"]
