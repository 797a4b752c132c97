"""How far the scan goes while programs read: what fills ahead need, and little beyond."""

from monarch_py.scan import ALL_NAMES

__all__ = ["ScanPace"]

# Fills ahead have so many names before them as they fill in this time [s], and always some. What a
# look has brought the kernel keeps for about a second: a fill that comes later has it ask again.
AHEAD_S, LEAST = 0.4, 8
# The scan looks at names that it was allowed within this time, or the source is slow [s].
LOOK_S = 0.2
# Of other names one for so many opens of programs at the source.
OPENS_A_NAME = 16
# Programs that have opened nothing at the source for so long leave it to the scan [s].
IDLE_S = 1.0
# After this time the scan goes on beside them: until all is known, directories are not compared
# with the source (`revalidate`) [s].
MOST_S = 120.0


class ScanPace:
    """A file that the scan looks at long before its reader, or its fill, is asked for twice.

    awaits_job : a program is about to begin
    """

    def __init__(self, now_s: float, *, awaits_job: bool) -> None:
        self._until = now_s + MOST_S
        self._active_until = now_s + IDLE_S if awaits_job else now_s
        self._seen = now_s, 0, 0
        self._rate = 0.0  # of fills [files/s]
        self._others = 0.0
        self._found, self._found_by_s = -1, now_s

    def step(
        self, now_s: float, *, opens: int, filled: int, waiting: int, found: int
    ) -> tuple[int, int]:
        """How many names the scan may look at until the next call, as `Scan.allow` takes it.

        opens : of programs at the source so far;  filled, waiting : files that were filled ahead so
        far, and those that are to be;  found : what the scan has found so far
        """
        before_s, opens_before, filled_before = self._seen
        self._seen = now_s, opens, filled
        if (opens, filled) != (opens_before, filled_before):
            self._active_until = now_s + IDLE_S
        elif now_s >= self._active_until:
            self._rate = 0.0
            return ALL_NAMES
        if now_s >= self._until:
            return ALL_NAMES
        took_s = max(now_s - before_s, 1e-3)
        self._rate = max((filled - filled_before) / took_s, self._rate * 0.5 ** (took_s / AHEAD_S))
        self._others += (opens - opens_before) / OPENS_A_NAME
        more_others = int(self._others)
        self._others -= more_others
        wanted = max(LEAST, int(self._rate * AHEAD_S)) - waiting
        if wanted <= 0 or (found == self._found and now_s < self._found_by_s):
            return 0, more_others
        self._found, self._found_by_s = found, now_s + LOOK_S
        return wanted, more_others
