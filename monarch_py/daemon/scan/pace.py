"""Limits the speed of the scan, so that it finds files only shortly before they are filled."""

from collections import deque

from monarch_py.scan.walk import ALL_NAMES

# The lead of the scan is the number of files that the scan has found and that are not filled yet.
# The kernel caches a file's attributes for only about a second after the scan has requested them. A
# fill that begins or ends later must request them again. So the lead is limited to the number of
# files that are filled in AHEAD_S [s]. This limit has a minimum, which is LEAST files. For large
# files, the minimum is smaller: as many files as have RISING_BYTES [bytes] together, but at least
# one. (The mean size of the files that programs open at the source is used.) The scan takes names
# in portions (PORTION in csrc/scan/scan.h), so it may exceed the limit by one portion.
AHEAD_S, LEAST = 0.4, 8
# The limit on the lead follows from the rate of fills [files/s]. Each iteration of the daemon's
# loop measures this rate. So the limit rises soon when a job begins to fill many small files. But
# the rate is also high if a few fills of large files happen to end together. So a second limit
# applies: the number of files filled in the last AHEAD_S, plus as many files of mean size as have
# RISING_BYTES [bytes] together.
RISING_BYTES = 8 << 20
# Each call of `ScanPace.step` can allow the scan to examine more names. If the scan has found
# nothing among the names of the last call, it gets more names only after this time [s].
LOOK_S = 0.2
# In the first AHEAD_S seconds after fills have begun, the rate of fills still rises. `lasts_s` then
# assumes RISE times the measured rate. So the daemon's loop rests for a shorter time before the
# scan may go on. With a smaller factor, such as 2, the loop would rest too long. The scan would
# then find too few files for the rising rate.
RISE = 4.0
# For every OPENS_A_NAME files that programs open at the source, the scan may examine one name in
# directories that programs do not read.
OPENS_A_NAME = 16
# If programs have opened nothing at the source for this long [s], and no file was filled in advance
# meanwhile, the scan runs without a limit.
IDLE_S = 1.0
# The scan waits for a program's first open for at most this long [s]. Many programs import large
# packages before they open their first file, so the time is long.
AWAIT_S = 10.0
# From this time [s] after its start on, the scan runs without a limit, even while programs read.
# The reason is that directories are compared with the source (`revalidate`) only after the scan.
MOST_S = 120.0


class ScanPace:
    """Keeps the scan from running far ahead of programs. If the scan examines a file long before
    the file is read or filled, the file's attributes are requested from the source twice.

    now_s : the present time [s]. The `now_s` of all methods must come from the same clock
    awaits_s : if a program is about to begin, how long the scan waits for the program's first open
        of a file [s], for example AWAIT_S; otherwise 0
    """

    def __init__(self, now_s: float, *, awaits_s: float) -> None:
        self._until = now_s + MOST_S
        self._active_until = now_s + awaits_s
        self._seen = 0, 0
        self._rate = 0.0  # rate of fills [files/s]
        # Pairs (time of a call of `_soon_filled` [s], number of files that had been filled by
        # then). There is one pair for each call in the last AHEAD_S seconds, after the pair of an
        # earlier call.
        self._filled = deque([(now_s, 0)])
        self._others = 0.0
        self._found, self._found_by_s = -1, now_s
        self._awaits_job = awaits_s > 0
        # How many files had been filled when programs last began to open files.
        self._filled_before = 0
        # The number of entries at the last call, and when that number last changed [s].
        self._newest, self._news_s = 0, now_s
        # Whether all files found so far will soon be filled, and the scan will probably find more.
        # The fills that run ahead of programs must then wait for the scan.
        self.lacks_names = False

    def awaits_open(self, now_s: float) -> bool:
        """Whether a program is about to begin, and no program has opened a file yet."""
        return self._awaits_job and not self._seen[0] and now_s < self._active_until

    def step(
        self,
        now_s: float,
        *,
        opens: int,
        filled: int,
        waiting: int,
        found: int,
        size_bytes: float,
        opened_bytes: float,
    ) -> tuple[int, int]:
        """Returns the two arguments for `Walk.allow`: how many names the scan may examine until the
        next call. The first is for directories that programs read, the second for all others.

        opens : how often programs have opened files at the source so far
        filled, waiting : how many files were filled in advance so far, and how many are still to be
            filled
        found : how many entries the scan has found so far
        size_bytes : mean size of the files that are filled in advance
        opened_bytes : mean size of the files that programs have opened at the source
        """
        self.lacks_names = False
        before, self._seen = self._seen, (opens, filled)
        if before != self._seen:
            self._active_until = now_s + IDLE_S
        elif now_s >= self._active_until:
            self._rate, self._filled = 0.0, deque([(now_s, filled)])
            self._filled_before = filled
            self._newest, self._news_s = found, now_s
            return ALL_NAMES
        if now_s >= self._until:
            return ALL_NAMES
        self._others += (opens - before[0]) / OPENS_A_NAME
        more_others = int(self._others)
        self._others -= more_others
        if found != self._newest or self.awaits_open(now_s):
            self._newest, self._news_s = found, now_s
        if self.awaits_open(now_s):
            return 0, 0
        least = min(LEAST, max(1, int(RISING_BYTES / max(opened_bytes, 1.0))))
        wanted = max(least, self._soon_filled(now_s, filled, size_bytes)) - waiting
        self.lacks_names = wanted > 0 and now_s < self._news_s + 2 * LOOK_S
        if wanted <= 0 or (found == self._found and now_s < self._found_by_s):
            return 0, more_others
        self._found, self._found_by_s = found, now_s + LOOK_S
        return wanted, more_others

    def lasts_s(self, files: int) -> float:
        """Returns how long [s] it takes to fill `files` files at the present rate. In the first
        AHEAD_S seconds after fills have begun, RISE times the present rate is assumed, because the
        rate still rises."""
        is_steady = self._filled[0][1] > self._filled_before
        rate = self._rate if is_steady else RISE * self._rate
        return files / rate if rate else 0.0

    def _soon_filled(self, now_s: float, filled: int, size_bytes: float) -> int:
        """Returns how many files are likely to be filled in the next AHEAD_S seconds."""
        before_s, before = self._filled[-1]
        took_s = max(now_s - before_s, 1e-3)
        self._rate = max((filled - before) / took_s, self._rate * 0.5 ** (took_s / AHEAD_S))
        self._filled.append((now_s, filled))
        while len(self._filled) > 2 and self._filled[1][0] <= now_s - AHEAD_S:
            self._filled.popleft()
        since_s, before = self._filled[0]
        lately = (filled - before) * AHEAD_S / max(now_s - since_s, AHEAD_S)
        return int(min(self._rate * AHEAD_S, lately + RISING_BYTES / max(size_bytes, 1.0)))
