"""How fast programs go through their files."""

import math

import numpy as np

from monarch_py.native import Floats

# An open that is longer ago than this counts for little [s]. After so long without any open,
# nothing is foreseen.
MEMORY_S = 2.0


class Pace:
    def __init__(self) -> None:
        self._files = 0.0  # opened; older opens count for less
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
        """How long programs take for so many more (n,) files, from now [s]; infinite where they
        have just begun, or open none."""
        since = now_s - self._began
        if now_s - self._last > MEMORY_S or since <= 0:
            return np.full(len(files), np.inf)
        # The memory of a steady pace r, t after its beginning: r M (1 - exp(-t / M)).
        span = -MEMORY_S * math.expm1(-since / MEMORY_S)
        return np.asarray(files * span / self._files)
