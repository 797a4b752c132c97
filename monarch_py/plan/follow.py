"""Where a node is in its plan, by what it is seen to open.

What is seen is little: now and then the set of what was opened since, neither how often nor in
which order. Workers of a DataLoader work ahead, each at its own pace; with `in_order=False` one of
them may lag behind all others for as long as it likes; somebody else reads a file of the dataset
now and then. So an access fits if it is one that the plan has before the front, and nobody has seen
yet, or one of the window behind it; and the front is moved by what most of the last accesses say,
never by the furthest one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from monarch_py.errors import ConfigError
from monarch_py.plan.samplers import NONE
from monarch_py.plan.timeline import Part, Section

__all__ = ["NOT_SOON", "Distances", "Follower", "Run", "locate", "window_steps"]

# Batches that a DataLoader's workers may well have under way where the plan does not say: eight
# workers of four. Where it does say, so many times that: some accesses are never seen. Never more
# than this share of a run, but for what the plan says, or any order would fit.
USUAL_AHEAD, SLACK, USUAL_SHARE = 32, 2, 4
# Accesses from which a judgement is made. 100 of a rank must be enough for it.
JUDGED = 48
# More of the plan's accesses may have been made than were seen, so many for each.
UNSEEN = 1.5
# The last accesses that fitted; a quarter of them lies before the front.
RECENT = 32
# Where chance alone makes more of any order fit, no order can be told from another.
MOST_BY_CHANCE = 0.5
# Later than every access that is known.
NOT_SOON = np.iinfo(np.int64).max
# A place in the plan is found where so much of the evidence lies together.
FOUND = 0.7

Units = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Distances = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def window_steps(part: Part, prefetched: int = 0) -> int:
    """How many steps accesses may be out of order: with W workers that each prepare P batches, W P
    are under way, and so are those of which the training waits for one.

    prefetched : steps that something else reads ahead of the training
    """
    return part.loader.ahead + 1 + prefetched


@dataclass(frozen=True, eq=False)
class Run:
    """What one node does in one section of its plan, each unit once, where it is used first: who
    has a file open reads it again without anybody seeing it.

    units : (n,) int32, in this order;  place : (units of the plan,) int32, where each comes, NONE
    for those that do not;  starts : (n,) int64, the position of each in the plan's timeline
    window : how many places one may come early
    """

    epoch: int
    units: Units
    place: Units
    starts: npt.NDArray[np.int64]
    window: int

    @classmethod
    def of(cls, section: Section, node: int, units: int, window: int | None = None) -> Run:
        """units : of the plan;  window : None = as window_steps has it, or as is usual."""
        if window is not None and window < 1:
            raise ConfigError(f"window: {window} is out of range; write 1 or more")
        own = section.node(node)
        at = np.flatnonzero(own != NONE)
        # Backwards, so that of several uses the first one stays.
        first = np.full(units, -1, dtype=np.int32)
        first[own[at[::-1]]] = at[::-1]
        at = at[first[own[at]] == at]
        order = own[at]
        place = np.full(units, NONE, dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        if window is None:
            told = window_steps(section.part) * section.per_step
            usual = (USUAL_AHEAD + 1) * section.per_step
            ample = SLACK * told if section.part.loader.workers else usual
            # The front lags behind by almost as many as it is made from.
            window = max(told, min(max(ample, 2 * RECENT), len(order) // USUAL_SHARE))
        return cls(section.epoch, order, place, section.start + at, window)

    def __len__(self) -> int:
        return len(self.units)

    @property
    def chance(self) -> float:
        """The share of accesses in any order that fit."""
        return min(1.0, self.window / max(1, len(self)))


@dataclass(eq=False)
class _Progress:
    """How far a run has come.  seen : (places,);  front : the places before it are done, but for
    those that lag behind"""

    run: Run
    seen: Bools = field(init=False)
    count: int = 0
    front: int = 0

    def __post_init__(self) -> None:
        self.seen = np.zeros(len(self.run), dtype=bool)
        self._recent: deque[int] = deque(maxlen=RECENT)

    def unseen(self, units: Units, *, lags: bool) -> Bools:
        """Which of these units (n,) have not come yet; `lags` : and should have, long ago."""
        places = self.run.place[units]
        late = places < (self.front - 2 * self.run.window if lags else len(self.run))
        return np.asarray((places != NONE) & late & ~self.seen[places])

    def fitting(self, units: Units) -> Bools:
        """Which of these units (n,), each once, fit now, but for those that lag."""
        places = self.run.place[units]
        new = (places >= max(0, self.front - 2 * self.run.window)) & ~self.seen[places]
        order = np.argsort(places[new], kind="stable")
        ordered = places[new][order]
        # Workers are a window at most beyond what was opened. The front moves while they come.
        reach = max(self.front, self.count) + self.run.window
        limit = reach + UNSEEN * np.arange(len(ordered))
        fits = np.zeros(len(units), dtype=bool)
        fits[np.flatnonzero(new)[order[ordered < limit]]] = True
        return fits

    def take(self, units: Units) -> None:
        """Units that fit have come."""
        places = np.sort(self.run.place[units])
        self.seen[places] = True
        self.count += len(places)
        self._recent.extend(places[-RECENT:].tolist())
        quarter = sorted(self._recent)[len(self._recent) // 4] if len(places) else 0
        self.front = max(self.front, quarter, self.count - self.run.window)
        if self.is_done:
            self.front = len(self.run)

    def again(self, units: Units) -> Bools:
        """Which of these units (n,) were seen a short time ago: who opens a file twice."""
        places = self.run.place[units]
        near = np.abs(places - self.front) <= 2 * self.run.window
        return np.asarray((places != NONE) & near & self.seen[places])

    @property
    def is_done(self) -> bool:
        return self.count == len(self.run)

    @property
    def is_ending(self) -> bool:
        return self.front >= len(self.run) - 2 * self.run.window or self.is_done


class Follower:
    """Follows a node from one run to the next.

    run : where it begins;  following : the run after it, which is set when it is known (`None`: it
    is not, or there is none)
    """

    def __init__(self, run: Run, place: int = 0) -> None:
        self.following: Run | None = None
        self._before: _Progress | None = None
        self._now = _Progress(run)
        self._next: _Progress | None = None
        self._verdicts: deque[tuple[int, Units]] = deque()
        self._judged = 0
        self.fits = self.misfits = 0
        self.enter(run, place)

    def enter(self, run: Run, place: int) -> None:
        """Goes on from this place, as a training that was restarted does; ConfigError if it is not
        in the run."""
        if not 0 <= place <= len(run):
            raise ConfigError(f"place: {place} is not in the run; enter another one")
        self._before, self._next, self.following = None, None, None
        # Of the last accesses that fitted near a run's end, which were the next one's.
        self._last: deque[bool] = deque(maxlen=RECENT)
        self._now = _Progress(run, front=place, count=place)
        self._now.seen[:place] = True
        self._verdicts.clear()
        self._judged = 0

    @property
    def run(self) -> Run:
        return self._now.run

    @property
    def front(self) -> int:
        """The place in the run up to which the node has come."""
        return self._now.front

    @property
    def position(self) -> int:
        """The same in the timeline of the plan; behind its last access when all is done."""
        starts = self.run.starts
        if not len(starts):
            return 0
        return int(starts[self.front]) if self.front < len(starts) else int(starts[-1]) + 1

    @property
    def missing(self) -> int:
        """Accesses that the window has passed without their being seen: reads that something else
        has answered, or another order."""
        passed = max(0, self.front - self.run.window)
        return int(passed - np.count_nonzero(self._now.seen[:passed]))

    def expect(self, following: Run) -> None:
        """The run after this one is known by now. It may have begun meanwhile: then what did not
        fit this one is looked at again."""
        self.following = following
        if self._now.is_ending:
            early = np.unique(self.evidence)
            self._verdicts.clear()
            self._judged = 0
            self.judge(early, self.observe(early))

    # --- what is seen ---------------------------------------------------------------------------

    def observe(self, units: Units) -> Bools:
        """Which of these units (n,) int32, each once, opened since the last call, fit the plan."""
        fits = self._now.fitting(units)
        self._now.take(units[fits])
        if self._now.is_ending and self.following is not None:
            if self._next is None:
                self._next = _Progress(self.following)
            begun = ~fits & self._next.fitting(units)
            self._next.take(units[begun])
            self._last.extend([False] * int(fits.sum()) + [True] * int(begun.sum()))
            fits |= begun
        for progress, lags in ((self._now, True), (self._before, False)):
            if progress is not None:
                late = ~fits & progress.unseen(units, lags=lags)
                progress.take(units[late])
                fits |= late
        if self._next is not None and (self._now.is_done or self._has_begun(self._next)):
            self._before, self._now, self._next = self._now, self._next, None
            self.following = None
            self._last.clear()
        return fits

    def _has_begun(self, following: _Progress) -> bool:
        """Whether most of the last accesses are the next run's: single ones are somebody else's."""
        enough = min(RECENT, max(1, len(following.run) // 2))
        return following.count >= enough and sum(self._last) >= 0.75 * enough

    def judge(self, units: Units, fits: Bools) -> None:
        """Takes note of how what was observed fits: (n,) units that nobody else has explained, and
        whether they fitted."""
        known = fits | ~self._known_again(units)
        misfits = units[known & ~fits]
        n = int(known.sum())
        self.fits += n - len(misfits)
        self.misfits += len(misfits)
        if n:
            self._verdicts.append((n, misfits))
            self._judged += n
        while self._verdicts and self._judged - self._verdicts[0][0] >= JUDGED:
            self._judged -= self._verdicts.popleft()[0]

    def _known_again(self, units: Units) -> Bools:
        again = self._now.again(units)
        for progress in (self._before, self._next):
            if progress is not None:
                again |= progress.again(units)
        return again

    @property
    def is_ending(self) -> bool:
        """Whether the next run may have begun."""
        return self._now.is_ending

    @property
    def evidence(self) -> Units:
        """The last accesses that did not fit."""
        return np.concatenate([np.zeros(0, np.int32), *(each for _, each in self._verdicts)])

    @property
    def is_lost(self) -> bool:
        """Whether what is seen fits hardly better than any order would: then the node is elsewhere
        in its plan, or does something else. Never where any order fits as well."""
        chance = self.run.chance
        if self._judged < JUDGED or chance > MOST_BY_CHANCE:
            return False
        share = 1 - len(self.evidence) / self._judged
        return share <= chance + (1 - chance) / 4

    # --- what comes -----------------------------------------------------------------------------

    def due(self, most: int) -> npt.NDArray[np.intp]:
        """The places of this run that are not done: (n,), `most` at most, those first that should
        be."""
        now = self._now
        low = max(0, now.front - 2 * now.run.window)
        return low + np.flatnonzero(~now.seen[low:])[:most]

    def upcoming(self, most: int) -> Units:
        """What is needed next: (n,) units, `most` at most, those first that should have come."""
        ahead = self._now.run.units[self.due(most)]
        if len(ahead) < most and self.following is not None:
            rest = self.following.units
            if self._next is not None:
                rest = rest[~self._next.seen]
            ahead = np.concatenate([ahead, rest[: most - len(ahead)]])
        return ahead

    def distances(self) -> Distances:
        """(units,) how many accesses from now each unit is used next, and then once more; NOT_SOON
        for what is neither in what is left of this run nor in the next one."""
        return self.foresee()()

    def foresee(self) -> Callable[[], Distances]:
        """As `distances`, of this moment, for a thread to work out."""
        now = self._now
        low = max(0, now.front - 2 * now.run.window)
        following = self._next.seen.copy() if self._next is not None else None
        return partial(_distances, now.run, now.seen.copy(), low, self.following, following)


def _distances(
    run: Run, seen: Bools, low: int, following: Run | None, begun: Bools | None
) -> Distances:
    first = np.full(len(run.place), NOT_SOON, dtype=np.int64)
    second = first.copy()
    rest = run.units[low + np.flatnonzero(~seen[low:])]
    first[rest] = np.arange(len(rest))
    if following is not None:
        units = following.units if begun is None else following.units[~begun]
        away = len(rest) + np.arange(len(units))
        again = first[units] != NOT_SOON
        second[units[again]] = away[again]
        first[units[~again]] = away[~again]
    return first, second


def locate(run: Run, evidence: Units) -> tuple[float, int]:
    """How much of the evidence, (n,) units that were opened one after the other, lies together in
    this run, and where: (share of it, the place where it begins). The share is 0 where that may be
    chance."""
    places = np.sort(run.place[evidence])
    places = places[places != NONE]
    if not len(places):
        return 0.0, 0
    width = run.window + UNSEEN * len(evidence)
    inside = np.searchsorted(places, places + width) - np.arange(len(places))
    best = int(inside.argmax())
    share = float(inside[best]) / len(evidence)
    by_chance = min(1.0, width / len(run))
    is_it = share >= FOUND and share >= by_chance + (1 - by_chance) / 3
    return (share if is_it else 0.0), int(places[best])
