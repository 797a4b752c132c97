"""The loading queues of GPUs: how long each queue takes (Lobster 4.2), and how many threads each
queue gets (Lobster 4.3)."""

import numpy as np
import numpy.typing as npt

from monarch_py.errors import PolicyError
from monarch_py.policies.view import Bools, Floats

# `share_threads` tries windows (ranges of predicted times). For each time at which a window may
# begin, it makes a copy of all predicted times. All copies together would be large, because a
# simulation passes all steps of an epoch in one call. So the windows are tried in groups: the
# copies for one group have at most TOGETHER values.
TOGETHER = 1 << 18


def queue_bytes(
    sizes: npt.NDArray[np.int64], source: npt.NDArray[np.int8], sources: int
) -> npt.NDArray[np.int64]:
    """Returns how many bytes each queue must load from each source in a step, (..., sources).

    sizes : (..., batch) [bytes], the size of each sample of each queue
    source : (..., batch), the number of the source from which each sample is read
    sources : how many sources there are
    """
    *queues, batch = sizes.shape
    cell = np.arange(sizes.size // max(1, batch)).repeat(batch) * sources + source.ravel()
    total = np.bincount(cell, sizes.ravel(), sizes.size // max(1, batch) * sources)
    return total.reshape(*queues, sources).astype(np.int64)


def queue_seconds(loads: npt.NDArray[np.int64], rates: Floats, most: int) -> Floats:
    """Returns how long each queue takes to load its samples with 1, 2, ... threads, (..., most)
    [s]. A thread loads one sample after the other, so this time is the sum of bytes / rate over the
    sources.

    loads : (..., sources) [bytes], as `queue_bytes` returns them
    rates : (sources,) [bytes/s], the rate at which one thread reads from each source. n threads are
        assumed to be n times as fast
    most : the largest number of threads
    """
    threads = np.arange(1, most + 1, dtype=np.float64)
    seconds = np.zeros((*loads.shape[:-1], most))
    for source, rate in enumerate(rates):
        amount = loads[..., source, None].astype(np.float64)
        # A source from which nothing is read takes no time, even if its rate is unknown or zero.
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds += np.where(amount == 0, 0.0, amount / (rate * threads))
    return seconds


def share_threads(seconds: Floats, total: int) -> npt.NDArray[np.int64]:
    """Divides the loading threads among the queues. The difference between the time of the slowest
    queue and the time of the fastest queue is made as small as possible.

    seconds : (..., queues, most), the predicted time of each queue with 1, 2, ... threads
        (`queue_seconds`), for one step or for many
    total : number of loading threads (T_L in the paper)

    Returns the number of threads of each queue, (..., queues) int64. Each number is 1 or more, and
    the numbers of a step add up to at most `total`. If several divisions have the least difference,
    the one whose slowest queue takes the least time is returned. Raises PolicyError if there are
    more queues than threads.

    The function computes what Algorithm 1 of the paper is meant to compute. It tries windows: a
    window is a range of times that begins at one predicted time and ends at another. Every queue
    gets the fewest threads with which its time lies in the window. The narrowest window in which
    the threads suffice is the result. The function differs from the printed algorithm in four
    points:

    - Lines 12 to 18 of the paper exchange the lower and the upper bound of the search, so the
      printed search moves away from the balance. Here, bisection finds the end of each window.
    - The printed loop never compares the sum of the threads with T_L. Here the sum never exceeds
      T_L.
    - The printed algorithm starts with shares in proportion to the queues' loads, and changes one
      queue at a time. So it may stop at a division that no single change improves, although a
      better division exists. Here all windows are tried, so the result is optimal.
    - Here more threads may also slow a queue down. Such a queue gets fewer threads.
    """
    *steps, queues, most = seconds.shape
    if queues > total:
        raise PolicyError(
            f"threads: {total} loading threads are too few for {queues} queues; give at least"
            f" {queues}"
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
    """Finds the best window for each step. A window is a range of times in which the times of all
    queues lie. In the best window, the largest and the smallest of these times differ least. Only
    windows that begin at one of the levels with the indices `starts` are tried.

    times : (steps, queues, threads), the predicted times
    levels : (steps, levels), all times of each step in ascending order

    Returns three arrays: the threads of each queue, (steps, queues); the difference between the
    largest and the smallest time, (steps,); and the largest time, (steps,). For a step without a
    possible window, the difference and the largest time are inf.
    """
    # Each row of the arrays below is for one window that is tried: a window of one step, which
    # begins at one level.
    step, start = np.arange(len(times)).repeat(len(starts)), np.tile(starts, len(times))
    each, low = times[step], levels[step, start]
    # A window is possible if it contains a predicted time of every queue, and if these times need
    # at most `total` threads in all. For each row, bisection finds the lowest level at which a
    # possible window ends. `end` is the index of this level in `levels`, or the number of levels if
    # no window is possible.
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
) -> tuple[npt.NDArray[np.int64], Bools]:
    """Returns, for each window and queue, the fewest threads with which the queue's time lies in
    the window, (windows, queues). Also returns whether each window is possible, (windows,). A
    window is possible if every queue has a time in the window, and if the threads for these times
    add up to at most `total`.

    times : (windows, queues, threads), the predicted times of the step to which the window belongs
    low, high : (windows,), the times at which each window begins and ends
    """
    inside = (times >= low[:, None, None]) & (times <= high[:, None, None])
    threads = inside.argmax(axis=2) + 1
    is_there = np.all(np.any(inside, axis=2), axis=1)
    return threads, is_there & (np.sum(threads, axis=1) <= total)
