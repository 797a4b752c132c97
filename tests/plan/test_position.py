"""Estimating a node's position in its plan from sets of samples that the node has opened."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.draws import examples, seeds, sized
from support.opening import Ranks, Units, in_turns

from monarch_py.errors import ConfigError
from monarch_py.plan.evidence import SEARCHED, UNSEEN, locate
from monarch_py.plan.loader import Loader
from monarch_py.plan.position import PositionEstimator
from monarch_py.plan.samplers import (
    DistributedSampler,
    GroupShuffle,
    Sampler,
    SequentialSampler,
)
from monarch_py.plan.timeline import RECENT, Part, Run, Timeline


def timeline_of(
    samples: int,
    ranks: int = 1,
    epochs: int = 3,
    seed: int = 5,
    workers: int | None = None,
    prefetch_factor: int = 2,
) -> Timeline:
    sampler: Sampler = DistributedSampler(samples, ranks, seed)
    loader = Loader(sampler, ranks, 8, workers=workers, prefetch_factor=prefetch_factor)
    return Timeline.of(loader, epochs, 1)


def runs_of(timeline: Timeline) -> list[Run]:
    return [Run.of(section, 0, timeline.units) for section in timeline.sections()]


def watch(follower: PositionEstimator, seen: Units) -> None:
    follower.judge(seen, follower.observe(seen))


@settings(max_examples=sized(2, 40), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    seed=st.integers(0, 1 << 30),
    samples=st.integers(1200, 2000),
    ranks=st.integers(1, 3),
    workers=st.integers(0, 8),
    factor=st.integers(1, 4),
    told=st.booleans(),
    in_order=st.booleans(),
    strays=st.sampled_from([0.0, 0.02, 0.1]),
    unseen=st.sampled_from([0.0, 0.05]),
    most=st.sampled_from([1, 20, 300]),
)
def test_a_right_plan_is_never_lost(
    seed: int,
    samples: int,
    ranks: int,
    workers: int,
    factor: int,
    told: bool,
    in_order: bool,
    strays: float,
    unseen: float,
    most: int,
) -> None:
    """The estimator follows a correct plan to its end, although accesses are out of order.

    `told` : whether the plan contains the number of workers. `strays` : the probability that
    another program reads a file of the dataset. `unseen` : the probability that a read is not seen.
    `most` : the largest number of accesses that the estimator receives at a time"""
    rng, samples = random.Random(seed), samples * ranks
    real = timeline_of(samples, ranks, workers=workers, prefetch_factor=factor)
    plan = real if told else timeline_of(samples, ranks)
    runs = runs_of(plan)
    follower = PositionEstimator(runs[0])

    def seen(epoch: int) -> Iterator[int]:
        for sample in Ranks(real, epoch, rng, in_order):
            if rng.random() >= unseen:
                yield sample
            if rng.random() < strays:
                yield rng.randrange(samples)

    for epoch in range(3):
        done = 0
        for turn in in_turns(seen(epoch), rng, most):
            follower.following = runs[follower.run.epoch + 1] if follower.run.epoch < 2 else None
            watch(follower, turn)
            done += len(turn)
            assert not follower.is_lost
            assert follower.run.epoch in (epoch - 1, epoch, epoch + 1)
        assert follower.run.epoch >= epoch
        assert follower.front >= len(follower.run) - 3 * follower.run.window or (
            follower.run.epoch > epoch
        )
    assert follower.fits >= (0.97 - unseen) * 3 * samples / (1 + strays)


def look_for(follower: PositionEstimator, runs: list[Run]) -> int | None:
    """Searches `runs` for a place where the estimator's last accesses lie close together, and moves
    the estimator there, as the daemon does.

    Returns the index of the run that contains the place; None if there is no such place."""
    found = [locate(run, follower.recent) for run in runs]
    best = max(range(len(runs)), key=lambda number: found[number][0])
    if not found[best][0]:
        return None
    recent = follower.recent
    follower.enter(runs[best], found[best][1])
    follower.observe(np.unique(recent))
    return best


@settings(max_examples=examples(6), deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    samples=st.integers(1200, 5000),
    epoch=st.integers(1, 2),
    begun=st.floats(0, 0.8),
)
def test_a_job_that_is_restarted_is_found(
    seed: int, samples: int, epoch: int, begun: float
) -> None:
    """The estimator finds a job that is restarted at the beginning or in the middle of an epoch."""
    rng = random.Random(seed)
    plan = timeline_of(samples, workers=4)
    runs = runs_of(plan)
    follower = PositionEstimator(runs[0])
    skip = int(begun * plan.parts[0].loader.steps)
    restarted = Ranks(plan, epoch, rng, True, skip=skip)
    for turn in in_turns(iter(restarted), rng, 10):
        watch(follower, turn)
        if follower.is_lost and look_for(follower, runs) is not None:
            assert follower.run.epoch == epoch
            assert abs(follower.front - skip * 8) <= follower.run.window
    assert follower.run.epoch == epoch
    assert follower.front > 0.9 * samples - follower.run.window
    assert not follower.is_lost


def test_a_few_reads_far_ahead_do_not_move_the_front() -> None:
    (run, *_) = runs_of(timeline_of(4000, workers=4))
    follower = PositionEstimator(run)
    watch(follower, run.units[:200])
    front = follower.front
    watch(follower, run.units[3000:3010])
    watch(follower, run.units[200 + run.window // 2 : 205 + run.window // 2])
    assert follower.front - front < 20
    watch(follower, run.units[200:400])
    assert 300 < follower.front <= 400
    assert (follower.fits, follower.misfits) == (400, 10)


def test_what_comes_is_what_was_not_seen_yet_and_then_the_next_run() -> None:
    timeline = timeline_of(600, epochs=2)
    runs = runs_of(timeline)
    follower = PositionEstimator(runs[0])
    watch(follower, runs[0].units[:500])
    ahead = follower.upcoming(1000)
    assert ahead.tolist() == runs[0].units[500:].tolist()
    follower.following = runs[1]
    ahead = follower.upcoming(150)
    assert ahead.tolist() == [*runs[0].units[500:], *runs[1].units[:50]]
    watch(follower, runs[0].units[500:])
    assert follower.position == 600
    watch(follower, runs[1].units[:10])
    assert follower.run is runs[1]
    assert follower.upcoming(1).tolist() == [runs[1].units[10]]


def test_the_next_run_is_known_late() -> None:
    """The job begins the second run before the estimator has learned of this run. So at first, the
    accesses of the second run count as misfits. When the estimator learns of the run, they no
    longer count.

    Reads by other programs still count, so the number of misfits falls to about what it was before
    the second run."""
    samples, ranks, rng = 8000, 8, random.Random(4)
    runs = runs_of(timeline_of(samples, ranks, workers=2))
    follower = PositionEstimator(runs[0], ranks=ranks)
    for low in range(0, samples, 20):
        watch(follower, np.array(sorted(runs[0].units[low : low + 20]), dtype=np.int32))
        watch(follower, np.array([rng.randrange(samples)], dtype=np.int32))
        assert not follower.is_lost
    others = follower.misfits
    assert others > 100
    watch(follower, runs[1].units[:30])
    assert follower.misfits >= others + 20
    follower.expect(runs[1])
    assert follower.run is runs[1]
    assert not follower.is_lost
    assert others * 0.7 <= follower.misfits <= others
    watch(follower, runs[1].units[30:60])
    assert follower.front > 0
    assert not follower.is_lost


def test_who_opens_each_file_twice_fits() -> None:
    (run, *_) = runs_of(timeline_of(2000, workers=2))
    follower = PositionEstimator(run)
    for low in range(0, 2000, 10):
        watch(follower, run.units[low : low + 10])
        watch(follower, run.units[low : low + 10])
    assert follower.misfits == 0
    assert not follower.is_lost


def test_files_of_many_samples_count_where_they_are_used_first() -> None:
    part = Part(
        "training",
        Loader(DistributedSampler(60, 1), 1, 6),
        1,
        np.r_[np.arange(60) // 6, -1].astype(np.int32),
    )
    timeline = Timeline((part,), 1, 1, 10)
    run = Run.of(timeline.section(0), 0, 10)
    own = timeline.section(0).node(0).tolist()
    assert run.units.tolist() == list(dict.fromkeys(own))
    assert run.starts.tolist() == [own.index(unit) for unit in run.units.tolist()]
    follower = PositionEstimator(run)
    watch(follower, np.arange(10, dtype=np.int32))
    assert follower.position == run.starts[-1] + 1


def test_a_window_is_in_files_also_where_they_have_many_samples() -> None:
    """If units are files, the length of the estimator's window is counted in files, not in samples.
    Eight workers with four batches of 32 have 1,056 samples under way. These samples lie in only 12
    files, so the window has its minimum length."""
    samples, each = 51_200, 100
    loader = Loader(SequentialSampler(samples), 1, 32, workers=8, prefetch_factor=4)
    lookup = np.r_[np.arange(samples) // each, -1].astype(np.int32)
    timeline = Timeline((Part("training", loader, 1, lookup),), 1, 1, samples // each)
    run = Run.of(timeline.section(0), 0, timeline.units)
    assert len(run) == samples // each
    assert run.window == 2 * RECENT


def test_a_window_has_the_groups_that_are_read_ahead() -> None:
    """With the split `groups`, the loader reads two groups of 500 samples ahead, not 33 batches of
    8 samples. The estimator's window is twice as long as these two groups: 2,000 samples."""
    samples, group = 20_000, 500
    loader = Loader(GroupShuffle(samples, 1, group, seed=3), 1, 8, split="groups")
    section = Timeline((Part("training", loader),), 1, 1, samples).section(0)
    assert Run.of(section, 0, samples).window == 2 * 2 * group


