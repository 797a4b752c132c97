"""What the loading queue of each GPU takes with a number of threads (Lobster 4.2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from monarch_py.policies.view import Floats

__all__ = ["Rate", "queue_bytes", "queue_seconds"]

# Threads -> what they read together [bytes/s].
Rate = Callable[[npt.NDArray[np.float64]], Floats]


def queue_bytes(
    sizes: npt.NDArray[np.int64], source: npt.NDArray[np.int8], sources: int
) -> npt.NDArray[np.int64]:
    """What each queue has to load in a step, by source.

    sizes, source : (queues, batch), the bytes of the samples of each GPU and the number of the
    source that has each;  sources : how many there are.  Returns (queues, sources) [bytes].
    """
    queues = len(sizes)
    cell = np.arange(queues)[:, None] * sources + source
    total = np.bincount(cell.ravel(), sizes.ravel(), queues * sources)
    return total.reshape(queues, sources).astype(np.int64)


def queue_seconds(
    loads: npt.NDArray[np.int64], rates: list[Rate], most: int, share: float = 1.0
) -> Floats:
    """The time in which each queue has loaded its samples, for every number of threads.

    loads : (queues, sources) [bytes];  rates : of each source;  most : threads;  share : the part
    of a source's rate that one queue gets (1 where others do not disturb it).
    Returns (queues, most) [s], for 1, 2, ... threads: the sum over the sources of bytes / rate,
    because a thread loads one sample after the other.
    """
    threads = np.arange(1, most + 1, dtype=np.float64)
    rate = np.stack([np.asarray(each(threads), dtype=np.float64) * share for each in rates])
    seconds = np.zeros((len(loads), most))
    for amount, speed in zip(loads.T.astype(np.float64), rate, strict=True):
        # A source from which nothing is read costs nothing, even where it has no rate.
        with np.errstate(divide="ignore", invalid="ignore"):
            part = amount[:, None] / speed
        seconds += np.where(amount[:, None] == 0, 0.0, part)
    return seconds
