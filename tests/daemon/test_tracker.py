"""The daemon follows plans. It finds the job's position from the files that programs open, although
workers read ahead. It drops a wrong plan, and keeps a right one."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import cases, examples, seeds, sized
from support.opening import Ranks, in_turns

from monarch_py.daemon.plans.manager import PlanManager
from monarch_py.daemon.plans.placement import _uses
from monarch_py.daemon.plans.tracker import Found, PlanTracker
from monarch_py.plan import NEVER, Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import (
    NONE,
    DistributedSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

BATCH = 8


class AtOnce(Executor):
    """Runs each task as soon as it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class Late(Future[Any]):
    """A future whose `done` returns False for `left` calls, and then True."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def done(self) -> bool:
        self.left -= 1
        return self.left < 0


class InTime(Executor):
    """An executor for a tracker. A task counts as done only after the tracker has asked `turns`
    times whether it is done. The tracker asks once in each turn of the daemon's loop."""

    def __init__(self, turns: int) -> None:
        self.turns, self.asked = turns, 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked += 1
        done = Late(self.turns)
        done.set_result(fn(*args, **kwargs))
        return done


class Manager(PlanManager):
    """A manager of plans that fills nothing. It lets a tracker's exceptions propagate, whereas a
    real manager would drop the plan."""

    def __init__(self) -> None:
        super().__init__([], MagicMock())

    @contextmanager
    def _at_its_risk(self, tracker: PlanTracker) -> Iterator[None]:
        yield


MANAGER = Manager()


def training(
    files: int, seed: int = 5, *, ranks: int = 1, workers: int | None = 8, batch: int = BATCH
) -> PlanPart:
    loader = Loader(
        DistributedSampler(files, ranks, seed), ranks, batch, workers=workers, prefetch_factor=4
    )
    return PlanPart("training", 0, loader)


def course_of(
    *parts: PlanPart,
    files: int,
    more: int = 0,
    epochs: int = 3,
    nodes: int = 1,
    node: int = 0,
    executor: Executor | None = None,
) -> PlanTracker:
    """Returns a tracker that follows a plan over `files` files and over `more` files in another
    directory. A file's number is also the number of its entry in the catalog."""
    root = Path("/nowhere")
    indices = [
        Index.of("files", root / str(i), [f"{n:06}" for n in range(count)], [1] * count)
        for i, count in enumerate((files, more))
        if count
    ]
    plan = Plan(tuple(indices), parts, epochs, nodes)
    files += more
    tracker = PlanTracker(root / "plan.npz", None, plan, node, executor or AtOnce())
    runs = tuple(tracker.draw(number) for number in range(min(2, len(tracker.layout))))
    used = _uses(tracker)[1] != NEVER
    tracker.begin(Found(np.arange(files, dtype=np.uint64), used, "", runs), files)
    return tracker


def opens(trackers: list[PlanTracker], turn: Iterable[int]) -> None:
    """Runs one turn of the daemon's loop, in which the daemon sees that these files were opened."""
    MANAGER.trackers = trackers
    MANAGER.observe(np.unique(np.array([*turn], np.uint64)))
    for tracker in trackers:
        tracker.step()


def epoch_of(tracker: PlanTracker, epoch: int, rng: random.Random, skip: int = 0) -> Iterator[int]:
    """Yields the numbers of the files, in the order in which the workers open them, from batch
    `skip` on."""
    return iter(Ranks(tracker.timeline, epoch, rng, in_order=False, skip=skip))


