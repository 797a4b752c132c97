"""The daemon's history: bounded, true at its points, and of no weight while nothing happens."""

from __future__ import annotations

from typing import Any

import numpy as np

from monarch_py.daemon.history import COUNTED, FIRST_INTERVAL_S, MOST_POINTS, History


def noted(history: History, seconds: float, opens: list[int], epoch: int | None = None) -> None:
    totals: dict[str, Any] = dict.fromkeys(COUNTED, 0) | {"opens": sum(opens)}
    history.note(seconds, totals, np.array(opens, np.uint64), epoch)


def test_a_run_of_any_length_has_few_points() -> None:
    history, seconds = History(), 0.0
    for turn in range(200_000):
        seconds += 0.05
        if history.is_due(seconds):
            noted(history, seconds, [turn, 0])
    told = history.told()
    assert {len(column) for column in told.values()} == {len(told["seconds"])}
    assert MOST_POINTS / 2 < len(told["seconds"]) <= MOST_POINTS + 1
    # The points are at equal distances, and each has what was counted until then.
    assert np.diff(told["seconds"]).max() < 2.1 * np.diff(told["seconds"]).min()
    assert told["seconds"][-1] > seconds - 40
    turns = np.round(np.array(told["seconds"]) / 0.05) - 1
    assert told["opens"] == turns.tolist()


def test_the_first_points_are_close() -> None:
    history = History()
    for turn in range(101):
        if history.is_due(turn * FIRST_INTERVAL_S / 3.9):
            noted(history, turn * FIRST_INTERVAL_S / 3.9, [turn])
    assert len(history.told()["seconds"]) == 26


def test_idle_time_needs_no_points() -> None:
    history = History()
    noted(history, 0.0, [0])
    for second in range(1, 5000):
        noted(history, float(second), [3])
    noted(history, 6000.0, [4])
    assert history.told()["seconds"] == [0.0, 1.0, 2.0, 4999.0, 6000.0]
    assert history.told()["opens"] == [0, 3, 3, 3, 4]


def test_who_has_read() -> None:
    """A slot whose count has changed is a reader; of points that become one, the most counts."""
    history = History()
    for point, opens in enumerate(([0, 0, 0], [1, 2, 0], [1, 2, 0], [1, 2, 7])):
        noted(history, float(point), opens, epoch=point // 2)
    assert history.told()["readers"] == [0, 2, 0, 1]
    assert history.told()["epoch"] == [0, 0, 1, 1]
    for point in range(4, MOST_POINTS + 1):
        noted(history, float(point), [point, 2, 7])
    assert history.told()["readers"][:3] == [0, 2, 1]
