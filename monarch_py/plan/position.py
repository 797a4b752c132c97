"""Estimates a node's position in its plan from the files that programs are seen to open.

The daemon has little information. From time to time it learns which files were opened since it last
looked, but not how often or in which order. A DataLoader's workers read ahead, each at its own
pace. With `in_order=False`, a worker may lag far behind the others. Besides, programs other than
the training may read files of the dataset.

A run is the list of the units (files or parts of files) that the node uses in one loop of an epoch,
in their order. A place is an index into this list. The front is the estimated position: the place
that the node has reached. The window is how far programs may read ahead of the front. An
access fits the plan if no earlier access had its place, and if the place is at most one window past
the front. The front follows the majority of the last accesses, never the access that is furthest
ahead.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import Bools, Ints
from monarch_py.errors import ConfigError
from monarch_py.plan.evidence import SEARCHED, UNSEEN, Evidence, Verdict, by_chance
from monarch_py.plan.samplers import NONE
from monarch_py.plan.timeline import RECENT, Run, Units

# JUDGED: how many of the last accesses decide whether the position is lost.
# WEIGHED: how many of the last accesses, per rank, decide whether the plan is wrong. WEIGHED is
# below 100, so that 100 accesses of a rank are always enough for this decision, no matter how they
# are distributed over the daemon's observations.
JUDGED, WEIGHED = 40, 70
# Thresholds for `Evidence.explained`. A position is lost at LOST or below, and found again at
# FOUND_AGAIN or above.
LOST, FOUND_AGAIN = 0.3, 0.5
# The front is at most about SEEN times the number of places whose accesses were seen. Without this
# limit, accesses of programs other than the training could move the front too far.
SEEN = 4
# Used as the distance to a unit's next use if no next use is known. It is larger than every real
# distance.
NOT_SOON = np.iinfo(np.int64).max

NO_UNITS: Units = np.zeros(0, dtype=np.int32)
Distances = tuple[Ints, Ints]


class _Progress:
    """The progress of a node in one run (the list of the units that it uses in one loop of an
    epoch). A place is an index into this list.

    entered : the place at which the estimator began to follow the node
    seen : (places,), whether an access to the unit of each place was seen. The elements before
        `entered` are True
    count : how many elements of `seen` are True
    front : the place that the node has reached. Nearly all units before it have been accessed; a
        few accesses may lag behind
    """

    def __init__(self, run: Run, entered: int = 0) -> None:
        self.run, self.entered = run, entered
        self.seen: Bools = np.arange(len(run)) < entered
        self.count = self.front = entered
        self._recent: deque[int] = deque(maxlen=RECENT)

    def _came(self, places: Units) -> Bools:
        """Returns the elements of `seen` for these places, (n,). For a place that is NONE, the
        result has no meaning."""
        return self.seen[places] if len(self.run) else np.zeros(len(places), dtype=bool)

    def unseen(self, units: Units, *, lags: bool) -> Bools:
        """Returns, for each of these units, whether the unit is in the run and no access to it was
        seen yet, (n,).

        lags : True if the unit must also lie more than two windows before the front
        """
        places = self.run.place[units]
        late = places < (self.front - 2 * self.run.window if lags else len(self.run))
        return np.asarray((places != NONE) & late & ~self._came(places))

    def fitting(self, units: Units) -> Bools:
        """Returns which of these units fit the present position, (n,). Units that lie more than two
        windows before the front do not fit; `unseen(lags=True)` finds them.

        units : (n,), all different
        """
        places = self.run.place[units]
        new = (places >= max(0, self.front - 2 * self.run.window)) & ~self._came(places)
        order = np.argsort(places[new], kind="stable")
        ordered = places[new][order]
        # A unit fits if it is less than a window ahead of the front. Each unit that fits moves the
        # front ahead, so the limit is higher for each further unit.
        reach = max(self.front, self.count) + self.run.window
        limit = reach + UNSEEN * np.arange(len(ordered))
        fits = np.zeros(len(units), dtype=bool)
        fits[np.flatnonzero(new)[order[ordered < limit]]] = True
        return fits

    def chance(self, accesses: int) -> float:
        """Returns which share of the node's next accesses would fit its position by chance: if they
        went to random units of the run. Units that `again` recognises are left out.

        accesses : how many accesses are considered. The front moves ahead while they happen, which
            increases the share
        """
        reach = max(self.front, self.count) + self.run.window + UNSEEN * accesses / 2
        window = 2 * self.run.window
        low = max(0, self.front - window)
        known = np.count_nonzero(self.seen[low : self.front + window + 1])
        known += max(0, min(self.entered, low) - max(0, self.entered - window))
        others = len(self.run) - int(known)
        return min(1.0, (min(reach, len(self.run)) - self.count) / max(1, others))

    def take(self, units: Units) -> None:
        """Marks the places of these units as seen, and advances the front."""
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
        """Returns for which of these units the present open is probably a repetition, (n,). (A
        program may open a file twice.) A repetition is assumed in two cases. First, the unit's
        place was seen, and is at most two windows from the front. Second, the unit's place is at
        most two windows before `entered`: the unit may have been opened before the estimator began
        to follow the node."""
        places, window = self.run.place[units], 2 * self.run.window
        near = np.abs(places - self.front) <= window
        near |= (places >= self.entered - window) & (places < self.entered)
        return np.asarray((places != NONE) & near & self._came(places))

    @property
    def is_done(self) -> bool:
        return self.count == len(self.run)

    @property
    def is_ending(self) -> bool:
        # The end of a run is its last two windows, because `front` lags behind the node's accesses.
        # The end of a short run is its last half.
        end = min(2 * self.run.window, len(self.run) // 2)
        return max(self.front, self.count) >= len(self.run) - end


class PositionEstimator:
    """Tracks a node's position in a run, and from one run to the next. (A run is the list of the
    units that the node uses in one loop of an epoch, and a place is an index into this list.)

    run, place : the node's initial position
    following : the next run; None if it is not known yet, or if there is none
    ranks : number of ranks on the node
    weighed : how many of the last accesses are kept as evidence
    """

    def __init__(self, run: Run, place: int = 0, *, ranks: int = 1) -> None:
        self._least = WEIGHED * ranks
        self._chance = 0.0, 0.0
        self.fits = self.misfits = 0
        self.enter(run, place)

    def enter(self, run: Run, place: int) -> None:
        """Starts tracking at this place of this run, for example after a restart of the training.
        Drops all evidence of earlier accesses. Raises ConfigError if the place is not in the
        run."""
        if not 0 <= place <= len(run):
            raise ConfigError(f"place: {place} is not in the run; use 0 to {len(run)}")
        self.following: Run | None = None
        self._before: _Progress | None = None
        self._next: _Progress | None = None
        # Used near the end of the present run. For each of the last accesses that fitted: whether
        # it belonged to the next run.
        self._last: deque[bool] = deque(maxlen=RECENT)
        self._now = _Progress(run, place)
        self._verdicts: deque[Verdict] = deque()
        self.weighed = 0

    def begin_job(self) -> None:
        """Prepares for a new job. Keeps the position, but forgets the accesses of the earlier job:
        whether they fitted, and which files may be opened again."""
        self._before = None
        self._verdicts.clear()
        self.weighed = 0

    @property
    def run(self) -> Run:
        return self._now.run

    @property
    def front(self) -> int:
        """The place in the run that the node has reached."""
        return self._now.front

    @property
    def position(self) -> int:
        """The place that the node has reached (`front`), as a position in the plan's timeline. If
        the whole run is done, the position is the last element of `Run.starts` plus 1. If the run
        is empty, the position is 0."""
        starts = self.run.starts
        if not len(starts):
            return 0
        return int(starts[self.front]) if self.front < len(starts) else int(starts[-1]) + 1

    def expect(self, following: Run) -> None:
        """Sets the next run. The node may have begun this run already, so accesses that did not fit
        the current run are now compared with the next run."""
        self.following = following
        if self._now.is_ending:
            early = np.unique(np.concatenate([NO_UNITS, *(v.misfits for v in self._verdicts)]))
            early = early[self.observe(early)]
            before = self.unexplained
            for verdict in self._verdicts:
                verdict.misfits = np.setdiff1d(verdict.misfits, early)
            more = before - self.unexplained
            self.fits, self.misfits = self.fits + more, self.misfits - more

    # --- observed accesses ----------------------------------------------------------------------

    def observe(self, units: Units) -> Bools:
        """Advances the position. Returns which of the units fit the plan, (n,).

        units : (n,) int32, all different, the units opened since the last call
        """
        runs = [(self._now.run, self._now.chance(len(units)))]
        fits = self._now.fitting(units)
        self._now.take(units[fits])
        if self._now.is_ending and self.following is not None:
            if self._next is None:
                self._next = _Progress(self.following)
            runs.append((self.following, self._next.chance(len(units))))
            begun = ~fits & self._next.fitting(units)
            self._next.take(units[begun])
            self._last.extend(_mixed(int(fits.sum()), int(begun.sum())))
            fits |= begun
        for progress, lags in ((self._now, True), (self._before, False)):
            if progress is not None:
                if not lags:
                    runs.append((progress.run, 1 - progress.count / max(1, len(progress.run))))
                late = ~fits & progress.unseen(units, lags=lags)
                progress.take(units[late])
                fits |= late
        self._chance = by_chance(runs)
        if self._next is not None and (self._now.is_done or self._has_begun(self._next)):
            self._before, self._now, self._next = self._now, self._next, None
            self.following = None
            self._last.clear()
        return fits

    def _has_begun(self, following: _Progress) -> bool:
        """Returns whether enough of the last accesses belong to the next run. A few such accesses
        would prove nothing, because another program may have made them."""
        enough = min(RECENT, max(1, len(following.run) // 2))
        return following.count >= enough and sum(self._last) >= 0.75 * enough

    def judge(self, units: Units, fits: Bools, *, alone: bool = True) -> None:
        """Adds the units of one observation to the evidence. Ignores units that do not fit the plan
        because they were opened a short time ago (`knows_again`).

        units : (n,), observed units that no other plan explains
        fits : (n,), whether each of these units fits the plan
        alone : whether no job of another plan reads the same files
        """
        known = fits | ~self.knows_again(units, alone=alone)
        misfits, units = units[known & ~fits], units[known]
        self.fits += len(units) - len(misfits)
        self.misfits += len(misfits)
        if len(units):
            own = int(np.count_nonzero(self._is_own(units)))
            chance, of_own = self._chance
            self._verdicts.append(Verdict(units, misfits, chance, own, of_own))
            self.weighed += len(units)
        while self._verdicts and self.weighed - len(self._verdicts[0].units) >= self._least:
            self.weighed -= len(self._verdicts.popleft().units)

    def _is_own(self, units: Units) -> Bools:
        own = np.zeros(len(units), dtype=bool)
        for progress in self._all():
            own |= progress.run.place[units] != NONE
        return own

    def knows_again(self, units: Units, *, alone: bool = False) -> Bools:
        """Returns which of these units were seen a short time ago, in the current run or in a
        neighbouring run, (n,).

        alone : True if no job of another plan reads the same files. Units of the previous run are
            then recognised only at the beginning of the current run. Otherwise, hardly any evidence
            would remain after a short run: nearly all of its units lie near its end, so nearly
            every unit of the current run would be recognised
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
        """The units of the last observations, (n,): of as many observations as are needed for
        SEARCHED units, or of all observations if they have fewer units in total."""
        found: list[Units] = [NO_UNITS]
        for verdict in reversed(self._verdicts):
            found.append(verdict.units)
            if sum(map(len, found)) >= SEARCHED:
                break
        return np.concatenate(found)

    @property
    def judged(self) -> int:
        """The number of accesses that `judge` has counted since the start."""
        return self.fits + self.misfits

    @property
    def unexplained(self) -> int:
        """How many of the last `weighed` accesses did not fit."""
        return sum(len(v.misfits) for v in self._verdicts)

    @property
    def is_lost(self) -> bool:
        """Whether the last accesses fit hardly better than accesses in random order. If so, the
        node is elsewhere in its plan, or does not follow the plan. The result is False if accesses
        in random order would mostly fit too, because nothing can be concluded then."""
        return any(last.explained <= LOST for last in self._evidence(JUDGED))

    @property
    def is_found(self) -> bool:
        """Whether a node follows the plan again after its position was lost. Also True if there is
        no evidence."""
        return all(last.explained >= FOUND_AGAIN for last in self._evidence(JUDGED))

    @property
    def is_certain(self) -> bool:
        """Whether the last accesses show that the position is right. Unlike `is_found`, False if
        there is no evidence."""
        return bool(self._evidence(JUDGED)) and self.is_found

    @property
    def is_wrong(self) -> bool:
        """Whether the plan is wrong: over a long time, hardly more accesses fitted the plan than if
        they had been random. False if too few accesses are known."""
        return any(last.is_chance for last in self._evidence(self._least))

    def _evidence(self, accesses: int) -> list[Evidence]:
        """Returns how well the last accesses fit. Examines the newest observations that together
        contain at least `accesses` accesses. Returns an empty list if fewer accesses are known.

        The first item of the list is for all units, and the second item is only for units in the
        node's previous, current or next run. An item from which nothing can be concluded is
        omitted.
        """
        if self.weighed < accesses:
            return []
        last, known = [], 0
        for verdict in reversed(self._verdicts):
            last.append(verdict)
            known += len(verdict.units)
            if known >= accesses:
                break
        fits = known - sum(len(v.misfits) for v in last)
        every = Evidence.of(fits, [(len(v.units), v.chance) for v in last])
        own = Evidence.of(fits, [(v.own, v.own_chance) for v in last])
        return [e for e in (every, own) if e.says_something and e.accesses >= accesses // 2]

    # --- upcoming accesses ----------------------------------------------------------------------

    def due(self, most: int) -> npt.NDArray[np.intp]:
        """Returns the first places of the current run whose units were not accessed yet, (n,), in
        ascending order. Places more than two windows before the front are omitted.

        most : the largest number of places to return
        """
        now = self._now
        low = max(0, now.front - 2 * now.run.window)
        return low + np.flatnonzero(~now.seen[low:])[:most]

    def upcoming(self, most: int) -> Units:
        """Returns the units that are needed next, (n,), in the order of the plan.

        most : the largest number of units to return
        """
        ahead = self._now.run.units[self.due(most)]
        if len(ahead) < most and self.following is not None:
            rest = self.following.units
            if self._next is not None:
                rest = rest[~self._next.seen]
            ahead = np.concatenate([ahead, rest[: most - len(ahead)]])
        return ahead

    def foresee(self) -> Callable[[], Distances]:
        """Returns a function that computes how soon each unit is used. The function has a copy of
        the estimator's present state, so another thread may call the function later.

        The function returns two arrays (units,): the number of accesses until the next use of each
        unit, and the number of accesses until the use after that. Only uses in the rest of the
        current run and in the next run are considered. If there is no such use, the element is
        NOT_SOON."""
        now = self._now
        low = max(0, now.front - 2 * now.run.window)
        following = self._next.seen.copy() if self._next is not None else None
        return partial(_distances, now.run, now.seen.copy(), low, self.following, following)


def _mixed(now: int, begun: int) -> list[bool]:
    """Returns, for each of the last RECENT accesses of an observation, whether it belonged to the
    next run. The order of the accesses in an observation is unknown. So the last accesses are
    assumed to be divided between the two runs in the same proportion as the whole observation.

    now : number of accesses in the observation that fitted the current run
    begun : number of accesses in the observation that fitted the next run
    """
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
