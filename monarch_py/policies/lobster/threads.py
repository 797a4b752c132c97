"""Sharing loading threads among the queues of the GPUs (Lobster 4.3, Algorithm 1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from monarch_py.errors import PolicyError
from monarch_py.policies.view import Floats

__all__ = ["share_threads"]

# Windows that are tried at a time, as far as the times for all of them have room [numbers]: a
# simulation asks for an epoch's steps together, a daemon for one.
TOGETHER = 1 << 18


def share_threads(seconds: Floats, total: int) -> npt.NDArray[np.int64]:
    """Threads for each queue, so that all queues end as nearly together as they can.

    seconds : (..., queues, most), the predicted time of each queue with 1, 2, ... threads
    (`queues`), for one step or for many;  total : loading threads in all, T_L.
    Returns (..., queues) int64, 1 or more each, at most `total` together: the largest predicted
    time less the smallest is the least possible, and of several such shares the one with the
    smallest largest time. Raises PolicyError where there are more queues than threads.

    Algorithm 1 by its intent. Deviations from its printed form:

    - lines 12 to 18 move the lower bound of the search where the upper one should move and the
      other way round, so that it runs away from the balance; here halving searches for the end of a
      window of times, which can only come later where a window begins later;
    - the printed loop never compares the sum of the threads with T_L; here it is a condition;
    - printed, it starts from shares in proportion to the queues' loads and changes one queue at a
      time, which can end where no single change helps; here all windows [least, largest] of
      predicted times are tried, so that the result is exact: the best window begins and ends at one
      of the queues x threads predicted times, and within it every queue takes as few threads as
      put it there;
    - times need not fall with threads: where more threads slow a queue down, fewer are taken.
    """
    *steps, queues, most = seconds.shape
    if queues > total:
        raise PolicyError(
            f"threads: {total} loading threads for {queues} queues; each queue needs one"
        )
    most = min(most, total)
    times = np.asarray(seconds[..., :most], dtype=np.float64).reshape(-1, queues, most)
    levels = np.sort(times.reshape(len(times), -1), axis=1)
    best = np.full((2, len(times)), np.inf)
    share = np.ones((len(times), queues), dtype=np.int64)
    together = max(1, TOGETHER // max(1, times.size))
    for first in range(0, levels.shape[1], together):
        starts = np.arange(first, min(first + together, levels.shape[1]))
        threads, gap, last = _best_from(times, levels, starts, total)
        better = (gap < best[0]) | ((gap == best[0]) & (last < best[1]))
        share[better] = threads[better]
        best[:, better] = gap[better], last[better]
    return share.reshape(*steps, queues)


def _best_from(
    times: Floats, levels: Floats, starts: npt.NDArray[np.intp], total: int
) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """The best windows that begin at one of these (starts,) levels: (steps, queues) threads, and
    (steps,) the gap and the last end, inf where there is none."""
    # A row is a step and a start.
    step, start = np.arange(len(times)).repeat(len(starts)), np.tile(starts, len(times))
    each, low = times[step], levels[step, start]
    # By halving: the first end of a window from here that is wide enough; its width, if none.
    end, beyond = start.copy(), np.full(len(start), levels.shape[1])
    while (end < beyond).any():
        middle = (end + beyond) // 2
        high = levels[step, np.minimum(middle, levels.shape[1] - 1)]
        fits = _fewest(each, low, high, total)[1]
        beyond = np.where(fits, middle, beyond)
        end = np.where(fits, end, np.minimum(middle + 1, beyond))
    high = levels[step, np.minimum(end, levels.shape[1] - 1)]
    threads, fits = _fewest(each, low, high, total)
    taken = np.take_along_axis(each, threads[..., None] - 1, axis=2)[..., 0]
    gap = np.where(fits, np.ptp(taken, axis=1), np.inf).reshape(-1, len(starts))
    last = np.where(fits, taken.max(axis=1), np.inf).reshape(-1, len(starts))
    last = np.where(gap == gap.min(axis=1, keepdims=True), last, np.inf)
    chosen = last.argmin(axis=1)
    row = np.arange(len(times))
    picked = threads.reshape(len(times), len(starts), -1)[row, chosen]
    return picked, gap[row, chosen], last[row, chosen]


def _fewest(
    times: Floats, low: Floats, high: Floats, total: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(steps, queues) the fewest threads with which every queue's time lies in the step's
    [low, high], and (steps,) whether there are some for all queues, `total` together at most."""
    inside = (times >= low[:, None, None]) & (times <= high[:, None, None])
    threads = inside.argmax(axis=2) + 1
    is_there = np.all(np.any(inside, axis=2), axis=1)
    return threads, is_there & (np.sum(threads, axis=1) <= total)
