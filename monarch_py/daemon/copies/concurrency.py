"""Adapts the number of concurrent fills to the sources' throughput and to programs' waits."""

import math
from collections import deque
from dataclasses import dataclass

# A daemon starts with this many concurrent fills.
FIRST = 8
# The rate of the fills is measured in one time window after another. A window lasts at least
# WINDOW_S [s] and at most LONGEST times WINDOW_S. Between these limits, it ends once enough was
# read: per concurrent fill, ENOUGH files, or ENOUGH * UNIT_BYTES [bytes]. With less data, the rate
# would depend on chance.
WINDOW_S = 0.05
ENOUGH, UNIT_BYTES, LONGEST = 4, 1 << 18, 8
# The width is the number of concurrent fills. A larger width is kept if it multiplies the rate by
# more than GAIN. A smaller width is kept if it multiplies the rate by more than LOSS.
GAIN, LOSS = 1.10, 0.95
# A trial is a window with a changed width. It succeeds if its rate meets the condition above. The
# changed width is then kept, and the next trial goes on in the same direction. If the trial fails,
# the earlier width is restored. The next trial then waits for a number of windows, the hold:
#   - If a smaller width has failed, the hold is HOLD.
#   - Each time that a larger width fails, the hold is doubled, up to HOLD.
#   - If a larger width succeeds, the hold becomes FIRST_HOLD.
HOLD, FIRST_HOLD = 40, 4
# If the width was decreased because programs wait, no trial begins for this many windows. The cause
# of the wait may be gone by then.
BACK_HOLD = 10
# `_Rate.growth_over` compares two windows, in bytes per second and in files per second.
# SOME_FILES : if either window has fewer files than this, only the bytes per second are compared.
# ALIKE : if the mean file sizes of two windows differ by at most this factor, the files are
#     regarded as equally large.
SOME_FILES, ALIKE = 8, 1.5
# If fills overload a source, programs wait longer when they open files there. Opens are called late
# if their mean duration exceeds LATE times the smallest mean of the last MEMORY_S [s]. If opens are
# late, the width is multiplied by BACK.
LATE, BACK = 1.5, 0.7
MEMORY_S = 60.0
# Opens may also be late for reasons that have nothing to do with the fills. So after IN_VAIN
# decreases of the width in a row, the mean duration of opens is checked. If it is still more than
# HELPED times the mean before these decreases, the decreases are undone.
IN_VAIN, HELPED = 3, 0.95
# SOME_OPENS : opens are judged only if there are at least this many of them.
# LEAST_S : the smallest mean is sought only among means that were measured over at least this time
#     [s].
SOME_OPENS, LEAST_S = 16, 1.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Totals since the daemon's start.

    n_bytes, files : how many bytes fills have read from the sources, and how many files completely
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
    minute. The smallest mean includes the delays that programs cause each other. Only opens are
    judged, because the duration of a read depends on its size."""

    def __init__(self) -> None:
        # The mean durations of opens that were measured in the last MEMORY_S. Each element is a
        # pair: (time at which the measurement expires, mean duration) [s].
        self._least: deque[tuple[float, float]] = deque()
        # The measurement in progress: (start time, number of opens, their total duration).
        self._spell = (-math.inf, 0, 0.0)
        self._before = (0, 0.0)
        # The result of the last judgement: the mean duration of the judged opens [s], and whether
        # these opens were not late.
        self.mean_s, self.was_usual = 0.0, True

    def forget(self) -> None:
        """Forgets all measurements, so that the smallest mean duration is determined anew from the
        next opens."""
        self._least.clear()
        self._spell = (-math.inf, 0, 0.0)

    def is_late(self, now_s: float, opens: int, open_s: float) -> bool:
        """Judges the opens since the last judgement. Returns whether they were late: whether their
        mean duration exceeds LATE times the smallest mean of the last MEMORY_S. If there are fewer
        than SOME_OPENS opens, returns False. A later call then judges these opens together with
        later ones.

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
        If no measurement is complete, returns the mean of the measurement in progress; infinity if
        it contains no open yet."""
        while self._least and self._least[0][0] < now_s:
            self._least.popleft()
        if self._least:
            return min(mean_s for _, mean_s in self._least)
        _, opens, took_s = self._spell
        return took_s / opens if opens else math.inf

    def _remember(self, now_s: float, opens: int, took_s: float) -> None:
        """Adds opens to the measurement in progress. Completes the measurement once it has lasted
        LEAST_S. The means of shorter measurements would vary more by chance, so the smallest of
        them would be too small."""
        since_s, n, so_far_s = self._spell
        if n == 0:
            since_s = now_s
        n, so_far_s = n + opens, so_far_s + took_s
        if now_s - since_s >= LEAST_S:
            self._least.append((now_s + MEMORY_S, so_far_s / n))
            n, so_far_s = 0, 0.0
        self._spell = since_s, n, so_far_s


class ReadsInFlight:
    """Controls the width, which is the number of concurrent fills. Seeks the smallest width with
    nearly the highest throughput (bytes or files per second). If the fills make programs wait for
    the source, reduces the width.

    Sources differ by orders of magnitude in latency and bandwidth. A source with high latency needs
    many concurrent reads. If the bandwidth is the limit, additional reads only delay each other. So
    the width is doubled until a doubling no longer raises the throughput by the factor GAIN. The
    load on a shared source changes, so a smaller or a larger width is tried from time to time.
    Small files are judged by files per second, because their size hardly affects the time of a
    read. Large files are judged by bytes per second.

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
        # The number of windows since the last trial. At `_hold`, the next trial begins. The initial
        # value makes the first trial begin at once.
        self._kept = HOLD
        self._backs = 0  # how many times in a row the width was decreased because opens were late
        # The width and the mean duration of an open [s] before the decreases that `_backs` counts.
        self._before_backs = self.width, 0.0
        self._since: tuple[float, Counted] | None = None
        self._was_full = True  # whether `is_full` was True all the time since `_since`

    def step(self, now_s: float, so_far: Counted, *, is_full: bool) -> int:
        """Returns the width to use from now on.

        is_full : whether more fills are requested than run now. If not, the width does not limit
            the rates, so they do not show whether the width is right
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
        """Reduces the width because programs wait, with two exceptions. If earlier decreases have
        not helped, they are undone. If the width is at its lower bound, it stays there. In both
        cases the fills do not cause the wait: the machine is busy, or other jobs use the source. So
        all measurements are forgotten, and the present duration of opens is regarded as usual."""
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
        """Returns the factor by which the rate has grown since the window `before`. There is one
        factor for the bytes per second, and one for the files per second. If either window has few
        files, returns the factor of the bytes. If the files of both windows have similar sizes,
        returns the larger factor. Otherwise returns the smaller one, because a change of the sizes
        alone raises one of the two rates."""
        in_bytes = _ratio(self.bytes_per_s, before.bytes_per_s)
        if min(self.files, before.files) < SOME_FILES:
            return in_bytes
        in_files = _ratio(self.files_per_s, before.files_per_s)
        is_alike = in_bytes <= ALIKE * in_files and in_files <= ALIKE * in_bytes
        return max(in_bytes, in_files) if is_alike else min(in_bytes, in_files)


def _ratio(now: float, before: float) -> float:
    return now / before if before else math.inf if now else 1.0
