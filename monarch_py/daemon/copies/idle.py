"""How many of the processors that this process may use have nothing to do."""

import os

import psutil

# Work that nobody waits for goes on while this many processors are idle. LOOK_S : how often they
# are looked at [s].
IDLE_CORES, LOOK_S = 0.5, 0.1


class IdleCores:
    """Measures how long processors are idle between two calls."""

    def __init__(self) -> None:
        self._before = 0.0, 0.0
        self.take()
        self._looked_at_s: float | None = None
        self._has_one = False

    def has_one(self, now_s: float) -> bool:
        """Whether a processor was idle for half of the time since the last look; False at first."""
        if self._looked_at_s is None:
            self._looked_at_s = now_s
        elif now_s - self._looked_at_s >= LOOK_S:
            self._looked_at_s, self._has_one = now_s, self.take() >= IDLE_CORES
        return self._has_one

    @staticmethod
    def _look() -> tuple[float, float]:
        """The idle time of all processors together, and all of their time [s]."""
        mine, all_ = os.sched_getaffinity(0), psutil.cpu_times(percpu=True)
        # The numbers differ where processors are switched off.
        times = [t for number, t in enumerate(all_) if number in mine] or all_
        # The time of guests, behind the first eight, is counted among that of programs.
        return sum(t.idle + t.iowait for t in times), sum(sum(t[:8]) for t in times)

    def take(self) -> float:
        """How many processors were idle, on average, since the last call; 0 where that is not
        known, as while the process has no descriptor left."""
        try:
            (idle_s, all_s), before = self._look(), self._before
        except OSError:
            return 0.0
        self._before = idle_s, all_s
        passed_s = all_s - before[1]
        cores = len(os.sched_getaffinity(0))
        return cores * (idle_s - before[0]) / passed_s if passed_s > 0 else 0.0