@settings(max_examples=examples(10), deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    nodes=st.sampled_from([1, 1, 2, 4]),
    ranks=st.integers(1, 2),
    batch=st.sampled_from([8, 32]),
    steps=st.integers(100, 400),
    most=st.sampled_from([1, 5, 20]),
    in_order=st.booleans(),
)
def test_another_seed_is_noticed_within_100_accesses_of_a_rank(
    seed: int, nodes: int, ranks: int, batch: int, steps: int, most: int, in_order: bool
) -> None:
    """The job's seed differs from the plan's. The eight workers of a rank hold four batches each,
    and together up to a third of the rank's epoch. With several nodes, an epoch has half as many
    steps as with one node, so the workers hold up to two thirds of the rank's epoch."""
    rng, all_ranks = random.Random(seed), ranks * nodes
    files = batch * all_ranks * (steps if nodes == 1 else steps // 2)
    real, planned = (
        course_of(training(files, number, ranks=all_ranks, batch=batch), files=files, nodes=nodes)
        for number in (seed % 1000, seed % 1000 + 1)
    )
    opened = 0
    for turn in in_turns(iter(Ranks(real.timeline, 0, rng, in_order)), rng, most):
        opens([planned], turn)
        opened += len(turn)
        if planned.state == "dropped":
            break
    assert planned.state == "dropped"
    assert opened <= 100 * ranks


@pytest.mark.parametrize("seed", seeds(4, few=1))
@pytest.mark.parametrize(
    "size", cases([(82, 1), (100, 1), (100, 4), (150, 4), (330, 1)], short=[(82, 1), (100, 4)])
)
def test_another_seed_after_a_right_epoch_is_noticed(size: tuple[int, int], seed: int) -> None:
    """A job reads one epoch by the plan, and then one with another seed. At first, many of the
    latest accesses still fit the plan. Accesses to files that the plan used a short time ago are
    excused, because a program may open a file twice. In a short epoch, many accesses are excused in
    this way. The tracker must drop the plan nevertheless.

    size : the steps of an epoch, and the number of ranks"""
    steps, ranks = size
    rng, files = random.Random(seed), BATCH * steps * ranks
    tracker, other = (
        course_of(training(files, seed=number, ranks=ranks), files=files)
        for number in (seed, 1000 + seed)
    )
    for turn in in_turns(epoch_of(tracker, 0, rng), rng, 5):
        opens([tracker], turn)
    assert tracker.state == "following"
    opened = 0
    for turn in in_turns(epoch_of(other, 1, rng), rng, 5):
        opens([tracker], turn)
        opened += len(turn)
        if tracker.state == "dropped":
            break
    assert tracker.state == "dropped"
    assert opened <= 200 * ranks


@pytest.mark.parametrize("seed", seeds(6, few=1))
def test_a_job_that_goes_on_elsewhere_after_others_reads_is_found(seed: int) -> None:
    """Before the tracker drops the plan, it searches for the job's position once more. This search
    uses the latest accesses, so it finds the epoch in which the job has continued."""
    files, rng = BATCH * 150, random.Random(seed)
    tracker = course_of(training(files), files=files)
    for turn in in_turns(iter(tracker.draw(0).units[:500].tolist()), rng, 5):
        opens([tracker], turn)
    for unit in rng.sample(range(files), 35):
        opens([tracker], [unit])
    for turn in in_turns(epoch_of(tracker, 2, rng), rng, 5):
        opens([tracker], turn)
        assert tracker.state != "dropped"
    assert (tracker.state, tracker.number) == ("following", 2)


@pytest.mark.parametrize("seed", seeds(6, few=1))
@pytest.mark.parametrize("left", [2, 4, 6, 10, 40])
def test_a_job_that_goes_on_shortly_before_an_epochs_end_is_found(left: int, seed: int) -> None:
    """A job jumps to a place shortly before the end of another epoch, and continues there. The
    tracker finds the job's position, although the last accesses before the search may lie partly in
    this epoch and partly in the next."""
    steps, rng = 100, random.Random(seed)
    tracker = course_of(training(4 * steps, workers=2, batch=4), files=4 * steps, epochs=4)
    for epoch in (2, 3):
        skip = steps - left if epoch == 2 else 0
        for turn in in_turns(epoch_of(tracker, epoch, rng, skip), rng, 5):
            opens([tracker], turn)
            assert tracker.state != "dropped"
    assert (tracker.state, tracker.number) == ("following", 3)


@pytest.mark.parametrize("seed", seeds(6, few=2))
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    "size", cases([(30, 1), (30, 2), (60, 4), (75, 8), (200, 8)], short=[(30, 2)])
)
@pytest.mark.parametrize("epochs", [1, 2, 4])
def test_the_next_job_is_found_from_its_beginning(
    epochs: int, size: tuple[int, int], is_known: bool, seed: int
) -> None:
    """A job reads the first `epochs` of the plan's four epochs. The next job begins with the first
    epoch again. The tracker finds the next job in its first epoch, and follows it into the second.

    size : the steps of an epoch, and the number of workers
    is_known : whether the plan contains the number of workers. Without this number, the accesses of
        an epoch of 30 batches would fit the plan in any order
    """
    steps, workers = size
    rng, files = random.Random(seed), BATCH * steps
    real, tracker = (
        course_of(training(files, seed, workers=number), files=files, epochs=4)
        for number in (workers, workers if is_known else None)
    )
    for epoch in range(epochs):
        for turn in in_turns(epoch_of(real, epoch, rng), rng, 8):
            opens([tracker], turn)
    tracker.begin_job()
    tracker.step()
    for epoch in (0, 1):
        for number, turn in enumerate(in_turns(epoch_of(real, epoch, rng), rng, 8)):
            opens([tracker], turn)
            assert tracker.state != "dropped"
            if epochs == 4 and number == 0 and epoch == 0:
                assert tracker.number == 0, "the plan's end, and no return to its beginning"
    assert (tracker.state, tracker.number) in (("following", 1), ("following", 2))


