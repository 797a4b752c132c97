"""The daemon's history has a bounded number of points, is exact at each point, and has no points
for idle time."""

from __future__ import annotations

from typing import Any

import numpy as np

from monarch_py.daemon.history import COUNTED, FIRST_INTERVAL_S, MOST_POINTS, History, Moment


def moment(seconds: float, opens: list[int], epoch: int | None = None, memory: int = 0) -> Moment:
    totals: dict[str, Any] = dict.fromkeys(COUNTED, 0) | {"opens": sum(opens)}
    return Moment(seconds, totals, np.array(opens, np.uint64), epoch, memory)


def told(history: History) -> dict[str, Any]:
    """Returns the points of the history. Leaves out the last point, which `History.told` adds for
    the moment of the request."""
    found = history.told(moment(1e9, [0]))
    return {name: column[:-1] for name, column in found.items()}


def test_a_run_of_any_length_has_few_points() -> None:
    history, seconds = History(), 0.0
    for turn in range(200_000):
        seconds += 0.05
        if history.is_due(seconds):
            history.note(moment(seconds, [turn, 0]))
    found = told(history)
    assert {len(column) for column in found.values()} == {len(found["seconds"])}
    assert MOST_POINTS / 2 < len(found["seconds"]) <= MOST_POINTS + 1
    # The points are about equally spaced in time, and each point has the counts that were noted at
    # its time.
    assert np.diff(found["seconds"]).max() < 2.1 * np.diff(found["seconds"]).min()
    assert found["seconds"][-1] > seconds - 40
    turns = np.round(np.array(found["seconds"]) / 0.05) - 1
    assert found["opens"] == turns.tolist()


def test_the_first_points_are_close() -> None:
    history = History()
    for turn in range(101):
        if history.is_due(turn * FIRST_INTERVAL_S / 3.9):
            history.note(moment(turn * FIRST_INTERVAL_S / 3.9, [turn]))
    assert len(told(history)["seconds"]) == 26


def test_idle_time_needs_no_points() -> None:
    history = History()
    history.note(moment(0.0, [0]))
    for second in range(1, 5000):
        history.note(moment(float(second), [3]))
    history.note(moment(6000.0, [4]))
    assert told(history)["seconds"] == [0.0, 1.0, 2.0, 4999.0, 6000.0]
    assert told(history)["opens"] == [0, 3, 3, 3, 4]


def test_who_has_read() -> None:
    """A thread counts as a reader at a point of the history if it has opened a file since the
    previous point. If it opens two files within LONGEST_READ_S, it also counts at all points
    between these two opens. If two points are merged, the larger number of readers is kept."""
    history = History()
    for point, opens in enumerate(([0, 0, 0], [1, 2, 0], [1, 2, 0], [1, 2, 7])):
        history.note(moment(float(point), opens, epoch=point // 2))
    assert told(history)["readers"] == [0, 2, 0, 1]
    assert told(history)["epoch"] == [0, 0, 1, 1]
    for point in range(4, MOST_POINTS + 1):
        history.note(moment(float(point), [point, 2, 7]))
    assert told(history)["readers"][:3] == [0, 2, 2]


def test_threads_that_open_files_rarely_are_readers_all_the_time() -> None:
    """Sixteen threads read large files one after the other, each file for 10 s. All of these
    threads count as readers at all times. A thread that opens no file for more than half a minute
    does not count as a reader until its next open."""
    history, opens = History(), np.zeros(64, np.uint64)
    for turn in range(1000):
        if turn % 6 == 0:
            opens[turn // 6 % 16] += 1
        history.note(moment(turn * 0.1, opens.tolist()))
    readers = told(history)["readers"]
    assert set(readers[64:-64]) == {16}
    opens[:2] += 1
    history.note(moment(200.0, opens.tolist()))
    assert told(history)["readers"][-2:] == [0, 2]


def test_who_asks_changes_nothing() -> None:
    """The answer to a request for the history ends with a point for the moment of the request. The
    history itself does not keep this point."""
    asked, left = History(), History()
    for turn in range(1500):
        now = moment(turn * 0.1, [turn])
        if asked.is_due(now.seconds):
            asked.note(now)
            left.note(now)
        found = asked.told(moment(turn * 0.1 + 0.05, [turn]))
        assert found["seconds"][-1] == round(turn * 0.1 + 0.05, 3)
        assert len(found["seconds"]) <= MOST_POINTS + 1
    assert told(asked) == told(left)


def test_the_least_memory_is_kept() -> None:
    """The history preserves the lowest value of the available memory, even if points are merged,
    or are left out because nothing happens."""
    history = History()
    for turn in range(MOST_POINTS + 1):
        history.note(moment(float(turn), [turn], memory=3 if turn == 77 else 9))
    assert 3 in told(history)["memory_bytes"]
    idle = History()
    for second in range(10):
        idle.note(moment(float(second), [1], memory=3 if second == 5 else 9))
    assert told(idle)["memory_bytes"] == [9, 3]
