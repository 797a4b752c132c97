"""The time of each GPU's loading queue by the number of threads (Lobster 4.2)."""

import numpy as np
import numpy.typing as npt

from monarch_py.policies.view import Floats


def queue_bytes(
    sizes: npt.NDArray[np.int64], source: npt.NDArray[np.int8], sources: int
) -> npt.NDArray[np.int64]:
    """Returns (..., sources) the bytes that each queue must load in a step, by source.

    sizes, source : (..., batch), the bytes of each GPU's samples, and the number of the source that
    has each sample;  sources : number of sources
    """
    *queues, batch = sizes.shape
    cell = np.arange(sizes.size // max(1, batch)).repeat(batch) * sources + source.ravel()
    total = np.bincount(cell, sizes.ravel(), sizes.size // max(1, batch) * sources)
    return total.reshape(*queues, sources).astype(np.int64)


def queue_seconds(loads: npt.NDArray[np.int64], rates: Floats, most: int) -> Floats:
    """Returns (..., most) the time in which each queue loads its samples with 1, 2, ... threads
    [s]. It is the sum over the sources of bytes / rate, because a thread loads one sample after the
    other.

    loads : (..., sources) [bytes];  rates : (sources,) [bytes/s], the rate of one thread of a queue
    at each source; n threads are n times as fast;  most : the largest number of threads
    """
    threads = np.arange(1, most + 1, dtype=np.float64)
    seconds = np.zeros((*loads.shape[:-1], most))
    for source, rate in enumerate(rates):
        amount = loads[..., source, None].astype(np.float64)
        # A source from which nothing is read costs nothing, even where it has no rate.
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds += np.where(amount == 0, 0.0, amount / (rate * threads))
    return seconds
