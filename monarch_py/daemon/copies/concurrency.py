"""Adapts the number of concurrent fills to the sources' throughput and to programs' waits."""

import math
from collections import deque
from dataclasses import dataclass

# A daemon starts with this many concurrent fills.
FIRST = 8
# The rate of the fills is measured in successive time windows. A window lasts at least WINDOW_S [s]
# and at most LONGEST times WINDOW_S. Between these limits, the window ends when ENOUGH files, or
# ENOUGH * UNIT_BYTES [bytes], have been read per concurrent fill. A rate that is measured over less
# data would depend on chance.
WINDOW_S = 0.05
ENOUGH, UNIT_BYTES, LONGEST = 4, 1 << 18, 8
# The width is the number of concurrent fills. A larger width is kept if it multiplies the rate by
# more than GAIN. A smaller width is kept if the rate stays above LOSS times its earlier value.
GAIN, LOSS = 1.10, 0.95
# A trial is a window with a changed width. The trial succeeds if its rate meets the condition
# above. The changed width is then kept, and the next trial changes the width further in the same
# direction. If the trial fails, the earlier width is restored, and the next trial begins only after
# a number of windows, which is called the hold:
#   - After a smaller width has failed, the hold is HOLD.
#   - Each time that a larger width fails, the hold is doubled, up to HOLD.
#   - A larger width that succeeds resets the hold to FIRST_HOLD.
HOLD, FIRST_HOLD = 40, 4
# After the width was decreased because programs wait, no trial begins for this many windows. After
# these windows, the cause of the wait may be gone.
BACK_HOLD = 10
# `_Rate.growth_over` compares the rates of two windows, in bytes and in files per second.
# SOME_FILES : if either window has fewer files than this, only the bytes per second are compared.
# ALIKE : the files of two windows are regarded as equally large if their mean sizes differ by at
#     most this factor.
SOME_FILES, ALIKE = 8, 1.5
# If fills overload a source, programs wait longer when they open files there. Opens are called late
# if their mean duration exceeds LATE times the smallest mean duration of the last MEMORY_S [s]. If
# opens are late, the width is multiplied by BACK.
LATE, BACK = 1.5, 0.7
MEMORY_S = 60.0
# Opens may be late for a reason that has nothing to do with the fills. So after IN_VAIN decreases
# of the width in a row, the mean duration of opens is compared with the mean before the first of
# these decreases. If the present mean is still more than HELPED times the earlier mean, the
# decreases are undone.
IN_VAIN, HELPED = 3, 0.95
# SOME_OPENS : opens are judged only if there are at least this many of them.
# LEAST_S : the smallest mean duration is sought among means that were measured over at least this
#     time [s].
SOME_OPENS, LEAST_S = 16, 1.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Totals since the daemon's start.

    n_bytes, files : the number of bytes that fills have read from the sources, and the number of
        files that fills have read completely
    opens, open_s : how often programs themselves have opened files at the sources, and the total
        duration of these opens [s]
    """

    n_bytes: int = 0
    files: int = 0
    opens: int = 0
    open_s: float = 0.0


class Delay:
    """Judges whether the daemon's reads make programs wait longer for a source. As in LEDBAT (RFC
    6817), the present mean duration of an open is compared with the smallest mean of the last
    minute. The smallest mean already includes the time for which programs delay each other. Only
    opens are judged, because the duration of a read depends on the read's size."""

    def __init__(self) -> None:
        # The mean durations of opens that were measured in the last MEMORY_S. Each element is a
        # pair: (time at which the measurement expires, mean duration) [s].
        self._least: deque[tuple[float, float]] = deque()
        # The measurement in progress: (start time, number of opens, their total duration).
        self._spell = (-math.inf, 0, 0.0)
        self._before = (0, 0.0)
        # The result of the last judgement: the mean duration of the judged opens [s], and whether
        # this mean was usual, so that the opens were not late.
        self.mean_s, self.was_usual = 0.0, True

    def forget(self) -> None:
        """Forgets all measurements, so that the smallest mean duration is determined anew from the
        next opens."""
        self._least.clear()
        self._spell = (-math.inf, 0, 0.0)

    def is_late(self, now_s: float, opens: int, open_s: float) -> bool:
        """Judges the opens since the last judgement. Returns whether these opens were late: whether
        their mean duration was more than LATE times the smallest one of the last MEMORY_S. If there
        are fewer than SOME_OPENS opens, returns False; a later call judges these opens together
        with later ones.

        opens, open_s : the number of all opens so far, and their total duration [s]
        """
        n, took_s = opens - self._before[0], open_s - self._before[1]
        if n < SOME_OPENS:
            return False
        self.mean_s = mean_s = took_s / n
        least_s = self._least_s(now_s)
        self._before = opens, open_s
        self._remember(now_s, n, took_s)
        self.was_usual = mean_s <= LATE * least_s
        return not self.was_usual

    def _least_s(self, now_s: float) -> float:
        """Returns the smallest mean duration of an open [s] that was measured in the last MEMORY_S.
        If no measurement has been completed, returns the mean of the measurement in progress, or
        infinity if it contains no open yet."""
        while self._least and self._least[0][0] < now_s:
            self._least.popleft()
        if self._least:
            return min(mean_s for _, mean_s in self._least)
        _, opens, took_s = self._spell
        return took_s / opens if opens else math.inf

    def _remember(self, now_s: float, opens: int, took_s: float) -> None:
        """Adds opens to the measurement in progress, and completes this measurement once it has
        lasted LEAST_S. Means over shorter times would vary more by chance, and the smallest of them
        would be less than the time that an open usually takes."""
        since_s, n, so_far_s = self._spell
        if n == 0:
            since_s = now_s
        n, so_far_s = n + opens, so_far_s + took_s
        if now_s - since_s >= LEAST_S:
            self._least.append((now_s + MEMORY_S, so_far_s / n))
            n, so_far_s = 0, 0.0
        self._spell = since_s, n, so_far_s