def test_a_search_for_an_earlier_job_does_not_end_the_plan_of_the_next() -> None:
    """The accesses of a job do not fit the plan, and the tracker searches for the job's position.
    The next job begins before the search has ended. The tracker ignores the result."""
    files, rng, executor = BATCH * 200, random.Random(1), InTime(0)
    tracker = course_of(training(files), files=files, executor=executor)
    executor.turns = 10**6
    for turn in in_turns(iter(rng.sample(range(files), 60)), rng, 5):
        opens([tracker], turn)
    assert tracker.state == "searching"
    executor.turns = 0
    tracker.begin_job()
    for turn in in_turns(epoch_of(tracker, 0, rng), rng, 5):
        opens([tracker], turn)
        assert tracker.state == "following"
    assert tracker.number in (0, 1)


@pytest.mark.parametrize("seed", seeds(4, few=1))
def test_three_right_plans_stay(seed: int) -> None:
    """An access that fits one plan does not count against the other plans, even if the file is
    opened twice or happens to be opened early."""
    files, rng = BATCH * 150, random.Random(seed)
    epochs = sized(2, 3)
    trackers = [
        course_of(training(files, seed=number), files=files, epochs=epochs) for number in range(3)
    ]
    for epoch in range(epochs):
        jobs = [
            in_turns(epoch_of(tracker, epoch, rng), rng, 10 + 10 * number)
            for number, tracker in enumerate(trackers)
        ]
        while jobs:
            job = rng.choice(jobs)
            turn = next(job, None)
            if turn is None:
                jobs.remove(job)
            else:
                opens(trackers, turn)
    assert [tracker.state for tracker in trackers] == ["following"] * 3
    assert [tracker.number for tracker in trackers] == [epochs - 1] * 3


@pytest.mark.parametrize("held_out", cases([60, 600], short=[600]))
def test_reads_of_what_the_training_does_not_use_say_nothing(held_out: int) -> None:
    """After each epoch, the job reads validation files. These files lie in the directory of the
    training files but are not in the plan. So the tracker must not count them as misfits."""
    files, rng = BATCH * 120, random.Random(held_out)
    sampler = SubsetRandomSampler(files + held_out, np.arange(files), seed=5)
    loader = Loader(sampler, 1, BATCH, workers=8, prefetch_factor=4)
    tracker = course_of(PlanPart("training", 0, loader), files=files + held_out)
    for epoch in range(sized(2, 3)):
        for turn in in_turns(epoch_of(tracker, epoch, rng), rng, 10):
            opens([tracker], turn)
        for low in range(files, files + held_out, 10):
            opens([tracker], range(low, min(low + 10, files + held_out)))
            assert tracker.state == "following"
    assert tracker.estimator is not None
    assert tracker.estimator.misfits == 0


@pytest.mark.parametrize("in_a_row", cases([20, 50], short=[50]))
@pytest.mark.parametrize("ranks", cases([1, 2], short=[2]))
def test_a_right_plan_outlasts_somebody_elses_reads_in_a_row(ranks: int, in_a_row: int) -> None:
    """In the middle of an epoch, another program reads some files of the plan. The tracker mistakes
    these reads for reads of the job, and searches for the job's position. When the job reads on,
    the tracker continues from the position that it had before."""
    files, rng = BATCH * ranks * 200, random.Random(in_a_row)
    epochs = sized(2, 3)
    tracker = course_of(training(files, ranks=ranks), files=files, epochs=epochs)
    for epoch in range(epochs):
        for number, turn in enumerate(in_turns(epoch_of(tracker, epoch, rng), rng, 10)):
            opens([tracker], turn)
            if number == 100:
                for unit in rng.sample(range(files), in_a_row):
                    opens([tracker], [unit])
            assert tracker.state != "dropped"
    assert (tracker.state, tracker.number) == ("following", epochs - 1)


