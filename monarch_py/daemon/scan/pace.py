"""Limits how far the scan runs ahead of programs: as far as fills ahead need, and little beyond."""

from monarch_py.scan.walk import ALL_NAMES

# The scan stays ahead of fills by the number of files that are filled in AHEAD_S [s], but by at
# least LEAST names. The kernel caches a file's attributes for about a second after the scan has
# requested them; a later fill has to request them from the source again.
AHEAD_S, LEAST = 0.4, 8
# The scan is allowed more names once it has found entries since the last allowance, or after this
# time without any [s].
LOOK_S = 0.2
# The scan may examine one name in directories that programs do not read for every OPENS_A_NAME
# opens of programs at the source.
OPENS_A_NAME = 16
# If programs have opened nothing at the source for this long, the scan runs without a limit [s].
IDLE_S = 1.0
# After this time the scan runs without a limit even while programs read, because the comparison of
# directories with the source (`revalidate`) starts only when the scan is complete [s].
MOST_S = 120.0


class ScanPace:
    """Keeps the scan from running far ahead of programs. If the scan examines a file long before
    the file is read or filled, the file's attributes are requested from the source twice.

    awaits_job : whether a program is about to begin
    """

    def __init__(self, now_s: float, *, awaits_job: bool) -> None:
        self._until = now_s + MOST_S
        self._active_until = now_s + IDLE_S if awaits_job else now_s
        self._seen = now_s, 0, 0
        self._rate = 0.0  # rate of fills [files/s]
        self._others = 0.0
        self._found, self._found_by_s = -1, now_s

    def step(
        self, now_s: float, *, opens: int, filled: int, waiting: int, found: int
    ) -> tuple[int, int]:
        """Returns how many names the scan may examine until the next call, as arguments of
        `Scan.allow`.

        opens : opens of programs at the source so far
        filled, waiting : how many files were filled ahead so far, and how many still wait for it
        found : entries that the scan has found so far
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
