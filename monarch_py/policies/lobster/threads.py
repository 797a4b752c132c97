"""Sharing loading threads among the queues of the GPUs (Lobster 4.3, Algorithm 1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from monarch_py.errors import PolicyError
from monarch_py.policies.view import Floats

__all__ = ["share_threads"]


def share_threads(seconds: Floats, total: int) -> npt.NDArray[np.int64]:
    """Threads for each queue, so that all queues end as nearly together as they can.

    seconds : (queues, most), the predicted time of each queue with 1, 2, ... threads (`queues`);
    total : loading threads in all, T_L.
    Returns (queues,) int64, 1 or more each, at most `total` together: the largest predicted time
    less the smallest is the least possible, and of several such shares the one with the smallest
    largest time. Raises PolicyError where there are more queues than threads.

    Algorithm 1 by its intent. Deviations from its printed form:

    - lines 12 to 18 move the lower bound of the search where the upper one should move and the
      other way round, so that it runs away from the balance; nothing is searched by halving here;
    - the printed loop never compares the sum of the threads with T_L; here it is a condition;
    - printed, it starts from shares in proportion to the queues' loads and changes one queue at a
      time, which can end where no single change helps; here all windows [least, largest] of
      predicted times are tried, so that the result is exact: the best window begins and ends at one
      of the queues x threads predicted times, and within it every queue takes as few threads as
      put it there;
    - times need not fall with threads: where more threads slow a queue down, fewer are taken.
    """
    queues, most = seconds.shape
    if queues > total:
        raise PolicyError(
            f"threads: {total} loading threads for {queues} queues; each queue needs one"
        )
    times = np.asarray(seconds[:, : min(most, total)], dtype=np.float64)
    levels = np.unique(times)
    best: tuple[float, float] | None = None
    share = np.ones(queues, dtype=np.int64)
    high = 0
    for low in range(len(levels)):
        # A window that begins later can only end later: fewer times lie in the earlier one.
        high = max(high, low)
        found = _fewest(times, levels[low], levels[high], total)
        while found is None and high + 1 < len(levels):
            high += 1
            found = _fewest(times, levels[low], levels[high], total)
        if found is None:
            break
        taken = times[np.arange(queues), found - 1]
        score = (float(np.ptp(taken)), float(taken.max()))
        if best is None or score < best:
            best, share = score, found
    return share


def _fewest(times: Floats, low: float, high: float, total: int) -> npt.NDArray[np.int64] | None:
    """The fewest threads with which every queue's time lies in [low, high]; None where that is not
    possible with `total`."""
    inside = (times >= low) & (times <= high)
    if not inside.any(axis=1).all():
        return None
    threads = inside.argmax(axis=1) + 1
    return threads if int(threads.sum()) <= total else None
