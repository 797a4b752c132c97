"""Sets how many fills are in flight at the sources, by their rate and by how long programs wait."""

import math
from collections import deque
from dataclasses import dataclass

# How many fills are in flight at first.
FIRST = 8
# Rates are measured over windows. A window lasts WINDOW_S [s] at least, and until ENOUGH files, or
# units of UNIT_BYTES [bytes], have come for each fill in flight, so that chance does not decide the
# rate. At a slow source a window ends after LONGEST times WINDOW_S.
WINDOW_S = 0.05
ENOUGH, UNIT_BYTES, LONGEST = 4, 1 << 18, 8
# A step to more fills in flight pays if it multiplies the rate by more than GAIN. A step to fewer
# pays if more than LOSS times the rate is left.
GAIN, LOSS = 1.10, 0.95
# A good width is kept for some windows before another one is tried: FIRST_HOLD windows at first and
# after a step up that paid, HOLD windows after a step down that paid. Each step up that did not pay
# doubles the number, up to HOLD.
HOLD, FIRST_HOLD = 40, 4
# A step back reduces the width because programs wait. The reduced width is kept for this many
# windows, after which the cause of the wait may be over.
BACK_HOLD = 10
# The files per second of a window count only if at least SOME_FILES files came in it. Two windows
# have files of the same kind if their mean sizes differ by no more than the factor ALIKE.
SOME_FILES, ALIKE = 8, 1.5
# Programs' opens take too long if their mean time is more than LATE times its least value of the
# last MEMORY_S [s]. Then the number of fills in flight is multiplied by BACK.
LATE, BACK = 1.5, 0.7
MEMORY_S = 60.0
# If opens still take more than HELPED times their earlier time after IN_VAIN steps back, fills are
# not what makes programs wait.
IN_VAIN, HELPED = 3, 0.95
# SOME_OPENS : the fewest opens whose mean is judged.  LEAST_S : only a mean that was taken over
# this time or longer can be the least one [s].
SOME_OPENS, LEAST_S = 16, 1.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts since the daemon began.

    n_bytes, files : the bytes that fills have read from the sources, and the files that they have
    read to the end;  opens, open_s : opens that programs made at the sources themselves, and how
    long these took together [s]
    """

    n_bytes: int = 0
    files: int = 0
    opens: int = 0
    open_s: float = 0.0


class Delay:
    """Judges whether programs wait longer for a source because of the daemon's reads. As in LEDBAT
    (RFC 6817), a wait is compared with the least wait of the last minute, which includes what
    programs make each other wait. Only opens are judged, because a read of a large file takes long
    anyway."""

    def __init__(self) -> None:
        self._least: deque[tuple[float, float]] = deque()  # (until when, mean of an open) [s]
        self._spell = (-math.inf, 0, 0.0)  # the mean being taken: since when, opens, their time
        self._before = (0, 0.0)
        # The mean time of the opens that were judged last [s], and whether it was as usual.
        self.mean_s, self.was_usual = 0.0, True

    def forget(self) -> None:
        """Forgets the least wait of the last minute. It is measured anew, from the opens that
        follow."""
        self._least.clear()
        self._spell = (-math.inf, 0, 0.0)

    def is_late(self, now_s: float, opens: int, open_s: float) -> bool:
        """Whether the opens since the last judgement took too long. Fewer than SOME_OPENS opens are
        not judged, and count towards the next judgement.

        opens, open_s : the number of opens so far, and the time of all of them [s]
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
        """Returns the least mean time of an open [s]. Before a mean is complete, it is the mean of
        the opens so far; without any open, it is infinite."""
        while self._least and self._least[0][0] < now_s:
            self._least.popleft()
        if self._least:
            return min(mean_s for _, mean_s in self._least)
        _, opens, took_s = self._spell
        return took_s / opens if opens else math.inf

    def _remember(self, now_s: float, opens: int, took_s: float) -> None:
        """Adds opens to the mean being taken, which is complete after LEAST_S. Of many shorter
        means, chance would decide which is the least."""
        since_s, n, so_far_s = self._spell
        if n == 0:
            since_s = now_s
        n, so_far_s = n + opens, so_far_s + took_s
        if now_s - since_s >= LEAST_S:
            self._least.append((now_s + MEMORY_S, so_far_s / n))
            n, so_far_s = 0, 0.0
        self._spell = since_s, n, so_far_s