def test_windows_and_places_that_are_none() -> None:
    timeline = timeline_of(400, workers=4, prefetch_factor=2)
    section = timeline.section(0)
    assert Run.of(section, 0, 400).window == 100
    assert Run.of(timeline_of(400).section(0), 0, 400).window == 33 * 8
    assert Run.of(timeline_of(4000).section(0), 0, 4000).window == 2 * 33 * 8
    assert Run.of(timeline_of(4000, workers=4).section(0), 0, 4000).window == 2 * 9 * 8
    assert Run.of(timeline_of(400, workers=10**12).section(0), 0, 400).window == 400
    run = Run.of(section, 0, 400)
    with pytest.raises(ConfigError, match=r"^place: "):
        PositionEstimator(run, 401)
    assert locate(run, np.zeros(0, dtype=np.int32)) == (0.0, 0)
    assert Run.of(section, 0, 500).place[450] == -1


@pytest.mark.parametrize(("chance", "is_found"), [(1e-5, False), (1e-6, True)])
def test_a_place_is_found_only_where_chance_hardly_leads(chance: float, is_found: bool) -> None:
    """The estimator looks for a place in the plan where the last accesses lie close together. It
    accepts the place only if random accesses would be very unlikely to lie so close together.

    The probability that SEARCHED random accesses all lie in one given part of the plan is
    p ** SEARCHED, where p is the size of this part as a share of the plan. The accesses are spread
    evenly over the part, because in a smaller part random accesses would be even less likely."""
    units = np.arange(100_000, dtype=np.int32)
    part = chance ** (1 / SEARCHED)
    window = int(part * len(units) - UNSEEN * SEARCHED)
    run = Run(0, units, units, units.astype(np.int64), window)
    spread = np.linspace(0, part * len(units) - 1, SEARCHED).astype(int)
    score, place = locate(run, units[spread])
    assert place == 0
    assert score == (pytest.approx(-math.log(chance), rel=0.01) if is_found else 0)


@pytest.mark.parametrize("seed", seeds(20, few=5))
def test_a_place_is_found_in_an_epoch_that_is_shorter_than_the_window(seed: int) -> None:
    """If the plan does not contain the number of workers, the window has 33 batches. An epoch here
    has 30 batches. The accesses of a job with four workers, which prepare two batches each, lie
    close together in the right epoch. Accesses in random order do not lie close together in any
    epoch."""
    rng, steps = random.Random(seed), 30
    runs = runs_of(timeline_of(8 * steps))
    assert runs[0].window >= len(runs[0])
    begin = rng.randrange(len(runs[1]) - 8 * 9)
    seen = rng.sample(runs[1].units[begin : begin + 8 * 9].tolist(), SEARCHED)
    scores = [locate(run, np.array(seen, dtype=np.int32)) for run in runs]
    assert [score > 0 for score, _ in scores] == [False, True, False]
    assert begin <= scores[1][1] < begin + 8 * 9
    chosen = np.array(rng.sample(range(8 * steps), SEARCHED), dtype=np.int32)
    assert [locate(run, chosen)[0] for run in runs] == [0, 0, 0]