@pytest.mark.parametrize("seed", seeds(6, few=1))
def test_who_lagged_when_a_job_was_come_upon_may_end_it(seed: int) -> None:
    """The tracker finds the job in the middle of an epoch. Two workers lag behind: after the others
    have ended the epoch, they open files that lie before the place where the job was found. The
    tracker must stay at the position that it has reached."""
    files, rng = BATCH * 200, random.Random(seed)
    tracker = course_of(training(files), files=files)
    units = tracker.draw(1).units
    begin = files // 2
    late, rest = units[begin - 64 : begin], units[begin:]
    for turn in in_turns(iter(rest.tolist()), rng, 10):
        opens([tracker], turn)
    # The tracker has seen all files from the middle of epoch 1 to its end, so it expects epoch 2.
    assert (tracker.state, tracker.number) == ("following", 2)
    for turn in in_turns(iter(rng.sample(late.tolist(), 64)), rng, 10):
        opens([tracker], turn)
        assert (tracker.state, tracker.number) == ("following", 2)


def test_a_node_that_has_nothing_to_do_in_a_part() -> None:
    """If six files are split into slices of two, no slice is left for the fourth node. This node's
    tracker must still follow the plan to its end."""
    files, nodes, rng = 400, 4, random.Random(1)
    loader = Loader(SequentialSampler(6), nodes, 2, split="slices")
    parts = training(files, ranks=nodes, batch=4), PlanPart("validation", 1, loader)
    tracker = course_of(*parts, files=files, more=6, nodes=nodes, node=nodes - 1)
    assert not len(tracker.draw(1))
    for number in range(len(tracker.layout)):
        for turn in in_turns(iter(tracker.draw(number).units.tolist()), rng, 5):
            opens([tracker], turn)
            assert tracker.state != "dropped"
    assert (tracker.state, tracker.number) == ("following", len(tracker.layout) - 2)


@pytest.mark.parametrize(
    ("lengths", "right"), [((2000, 2000), 0), ((1030, 2000), 1), ((2000, 1030), 0)]
)
def test_a_search_finds_the_run_that_most_of_the_opens_fit(
    lengths: tuple[int, int], right: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan has two epochs. Epoch n reads the files 0 to lengths[n] - 1 in order. The job opens
    the files 1000 to 1039. The tracker must follow the epoch that reads more of these files or, if
    both epochs read all of them, the first epoch."""
    loader = Loader(SequentialSampler(2000), 1, BATCH)
    tracker = course_of(PlanPart("training", 0, loader), files=2000, epochs=2)
    run = tracker.draw(0)
    runs = [
        replace(
            run,
            units=run.units[:n],
            starts=run.starts[:n],
            place=np.where(run.place < n, run.place, NONE),
        )
        for n in lengths
    ]
    monkeypatch.setattr(tracker, "draw", runs.__getitem__)
    for low in range(1000, 1040, 4):
        opens([tracker], range(low, low + 4))
    assert (tracker.state, tracker.number) == ("following", right)


def test_a_search_that_takes_long_ends_where_the_job_is_by_then() -> None:
    """The tracker finds the job even if the job advances by more than the plan's window during the
    search."""
    files, rng = BATCH * 1000, random.Random(3)
    executor = InTime(0)
    tracker = course_of(training(files), files=files, epochs=2, executor=executor)
    tracker.step()
    window, before = tracker.draw(0).window, executor.asked
    executor.turns = 2 * window // 5
    for turn in in_turns(epoch_of(tracker, 1, rng), rng, 9):
        opens([tracker], turn)
    assert (tracker.state, tracker.number) == ("following", 1)
    assert tracker.estimator is not None
    assert tracker.estimator.front > files - window
    assert executor.asked - before <= 4


def test_why_a_plan_is_dropped() -> None:
    files, rng = BATCH * 400, random.Random(2)
    tracker = course_of(training(files, seed=1), files=files)
    other = course_of(training(files, seed=77), files=files)
    for turn in in_turns(epoch_of(tracker, 0, rng), rng, 10):
        opens([tracker], turn)
    opened = 0
    for turn in in_turns(epoch_of(other, 1, rng), rng, 5):
        opens([tracker], turn)
        opened += len(turn)
        if tracker.state == "dropped":
            break
    assert opened <= 100
    numbers = re.match(r"(\d+) of the last (\d+) opens", tracker.why)
    assert numbers is not None, tracker.why
    others, last = map(int, numbers.groups())
    assert last / 2 < others <= last <= opened
