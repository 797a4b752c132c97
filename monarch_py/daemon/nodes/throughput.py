"""Measures, for each place and number of concurrent readers, the rate that one reader gets.

A place is one node, or all sources together. A reader is a thread of the engine that makes copies.
The rates are the input of the performance model (section 4 of the NoPFS paper).
"""

import math
import time
from collections.abc import Callable

import numpy as np

from monarch_py.arrays import Uints
from monarch_py.config.performance import Performance
from monarch_py.native import lib
from monarch_py.policies.routing import SOURCES

# Numbers of readers are grouped by powers of two; each group is called a level.
LEVELS: int = lib.MONARCH_LEVELS
# MEMORY_S : earlier measurements lose weight exponentially with this time constant [s].
# LOOK_S : the shortest interval between two measurements [s].
MEMORY_S, LOOK_S = 1.0, 0.1
# Each place has one rate for each level. If another level of the same place was measured more than
# this time [s] later, a rate is out of date.
PAST_S = 3.0
# If a place has sent nothing for SILENT_NS [ns], its rate is assumed to be SILENT_RATE [bytes/s].
SILENT_NS, SILENT_RATE = 250_000_000, 1e3

Counts = Uints


class Throughput:
    """The rates that one reader gets from each of `places` places. The places are numbered as in
    `policies.routing`.

    look : a function that returns an array (places, 2, LEVELS). For each place and level, the array
        contains two totals of all readers since the start: the bytes read, and the time that the
        reads took [ns]
    performance : rates from the configuration. A place's configured rate is used until a rate of
        the place has been measured
    """

    def __init__(
        self,
        places: int,
        look: Callable[[], Counts],
        performance: Performance | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._clock = look, clock
        self._performance = performance or Performance()
        self._seen: Counts = np.zeros((places, 2, LEVELS), dtype=np.uint64)
        self._rate = np.full((places, LEVELS), np.nan)
        self._when = np.zeros((places, LEVELS))
        self._looked_at = -math.inf

    def look(self) -> None:
        """Updates the rates from the reads since the last call. Does nothing if the last call was
        less than LOOK_S ago."""
        now = self._clock()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        counts = self._ask()
        new = (counts - self._seen).astype(np.float64)
        got, took = new[:, 0], new[:, 1]
        # A reader may spend time at a place without receiving bytes: no read has ended yet since an
        # open, or a read has failed. Such time is ignored until it exceeds SILENT_NS.
        fresh = (took > 0) & ((got > 0) | (took > SILENT_NS))
        rate = np.maximum(SILENT_RATE, got[fresh] / took[fresh] * 1e9)
        old = self._rate[fresh]
        # The old and the new rate are combined by a weighted geometric mean. So a decrease by some
        # factor has the same weight as an increase by that factor.
        weight = -np.expm1((self._when[fresh] - now) / MEMORY_S)
        with np.errstate(invalid="ignore"):
            mixed = old ** (1 - weight) * rate**weight
        self._rate[fresh] = np.where(np.isnan(old), rate, mixed)
        self._when[fresh] = now
        self._seen = np.where(fresh[:, None, :], counts, self._seen)

    def each(self, place: int, readers: int) -> float | None:
        """Returns the rate that each of `readers` concurrent readers gets from a place [bytes/s];
        None if no rate is known.

        If no rate was measured at this number of readers, the total rate at the nearest smaller
        number is divided by `readers`. If there is no smaller number with a rate, the result is the
        rate of one reader at the nearest larger number. The true rate is at least as high, because
        fewer readers compete.
        """
        level = min(readers.bit_length() - 1, LEVELS - 1)
        rates = self._rate[place]
        when = self._when[place]
        known = np.flatnonzero(~np.isnan(rates) & (when >= when.max() - PAST_S))
        if not len(known):
            total = self._performance.of(is_source=place == SOURCES)
            return None if total is None else total / readers
        below, above = known[known <= level], known[known > level]
        if len(below):
            nearest = int(below[-1])
            return float(rates[nearest]) / 2.0 ** (level - nearest)
        return float(rates[int(above[0])])
