"""The advised number of workers is the smallest one with which batches are ready in time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders.staged_data import Failing, Waiting, waiting
from support.command_line import run_monarch

from monarch_py.commands.advise import parse_seconds
from monarch_py.errors import ConfigError
from monarch_py.loaders.staged.advice import Advisor, Key, Measured, Model, Sum, fewest, size_class
from monarch_py.loaders.staged.loader import StagedLoader
from monarch_py.loaders.staged.measuring import advise
from monarch_py.loaders.staged.stage import Batch, Counts
from monarch_py.loaders.staged.work import Times

ROOT, TESTS = Path(__file__).parents[2], Path(__file__).parents[1]
COUNTS = (1, 2, 3, 4, 6, 8)


def of_machine(
    waiting_s: float, computing_s: float, cores: int, size: int = 17, counts: Any = COUNTS
) -> Measured:
    """Returns the measured times on a machine whose source is never saturated, and whose cores the
    workers share.

    waiting_s, computing_s : the times of one sample on an idle machine [s]
    """
    return {
        Key(size, count): Sum(10, 10 * waiting_s, 10 * computing_s * max(1.0, count / cores))
        for count in counts
    }


@pytest.mark.parametrize(
    ("waiting_s", "computing_s", "step_s", "workers"),
    [
        (0.004, 0.0, 0.032, 8),  # 64 samples of 4 ms on 8 workers take 32 ms
        (0.004, 0.0, 0.070, 4),
        (0.004, 0.0, 1.0, 1),
        (0.0, 0.002, 0.001, 4),  # 4 workers use all cores
        (0.0, 0.002, 0.064, 2),
        (0.001, 0.001, 0.033, 4),
        (0.001, 0.001, 0.0, 7),  # 8 workers would need only 4.7 % less time
    ],
)
def test_the_fewest_workers_that_do(
    waiting_s: float, computing_s: float, step_s: float, workers: int
) -> None:
    model = Model.fit(of_machine(waiting_s, computing_s, cores=4))
    assert fewest(model, 64, step_s, 8) == workers
    for count in range(1, 9):
        each = waiting_s + computing_s * max(1.0, count / 4)
        assert model.batch_seconds(count, 64) == pytest.approx(64 * each / count, rel=0.11)


def test_samples_of_each_size_have_a_model_of_their_own() -> None:
    small, large = of_machine(0.001, 0.0, 4, size=12), of_machine(0.009, 0.0, 4, size=20)
    model = Model.fit({**small, **large}, {12: 0.75, 20: 0.25})
    assert model.per_sample(3) == pytest.approx(0.75 * 0.001 + 0.25 * 0.009)
    assert Model.fit({**small, **large}).per_sample(1) == pytest.approx(0.005)


def test_classes_of_sizes_are_powers_of_two() -> None:
    assert [size_class(n) for n in (0, 1, 2, 131071, 131072)] == [0, 0, 1, 16, 17]


def epoch(
    advisor: Advisor, counts: Counts, machine: tuple[float, float, int], step_s: float
) -> int:
    """Simulates an epoch of 10 batches. Returns the number of workers that the advisor chose.

    machine : the waiting and the computing time of a sample [s], and the number of cores
    """
    workers = advisor.begin(counts)
    waiting_s, computing_s, cores = machine
    computing_s *= max(1.0, workers / cores)
    for _ in range(10):
        batch = Batch(0, range(64), None, 64 << 17, Times(64 * waiting_s, 64 * computing_s))
        advisor.saw(batch)
        counts.add(batch)
    advisor._began = time.perf_counter() - 10 * step_s
    advisor.end(counts)
    return workers


@pytest.mark.parametrize(
    ("machine", "step_s", "last"),
    [((0.004, 0.0, 4), 0.032, 8), ((0.0, 0.002, 4), 0.03, 4), ((0.0, 0.0001, 4), 0.05, 1)],
)
def test_auto_finds_the_number_within_some_epochs(
    machine: tuple[float, float, int], step_s: float, last: int
) -> None:
    advisor, counts = Advisor(16), Counts()
    used = [epoch(advisor, counts, machine, step_s) for _ in range(8)]
    assert used[0] == 1 and all(b <= 2 * max(used[:i]) for i, b in enumerate(used) if i)
    assert abs(used[-1] - last) <= 1


def test_auto_forgets_what_is_no_longer_so() -> None:
    """The advisor goes back to one worker when samples come from copies instead of a slow
    source."""
    advisor, counts = Advisor(16), Counts()
    for _ in range(5):
        slow = epoch(advisor, counts, (0.004, 0.0, 4), 0.03)
    fast = [epoch(advisor, counts, (0.0, 0.0001, 4), 0.03) for _ in range(4)]
    assert slow >= 8 and fast[-1] == 1


def test_auto_changes_the_workers_of_a_loader() -> None:
    order = np.arange(400).reshape(-1, 8).tolist()
    loader = StagedLoader(Waiting(400, 0.002), batch_sampler=order, workers="auto", tensors=False)
    used = []
    for _ in range(3):
        got = []
        for batch in loader:
            got += batch.tolist()
            time.sleep(0.004)
        used.append(loader.num_workers)
        assert got == list(range(400))
    loader.close()
    assert used[0] == 1 and used[1] > 1 and used[2] > 1


def test_advice_for_a_dataset_that_waits() -> None:
    found = advise(waiting(), batch=8, step_s=0.018, most=4, seconds=0.2)
    # One worker takes a little more than 32 ms for 8 samples of 4 ms.
    assert found.workers in (2, 3) and found.is_enough
    (first, *_), sums = zip(*sorted(found.measured.items()), strict=True)
    assert first == Key(0, 1)
    assert all(each.waiting > 0.0039 * each.samples for each in sums)
    assert found.epoch_seconds(1) == pytest.approx(50 * found.model.batch_seconds(1, 8))


def test_advice_raises_what_the_dataset_raises() -> None:
    with pytest.raises(KeyError, match="thirteen"):
        advise(Failing(14), batch=14, step_s=1.0, seconds=0.1)


def monarch(*words: str) -> Any:
    import os

    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{TESTS}"}
    return run_monarch(["advise", "workers", *words], environment)


def test_the_command_names_the_workers() -> None:
    words = ("loaders.staged_data:waiting", "--batch", "8", "--seconds", "0.1", "--most", "3")
    collate = ("--collate", "loaders.staged_data:add")
    done = monarch(*words, "--step", "1s", *collate)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Use 1 worker."
    done = monarch(*words, "--step", "1ms", "--json")
    document = json.loads(done.stdout)
    assert document["workers"] == 3 and not document["is_enough"]
    assert [row["workers"] for row in document["foretold"]] == [1, 2, 3]
    assert all(row["waiting_seconds"] >= 0.004 for row in document["measured"])


@pytest.mark.parametrize(
    ("name", "step", "text"),
    [
        ("nowhere:dataset", "1s", "cannot be imported"),
        ("loaders.broken:dataset", "1s", "cannot be imported (ZeroDivisionError"),
        ("loaders.staged_data", "1s", "is not MODULE:NAME"),
        ("loaders.staged_data:Labeled", "1s", "did you mean 'Labelled'"),
        ("loaders.staged_data:KILL", "1s", "dataset"),
        ("loaders.staged_data:waiting", "fast", "is not a time"),
    ],
)
def test_mistakes_are_one_sentence(name: str, step: str, text: str) -> None:
    done = monarch(name, "--batch", "8", "--step", step)
    assert done.returncode == 2
    assert text in done.stderr and "Traceback" not in done.stderr


def test_times_as_people_write_them() -> None:
    assert [parse_seconds(text) for text in ("50ms", "1.5 s", "300us")] == [0.05, 1.5, 0.0003]
    with pytest.raises(ValueError, match="write 50ms"):
        parse_seconds("50")


def test_arguments_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="numbers above 0"):
        advise(waiting(), batch=0, step_s=1.0)
    with pytest.raises(ConfigError, match="no samples"):
        advise([], batch=1, step_s=1.0)
