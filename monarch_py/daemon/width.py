"""How many reads the daemon keeps in flight at the sources, by what they give."""

__all__ = ["ReadsInFlight"]

# A look at the rate takes this long at least: shorter ones see single reads, not a rate [s].
WINDOW_S = 0.1
# More reads pay when they bring a tenth more; fewer are as good when they bring almost as much.
GAIN, LOSS = 1.10, 0.95
# Windows for which a width that was found good is kept before another one is tried.
HOLD = 20


class ReadsInFlight:
    """Climbs towards the fewest reads that give nearly the most bytes per second.

    Sources differ by orders of magnitude: one of high latency needs many reads in flight, on one
    whose bandwidth is the limit more of them only make readers wait for each other. So the width
    is doubled while that pays, then kept, and now and then a smaller and a larger one are tried,
    because a shared source changes.

    least, most : bounds of the width, both included
    """

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most
        self.width = min(max(least, 2), most)
        # What a trial is compared with: the width before it and the rate to reach [bytes/s].
        self._trial: tuple[int, float] | None = None
        self._down = True  # the way of the last trial
        self._kept = HOLD  # windows since then: the first trial comes at once
        self._since: tuple[float, int] | None = None

    def step(self, now_s: float, total_bytes: int, *, busy: bool) -> int:
        """The width from now on.

        total_bytes : read from the sources so far [bytes]
        busy : reads are wanted; without any, a rate says nothing
        """
        if not busy:
            self._since = None
        elif self._since is None:
            self._since = now_s, total_bytes
        elif now_s - self._since[0] >= WINDOW_S:
            rate = (total_bytes - self._since[1]) / (now_s - self._since[0])
            self._since = now_s, total_bytes
            self._judge(rate)
        return self.width

    def _judge(self, rate: float) -> None:
        if self._trial is None:
            self._kept += 1
            if self._kept >= HOLD:
                self._down = not self._down
                self._try(rate)
            return
        before, expected = self._trial
        if rate > expected * (LOSS if self._down else GAIN):
            self._try(max(rate, expected))  # it paid: further
        else:
            self.width = before
            self._keep()

    def _try(self, rate: float) -> None:
        """Puts the next width on trial; `rate` is what it must be worth [bytes/s]."""
        wanted = self.width // 2 if self._down else self.width * 2
        wanted = min(max(wanted, self.least), self.most)
        if wanted == self.width:
            self._keep()
        else:
            self._trial, self.width = (self.width, rate), wanted

    def _keep(self) -> None:
        self._trial, self._kept = None, 0
