"""A schedule of groups contains every sample once, apart from padding. Each rank reads contiguous
ranges, and all ranks have the same number of steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_py.errors import ConfigError
from monarch_py.plan.schedule import EpochSchedule, group_schedule

NUMBERS = {
    "length": st.integers(1, 400),
    "group": st.integers(1, 120),
    "ranks": st.integers(1, 9),
    "batch_size": st.integers(1, 30),
    "epoch": st.integers(0, 3),
}


def runs_of(schedule: EpochSchedule, rank: int) -> list[int]:
    """Returns a rank's samples in the order of access."""
    batches = [schedule.batch(step, rank) for step in range(schedule.steps)]
    return [int(sample) for batch in batches for sample in batch]


@settings(deadline=None)
@given(**NUMBERS)
def test_every_sample_comes_once_but_for_the_stated_padding(
    length: int, group: int, ranks: int, batch_size: int, epoch: int
) -> None:
    schedule = group_schedule(length, group, 17, epoch, ranks, batch_size)
    counts = np.bincount(schedule.samples, minlength=length)
    assert len(counts) == length and counts.min() >= 1
    assert counts.sum() - length == -length % ranks
    assert all(len(set(row)) == 1 for row in schedule.sizes().tolist())


@settings(deadline=None)
@given(**NUMBERS)
def test_a_rank_reads_contiguous_ranges_of_its_groups(
    length: int, group: int, ranks: int, batch_size: int, epoch: int
) -> None:
    schedule = group_schedule(length, group, 17, epoch, ranks, batch_size)
    for rank in range(ranks):
        order = runs_of(schedule, rank)[: length // ranks]
        pieces: list[list[int]] = []
        for sample in order:
            if not pieces or sample // group != pieces[-1][-1] // group:
                pieces.append([])
            pieces[-1].append(sample)
        # The last piece is not checked, because it may end where the padding begins.
        for piece in pieces[:-1]:
            assert max(piece) - min(piece) == len(piece) - 1
        if length >= ranks * group:
            assert len(pieces) <= len(order) // group + 3


def test_with_drop_last_every_batch_is_full() -> None:
    schedule = group_schedule(1000, 100, 17, 0, 3, 7, drop_last=True)
    assert (schedule.sizes() == 7).all() and schedule.steps == 47
    assert np.bincount(schedule.samples).max() == 1


def test_epochs_and_seeds_differ_and_repeat() -> None:
    def drawn(seed: int, epoch: int) -> list[int]:
        found: list[int] = group_schedule(500, 50, seed, epoch, 2, 8).samples.tolist()
        return found

    assert drawn(1, 0) == drawn(1, 0)
    assert drawn(1, 0) != drawn(1, 1) != drawn(2, 1)
    assert drawn(-1, 0) == drawn(-1, 0)


def test_what_leaves_no_batch_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^group: 0 is out of range"):
        group_schedule(10, 0, 0, 0, 1, 1)
    with pytest.raises(ConfigError, match=r"^batch_size: 64 is too large"):
        group_schedule(100, 10, 0, 0, 2, 64, drop_last=True)
