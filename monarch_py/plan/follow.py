"""Where a node is in its plan, by what it is seen to open.

What is seen is little: now and then the set of what was opened since, neither how often nor in
which order. Workers of a DataLoader work ahead, each at its own pace; with `in_order=False` one of
them may lag behind all others for as long as it likes; somebody else reads a file of the dataset
now and then. So an access fits if it is one that the plan has before the front, and nobody has seen
yet, or one of the window behind it; and the front is moved by what most of the last accesses say,
never by the furthest one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from monarch_py.errors import ConfigError
from monarch_py.plan.run import RECENT, SEARCHED, UNSEEN, Run, Units
from monarch_py.plan.samplers import NONE

__all__ = ["NOT_SOON", "Distances", "PositionEstimator"]

# Accesses by which it is judged whether a node is lost; and of each of its ranks, whether the plan
# is wrong. For that 100 of a rank must be enough, whatever the turns in which they are seen.
JUDGED, WEIGHED = 40, 70
# Of what chance does not explain, so much fits at most where a node is lost, and where a plan is
# wrong; and at least where a node that was lost is so no more. Of a wrong plan no more fits than
# chance makes fit, either, on average and by so many standard deviations.
LOST, WRONG, FOUND_AGAIN, DEVIATIONS = 0.3, 0.4, 0.5, 4
# The front is never farther than so many times what was seen: it follows others' accesses too.
SEEN = 4
# Where chance alone makes more of any order fit, no order can be told from another.
MOST_BY_CHANCE = 0.7
# Later than every access that is known.
NOT_SOON = np.iinfo(np.int64).max

Bools = npt.NDArray[np.bool_]
NO_UNITS: Units = np.zeros(0, dtype=np.int32)
Distances = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


@dataclass(eq=False)
class _Progress:
    """How far a run has come.

    entered : where it was come upon;  seen : (places,), at first all before that
    front : the places before it are done, but for those that lag behind
    """

    run: Run
    entered: int = 0
    seen: Bools = field(init=False)
    count: int = field(init=False)
    front: int = field(init=False)

    def __post_init__(self) -> None:
        self.seen = np.arange(len(self.run)) < self.entered
        self.count = self.front = self.entered
        self._recent: deque[int] = deque(maxlen=RECENT)

    def _came(self, places: Units) -> Bools:
        """Whether what is at these places (n,), where NONE may be anything, was seen."""
        return self.seen[places] if len(self.run) else np.zeros(len(places), dtype=bool)

    def unseen(self, units: Units, *, lags: bool) -> Bools:
        """Which of these units (n,) have not come yet; `lags` : and should have, long ago."""
        places = self.run.place[units]
        late = places < (self.front - 2 * self.run.window if lags else len(self.run))
        return np.asarray((places != NONE) & late & ~self._came(places))

    def fitting(self, units: Units) -> Bools:
        """Which of these units (n,), each once, fit now, but for those that lag."""
        places = self.run.place[units]
        new = (places >= max(0, self.front - 2 * self.run.window)) & ~self._came(places)
        order = np.argsort(places[new], kind="stable")
        ordered = places[new][order]
        # Workers are a window at most beyond what was opened. The front moves while they come.
        reach = max(self.front, self.count) + self.run.window
        limit = reach + UNSEEN * np.arange(len(ordered))
        fits = np.zeros(len(units), dtype=bool)
        fits[np.flatnonzero(new)[order[ordered < limit]]] = True
        return fits

    def chance(self, accesses: int) -> float:
        """How much of so many accesses to the run's units in any order would fit now: a share of
        those that `again` does not know."""
        reach = max(self.front, self.count) + self.run.window + UNSEEN * accesses / 2
        window = 2 * self.run.window
        low = max(0, self.front - window)
        known = np.count_nonzero(self.seen[low : self.front + window + 1])
        known += max(0, min(self.entered, low) - max(0, self.entered - window))
        others = len(self.run) - int(known)
        return min(1.0, (min(reach, len(self.run)) - self.count) / max(1, others))

    def take(self, units: Units) -> None:
        """Units that fit have come."""
        places = np.sort(self.run.place[units])
        self.seen[places] = True
        self.count += len(places)
        self._recent.extend(places[-RECENT:].tolist())
        front = self.count - self.run.window
        if len(self._recent) == RECENT:
            quarter = sorted(self._recent)[RECENT // 4]
            front = max(front, min(quarter, RECENT + SEEN * self.count))
        self.front = max(self.front, front)
        if self.is_done:
            self.front = len(self.run)

    def again(self, units: Units) -> Bools:
        """Which of these units (n,) were seen a short time ago, by who opens a file twice; or may
        have come when nobody saw it yet, or not: shortly before the run was come upon."""
        places, window = self.run.place[units], 2 * self.run.window
        near = np.abs(places - self.front) <= window
        near |= (places >= self.entered - window) & (places < self.entered)
        return np.asarray((places != NONE) & near & self._came(places))

    @property
    def is_done(self) -> bool:
        return self.count == len(self.run)

    @property
    def is_ending(self) -> bool:
        # The front lags behind; but of a short run not all is its end.
        end = min(2 * self.run.window, len(self.run) // 2)
        return max(self.front, self.count) >= len(self.run) - end


@dataclass(eq=False)
class _Verdict:
    """On what was opened between two looks, and nobody else has explained.

    units : (n,);  misfits : (m,) of them, as far as is known by now
    chance : how much of so many would fit if they were any units
    own : how many are in a run of the node;  own_chance : how much of any such would fit
    """

    units: Units
    misfits: Units
    chance: float
    own: int
    own_chance: float


@dataclass(frozen=True)
class _Evidence:
    """How the last accesses fit.

    fits : of so many `accesses`;  by_chance : of which in any order as many would, on average
    variance : of the latter
    """

    fits: int
    accesses: int
    by_chance: float
    variance: float

    @classmethod
    def of(cls, fits: int, chances: list[tuple[int, float]]) -> _Evidence:
        """chances : (accesses, how much of them would fit) of each look"""
        by_chance = sum(n * chance for n, chance in chances)
        variance = sum(n * chance * (1 - chance) for n, chance in chances)
        return cls(fits, sum(n for n, _ in chances), by_chance, variance)

    @property
    def says_something(self) -> bool:
        return self.by_chance <= MOST_BY_CHANCE * self.accesses

    @property
    def explained(self) -> float:
        """Of what would not fit in any order, how much does."""
        return (self.fits - self.by_chance) / (self.accesses - self.by_chance)

    @property
    def is_chance(self) -> bool:
        beyond = DEVIATIONS * math.sqrt(self.variance) / (self.accesses - self.by_chance)
        return self.explained <= min(beyond, WRONG)


class _Chance:
    """How much of accesses in any order would fit, of all units: `fits`; and how much of them is in
    a run of the node."""

    def __init__(self) -> None:
        self._not_fitting = self._not_own = 1.0

    def add(self, run: Run, chance: float) -> None:
        """A run, and how much of its own units would fit."""
        share = len(run) / max(1, len(run.place))
        self._not_fitting *= 1 - chance * share
        self._not_own *= 1 - share

    @property
    def fits(self) -> float:
        return 1 - self._not_fitting

    @property
    def of_own(self) -> float:
        return self.fits / max(self.fits, 1 - self._not_own, 1e-9)


class PositionEstimator:
    """Follows a node from one run to the next.

    run : where it begins;  following : the run after it, which is set when it is known (`None`: it
    is not, or there is none);  ranks : of the node
    """

    def __init__(self, run: Run, place: int = 0, *, ranks: int = 1) -> None:
        self._weighed = WEIGHED * ranks
        self.following: Run | None = None
        self._before: _Progress | None = None
        self._now = _Progress(run)
        self._next: _Progress | None = None
        self._verdicts: deque[_Verdict] = deque()
        self._judged = 0
        self._chance = _Chance()
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
        self._now = _Progress(run, place)
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
            early = np.unique(np.concatenate([NO_UNITS, *(v.misfits for v in self._verdicts)]))
            early = early[self.observe(early)]
            before = self.unexplained
            for verdict in self._verdicts:
                verdict.misfits = np.setdiff1d(verdict.misfits, early)
            more = before - self.unexplained
            self.fits, self.misfits = self.fits + more, self.misfits - more

    # --- what is seen ---------------------------------------------------------------------------

    def observe(self, units: Units) -> Bools:
        """Which of these units (n,) int32, each once, opened since the last call, fit the plan."""
        chance = _Chance()
        chance.add(self._now.run, self._now.chance(len(units)))
        fits = self._now.fitting(units)
        self._now.take(units[fits])
        if self._now.is_ending and self.following is not None:
            if self._next is None:
                self._next = _Progress(self.following)
            chance.add(self.following, self._next.chance(len(units)))
            begun = ~fits & self._next.fitting(units)
            self._next.take(units[begun])
            self._last.extend(_mixed(int(fits.sum()), int(begun.sum())))
            fits |= begun
        for progress, lags in ((self._now, True), (self._before, False)):
            if progress is not None:
                if not lags:
                    chance.add(progress.run, 1 - progress.count / max(1, len(progress.run)))
                late = ~fits & progress.unseen(units, lags=lags)
                progress.take(units[late])
                fits |= late
        self._chance = chance
        if self._next is not None and (self._now.is_done or self._has_begun(self._next)):
            self._before, self._now, self._next = self._now, self._next, None
            self.following = None
            self._last.clear()
        return fits

    def _has_begun(self, following: _Progress) -> bool:
        """Whether most of the last accesses are the next run's: single ones are somebody else's."""
        enough = min(RECENT, max(1, len(following.run) // 2))
        return following.count >= enough and sum(self._last) >= 0.75 * enough

    def judge(self, units: Units, fits: Bools, *, alone: bool = True) -> None:
        """Takes note of how what was observed fits: (n,) units that nobody else has explained, and
        whether they fitted; `alone` as `knows_again` has it."""
        known = fits | ~self.knows_again(units, alone=alone)
        misfits, units = units[known & ~fits], units[known]
        self.fits += len(units) - len(misfits)
        self.misfits += len(misfits)
        if len(units):
            own = int(np.count_nonzero(self._is_own(units)))
            chance = self._chance.fits, own, self._chance.of_own
            self._verdicts.append(_Verdict(units, misfits, *chance))
            self._judged += len(units)
        while self._verdicts and self._judged - len(self._verdicts[0].units) >= self._weighed:
            self._judged -= len(self._verdicts.popleft().units)

    def _is_own(self, units: Units) -> Bools:
        own = np.zeros(len(units), dtype=bool)
        for progress in self._all():
            own |= progress.run.place[units] != NONE
        return own

    def knows_again(self, units: Units, *, alone: bool = False) -> Bools:
        """Which of these units (n,) were seen a short time ago.

        alone : no other plan's job reads the same files. Then what the last run has ended with is
        not known any more once this one is under way: of a short run that is most of all units.
        """
        again = np.zeros(len(units), dtype=bool)
        forgets = alone and self.front > self.run.window // 4
        for progress in self._all():
            if progress is not self._before or not forgets:
                again |= progress.again(units)
        return again

    def _all(self) -> list[_Progress]:
        return [p for p in (self._before, self._now, self._next) if p is not None]

    @property
    def is_ending(self) -> bool:
        """Whether the next run may have begun."""
        return self._now.is_ending

    @property
    def recent(self) -> Units:
        """The last accesses, (n,): as many as are looked for in the plan, and what else was opened
        with them."""
        found: list[Units] = [NO_UNITS]
        for verdict in reversed(self._verdicts):
            found.append(verdict.units)
            if sum(map(len, found)) >= SEARCHED:
                break
        return np.concatenate(found)

    @property
    def judged(self) -> int:
        """Accesses of which note was taken, ever."""
        return self.fits + self.misfits

    @property
    def weighed(self) -> int:
        """The last accesses, by which it is judged whether the plan is wrong: how many they are."""
        return self._judged

    @property
    def unexplained(self) -> int:
        """How many of those did not fit."""
        return sum(len(v.misfits) for v in self._verdicts)

    @property
    def is_lost(self) -> bool:
        """Whether what is seen fits hardly better than any order would: then the node is elsewhere
        in its plan, or does something else. Never where any order fits as well."""
        return any(last.explained <= LOST for last in self._evidence(JUDGED))

    @property
    def is_found(self) -> bool:
        """Whether a node that was lost does what the plan says again, or nothing tells that it does
        not."""
        return all(last.explained >= FOUND_AGAIN for last in self._evidence(JUDGED))

    @property
    def is_wrong(self) -> bool:
        """Whether no more fits, for long, than may be chance alone."""
        return any(last.is_chance for last in self._evidence(self._weighed))

    def _evidence(self, accesses: int) -> list[_Evidence]:
        """How the last accesses fit, so many and what was opened with them: all of them, and those
        that are the node's, if either says something."""
        if self._judged < accesses:
            return []
        last, known = [], 0
        for verdict in reversed(self._verdicts):
            last.append(verdict)
            known += len(verdict.units)
            if known >= accesses:
                break
        fits = known - sum(len(v.misfits) for v in last)
        every = _Evidence.of(fits, [(len(v.units), v.chance) for v in last])
        own = _Evidence.of(fits, [(v.own, v.own_chance) for v in last])
        return [e for e in (every, own) if e.says_something and e.accesses >= accesses // 2]

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


def _mixed(now: int, begun: int) -> list[bool]:
    """Of what was opened at once, which the next run's were: the last of them, as if they had come
    evenly."""
    last = min(now + begun, RECENT)
    share = round(last * begun / max(1, now + begun))
    return [False] * (last - share) + [True] * share


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
