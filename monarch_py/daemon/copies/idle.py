"""Measures how many of the processors that this process may use are idle."""

import os

import psutil

# IDLE_CORES : background work is allowed while at least this many processors are idle.
# LOOK_S : the interval between two measurements [s].
IDLE_CORES, LOOK_S = 0.5, 0.1


class IdleCores:
    """Measures how many processors were idle between two calls of `take`."""

    def __init__(self) -> None:
        self._before = 0.0, 0.0
        self.take()
        self._looked_at_s: float | None = None
        self._has_one = False

    def has_one(self, now_s: float) -> bool:
        """Whether at least IDLE_CORES processors were idle in the last interval of LOOK_S; False
        until the first interval has passed."""
        if self._looked_at_s is None:
            self._looked_at_s = now_s
        elif now_s - self._looked_at_s >= LOOK_S:
            self._looked_at_s, self._has_one = now_s, self.take() >= IDLE_CORES
        return self._has_one

    @staticmethod
    def _look() -> tuple[float, float]:
        """Returns the idle time and the total time of the processors, each summed over all
        processors [s]."""
        mine, all_ = os.sched_getaffinity(0), psutil.cpu_times(percpu=True)
        # A processor's position in psutil's list is taken for its number in sched_getaffinity. The
        # two may differ if processors are offline, because psutil leaves these out. If no processor
        # is found in this way, all are counted.
        times = [t for number, t in enumerate(all_) if number in mine] or all_
        # Only the first eight fields are summed. The other fields are guest times, which are
        # already included in `user` and `nice`.
        return sum(t.idle + t.iowait for t in times), sum(sum(t[:8]) for t in times)

    def take(self) -> float:
        """Returns how many processors were idle, on average, since the last call. Returns 0 if this
        is not known, for example without a free descriptor."""
        try:
            (idle_s, all_s), before = self._look(), self._before
        except OSError:
            return 0.0
        self._before = idle_s, all_s
        passed_s = all_s - before[1]
        cores = len(os.sched_getaffinity(0))
        return cores * (idle_s - before[0]) / passed_s if passed_s > 0 else 0.0