class ReadsInFlight:
    """Controls the width, which is the number of concurrent fills. Seeks the smallest width at
    which the throughput (bytes or files per second) is nearly the highest possible. Reduces the
    width if the fills make programs wait for the source.

    Sources differ by orders of magnitude in latency and bandwidth. A source of high latency needs
    many concurrent reads. At a source that is limited by its bandwidth, additional reads only delay
    each other. So the width is doubled until a doubling no longer raises the throughput by the
    factor GAIN. From time to time a smaller or a larger width is tried, because the load on a
    shared source changes. Small files are judged by files per second, because the time that a
    source needs for a small file hardly depends on the file's size. Large files are judged by bytes
    per second.

    least, most : bounds of the width, both included
    """

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most
        self.width = min(max(least, FIRST), most)
        self._delay = Delay()
        # The trial in progress, if any: the width before the trial, and the rates with which the
        # trial's rates will be compared.
        self._trial: tuple[int, _Rate] | None = None
        self._down = True  # whether the last trial decreased the width
        self._hold = FIRST_HOLD
        # The number of windows since the last trial. The next trial begins when this number reaches
        # `_hold`. The initial value is large, so that the first trial begins at once.
        self._kept = HOLD
        self._backs = 0  # how many times in a row the width was decreased because opens were late
        # The width and the mean duration of an open [s] before the decreases that `_backs` counts.
        self._before_backs = self.width, 0.0
        self._since: tuple[float, Counted] | None = None
        self._was_full = True  # whether `is_full` was True all the time since `_since`

    def step(self, now_s: float, so_far: Counted, *, is_full: bool) -> int:
        """Returns the width to use from now on.

        is_full : whether more fills are requested than run now. If this is False, the width does
            not limit the rates, so the rates do not show whether the width is right
        """
        self._was_full &= is_full
        if self._since is None:
            self._begin(now_s, so_far)
        elif self._has_seen_enough(*self._since, now_s, so_far):
            rate = _Rate.between(*self._since, now_s, so_far)
            is_late = self._delay.is_late(now_s, so_far.opens, so_far.open_s)
            if self._delay.was_usual:
                self._backs = 0
            if is_late:
                self._step_back()
            elif self._was_full:
                self._judge(rate)
            elif self._trial is not None:
                self.width = self._trial[0]
                self._trial, self._kept, self._down = None, HOLD, True
            self._begin(now_s, so_far)
        return self.width

    def _has_seen_enough(
        self, since_s: float, before: Counted, now_s: float, so_far: Counted
    ) -> bool:
        windows = (now_s - since_s) / WINDOW_S
        if windows < 1 or windows >= LONGEST:
            return windows >= 1
        units = (so_far.n_bytes - before.n_bytes) // UNIT_BYTES
        came, opens = max(so_far.files - before.files, units), so_far.opens - before.opens
        # If programs have opened any files in the window, the window is extended until it contains
        # SOME_OPENS opens, which can be judged.
        is_heard = not 0 < opens < SOME_OPENS
        return is_heard and (came >= ENOUGH * self.width or not self._was_full)

    def _begin(self, now_s: float, so_far: Counted) -> None:
        self._since, self._was_full = (now_s, so_far), True

    def _step_back(self) -> None:
        """Reduces the width because programs wait. There are two exceptions: if earlier decreases
        have not helped, they are undone, and if the width is at its lower bound, it stays there. In
        these two cases the fills are not the cause of the wait: the machine is busy, or other jobs
        use the source. So the smallest mean duration of an open is determined anew, and the present
        mean duration is regarded as usual from then on."""
        if self._trial is not None:
            self.width = min(self.width, self._trial[0])
        if not self._backs:
            self._before_backs = self.width, self._delay.mean_s
        self._backs += 1
        before, mean_s = self._before_backs
        if self._backs > IN_VAIN and self._delay.mean_s > HELPED * mean_s:
            self._delay.forget()
            self.width, self._backs = before, 0
        elif self.width == self.least:
            self._delay.forget()
            self._backs = 0
        else:
            self.width = max(self.least, int(self.width * BACK))
        self._keep(BACK_HOLD)

    def _judge(self, rate: "_Rate") -> None:
        if self._trial is None:
            self._kept += 1
            if self._kept >= self._hold:
                # A larger width may have failed by chance, so it is tried again until `_hold` has
                # grown to HOLD. Only then is a smaller width tried.
                self._down = not self._down and self._hold == HOLD
                self._try(rate)
            return
        before, expected = self._trial
        growth = rate.growth_over(expected)
        if growth > (LOSS if self._down else GAIN):
            self._hold = HOLD if self._down else FIRST_HOLD
            self._try(rate if growth > 1 else expected)  # a success: the next trial follows at once
        else:
            self.width = before
            self._keep(self._hold if self._down else min(HOLD, 2 * self._hold))

    def _try(self, rate: "_Rate") -> None:
        """Starts a trial of the next smaller or larger width. The trial's rate will be compared
        with `rate`."""
        wanted = self.width // 2 if self._down else self.width * 2
        wanted = min(max(wanted, self.least), self.most)
        if wanted == self.width:
            self._keep(HOLD)
        else:
            self._trial, self.width = (self.width, rate), wanted

    def _keep(self, windows: int) -> None:
        self._trial, self._kept, self._hold = None, 0, windows


