"""Measures how fast programs go through their files."""

import math

import numpy as np

from monarch_py.native import Floats

# An open that is longer ago than this counts for little. After this time without any open, no use
# is predicted [s].
MEMORY_S = 2.0


class Pace:
    def __init__(self) -> None:
        self._files = 0.0  # files opened; older opens count for less
        self._began = self._last = -math.inf

    def note(self, files: int, now_s: float) -> None:
        """Notes that `files` files were opened since the last call."""
        if now_s - self._last > MEMORY_S:
            self._began, self._files = now_s, 0.0
        else:
            self._files *= math.exp((self._last - now_s) / MEMORY_S)
        self._files += files
        self._last = now_s

    def seconds(self, files: Floats, now_s: float) -> Floats:
        """Returns (n,) how long programs will take to open so many more files [s]; infinite where
        they have just begun, or open none."""
        since = now_s - self._began
        if now_s - self._last > MEMORY_S or since <= 0:
            return np.full(len(files), np.inf)
        # At a steady pace r, the count is r M (1 - exp(-t / M)) at the time t after the beginning,
        # with M = MEMORY_S. So the count stands for `span` seconds.
        span = -MEMORY_S * math.expm1(-since / MEMORY_S)
        return np.asarray(files * span / self._files)
