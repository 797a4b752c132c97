"""Joins the reads of neighbouring samples (SOLAR 4.4).

The samples of an HDF5 dataset lie one after the other in the file. If several wanted samples are
close together, one read of the whole range is faster than one read for each wanted sample. A read
of a range includes the unwanted samples in between; `Reads.redundant` is their number.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.errors import PolicyError
from monarch_py.policies.view import Ints


@dataclass(frozen=True)
class Reads:
    """The reads for some samples.

    start, count : (reads,) int64, the first sample and the number of samples of each read
    redundant : (reads,) int64, how many of these samples are unwanted
    read_of : (samples,) int64, the index of the read that contains each wanted sample
    """

    start: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    redundant: npt.NDArray[np.int64]
    read_of: npt.NDArray[np.int64]


def join(samples: Ints, gap: int, chunk: int, vain: float = np.inf) -> Reads:
    """Returns the reads that cover these samples.

    samples : (samples,), numbers of samples within the dataset, in any order, each once
    gap : a read may include at most this many unwanted samples between two wanted samples
    chunk : how many samples a chunk of the file has. A read stays within one chunk, since chunks
        need not be adjacent in the file
    vain : the largest number of unwanted samples that all reads together may include. The narrowest
        gaps are closed first, until this number is reached

    Raises PolicyError for a negative gap or a chunk without samples.
    """
    if gap < 0 or chunk < 1:
        raise PolicyError(
            f"solar: chunk is {chunk}, and gap is {gap}; write a chunk of 1 sample or more, and a"
            " gap of 0 samples or more"
        )
    rising = np.argsort(samples, kind="stable")
    wanted = np.asarray(samples, dtype=np.int64)[rising]
    if not len(wanted):
        nothing = np.zeros(0, dtype=np.int64)
        return Reads(nothing, nothing, nothing, nothing)
    between = np.diff(wanted) - 1
    apart = (between > gap) | (np.diff(wanted // chunk) != 0)
    narrow = np.flatnonzero(~apart)
    narrow = narrow[np.argsort(between[narrow], kind="stable")]
    apart[narrow[np.cumsum(between[narrow]) > vain]] = True
    first = np.concatenate([[0], np.flatnonzero(apart) + 1])
    end = np.concatenate([first[1:], [len(wanted)]])
    count = wanted[end - 1] - wanted[first] + 1
    read_of = np.empty(len(wanted), dtype=np.int64)
    read_of[rising] = np.repeat(np.arange(len(first)), end - first)
    return Reads(wanted[first], count, count - (end - first), read_of)