@dataclass(frozen=True, slots=True)
class _Rate:
    """How fast the fills have read from the sources in one window.

    files : how many files were read completely in the window
    """

    bytes_per_s: float
    files_per_s: float
    files: int

    @classmethod
    def between(cls, since_s: float, before: Counted, now_s: float, so_far: Counted) -> "_Rate":
        files, seconds = so_far.files - before.files, now_s - since_s
        return cls((so_far.n_bytes - before.n_bytes) / seconds, files / seconds, files)

    def growth_over(self, before: "_Rate") -> float:
        """Returns the factor by which the rate has grown since the window `before`. The bytes per
        second and the files per second each have such a factor. If one of the windows has few
        files, returns the factor of the bytes per second. Otherwise, if the files of both windows
        have similar sizes, returns the larger factor. If the sizes differ, returns the smaller
        factor, because a change of the sizes raises one of the two rates even if the source has not
        become faster."""
        in_bytes = _ratio(self.bytes_per_s, before.bytes_per_s)
        if min(self.files, before.files) < SOME_FILES:
            return in_bytes
        in_files = _ratio(self.files_per_s, before.files_per_s)
        is_alike = in_bytes <= ALIKE * in_files and in_files <= ALIKE * in_bytes
        return max(in_bytes, in_files) if is_alike else min(in_bytes, in_files)


def _ratio(now: float, before: float) -> float:
    return now / before if before else math.inf if now else 1.0
