"""Joining the reads of neighbouring samples (SOLAR 4.4).

Samples of an HDF5 dataset lie beside each other. Where several that are wanted lie close together,
one read of the whole range, with the samples in between that nobody wants, is faster than one read
each; what is read in vain is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.errors import PolicyError
from monarch_py.policies.view import Ints

__all__ = ["Reads", "join", "worthwhile_gap"]


@dataclass(frozen=True)
class Reads:
    """start, count : (reads,) int64, the first sample and how many are read;  redundant : (reads,)
    int64, how many of them nobody wants;  read_of : (samples,) int64, the read that brings each."""

    start: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    redundant: npt.NDArray[np.int64]
    read_of: npt.NDArray[np.int64]


def worthwhile_gap(latency_s: float, bytes_per_s: float, sample_bytes: float) -> int:
    """Samples that are read in vain in less time than another read takes to begin."""
    return int(latency_s * bytes_per_s / max(1.0, sample_bytes))


def join(samples: Ints, gap: int, chunk: int, vain: float = np.inf) -> Reads:
    """The reads that bring these samples.

    samples : (samples,), numbers within the dataset, in any order, each once;  gap : unwanted
    samples between two wanted ones over which a read goes on;  chunk : samples of a chunk of the
    file: a read ends with its chunk, as chunks need not lie beside each other;  vain : unwanted
    samples that are read at most, in all. The narrowest gaps are crossed first.
    Raises PolicyError for a negative gap or a chunk without samples.
    """
    if gap < 0 or chunk < 1:
        raise PolicyError(
            f"chunk: {chunk} samples with gaps of {gap}; a chunk has one sample or more, and a gap "
            "none or more"
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