class ReadsInFlight:
    """Sets the width, which is the number of fills in flight. It seeks the least width that brings
    nearly the most bytes, or files, per second, and reduces the width where programs wait for the
    source because of the fills.

    Sources differ by orders of magnitude. A source of high latency needs many reads in flight; at
    one whose bandwidth is the limit, more of them only make readers wait for each other. So the
    width is doubled while that pays, then kept, and now and then a smaller and a larger one are
    tried, because a shared source changes. For small files the files per second tell whether a step
    pays, because a source spends its time on each file; for large files the bytes per second do.

    least, most : bounds of the width, both included
    """

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most
        self.width = min(max(least, FIRST), most)
        self._delay = Delay()
        # The trial under way: the width before it, and the rates with which it is compared.
        self._trial: tuple[int, _Rate] | None = None
        self._down = True  # whether the last trial went down
        self._hold = FIRST_HOLD
        self._kept = HOLD  # windows since the last trial; HOLD, so that the first is due at once
        self._backs = 0  # steps back since programs last waited no longer than usual
        # Before the first of these steps: the width, and how long an open took [s].
        self._before_backs = self.width, 0.0
        self._since: tuple[float, Counted] | None = None
        self._was_full = True  # all the time since `_since`

    def step(self, now_s: float, so_far: Counted, *, is_full: bool) -> int:
        """Returns the width from now on.

        is_full : whether more fills are wanted than are in flight; otherwise rates say nothing
        about the width
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
        is_heard = not 0 < opens < SOME_OPENS  # there are enough opens to judge, or none
        return is_heard and (came >= ENOUGH * self.width or not self._was_full)

    def _begin(self, now_s: float, so_far: Counted) -> None:
        self._since, self._was_full = (now_s, so_far), True

    def _step_back(self) -> None:
        """Reduces the width. If the width is the least already, or earlier steps back have not
        helped, it is not the fills that make programs wait, but a busy machine or other users of
        the source. The present wait then becomes the usual one."""
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
                # A first step up may fail by chance, so it is tried again; nothing speaks for a
                # smaller width yet.
                self._down = not self._down and self._hold == HOLD
                self._try(rate)
            return
        before, expected = self._trial
        growth = rate.growth_over(expected)
        if growth > (LOSS if self._down else GAIN):
            self._hold = HOLD if self._down else FIRST_HOLD
            self._try(rate if growth > 1 else expected)  # the step paid, so take another
        else:
            self.width = before
            self._keep(self._hold if self._down else min(HOLD, 2 * self._hold))

    def _try(self, rate: "_Rate") -> None:
        """Puts the next width on trial. Its rate will be compared with `rate`."""
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
    """The rates of a window.

    files : how many files came in the window
    """

    bytes_per_s: float
    files_per_s: float
    files: int

    @classmethod
    def between(cls, since_s: float, before: Counted, now_s: float, so_far: Counted) -> "_Rate":
        files, seconds = so_far.files - before.files, now_s - since_s
        return cls((so_far.n_bytes - before.n_bytes) / seconds, files / seconds, files)

    def growth_over(self, before: "_Rate") -> float:
        """Returns by which factor the rate has grown. The factor of the bytes and that of the files
        differ where the files are of another kind than before: larger files bring more bytes, and
        smaller ones more files, without any gain. Then the smaller factor counts, otherwise the
        larger one."""
        in_bytes = _ratio(self.bytes_per_s, before.bytes_per_s)
        if min(self.files, before.files) < SOME_FILES:
            return in_bytes
        in_files = _ratio(self.files_per_s, before.files_per_s)
        is_alike = in_bytes <= ALIKE * in_files and in_files <= ALIKE * in_bytes
        return max(in_bytes, in_files) if is_alike else min(in_bytes, in_files)


def _ratio(now: float, before: float) -> float:
    return now / before if before else math.inf if now else 1.0
