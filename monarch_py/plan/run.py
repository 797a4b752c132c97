"""What a node does in one section of its plan, and where in it accesses lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.errors import ConfigError
from monarch_py.plan.samplers import NONE
from monarch_py.plan.timeline import Part, Section

__all__ = ["RECENT", "SEARCHED", "UNSEEN", "Run", "Units", "locate", "window_steps"]

# Batches that a DataLoader's workers may well have under way where the plan does not say: eight
# workers of four. And so many times what they have, since some accesses are never seen, but not
# more than this share of a run by that, or any order would fit.
USUAL_AHEAD, SLACK, AMPLE_SHARE = 32, 2, 4
# The last accesses that fitted; a quarter of them lies before the front.
RECENT = 32
# More of the plan's accesses may have been made than were seen, so many for each.
UNSEEN = 1.5
# A place in the plan is found where so much of the last accesses, so many of them, lies together,
# and that is as unlikely to be chance, e ** -UNLIKELY: many places in many runs are looked at.
FOUND, SEARCHED, UNLIKELY = 0.7, 32, 12.0

Units = npt.NDArray[np.int32]


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
            told = section.part.loader.workers > 0
            steps = window_steps(section.part) if told else USUAL_AHEAD + 1
            # In places: of files of many samples each comes once.
            ends = np.searchsorted(at, at + steps * section.per_step)
            least = int((ends - np.arange(len(at))).max(initial=1))
            # The front lags behind by almost as many as it is made from.
            ample = max(SLACK * least, 2 * RECENT)
            window = max(least, min(ample, len(order) // AMPLE_SHARE))
        return cls(section.epoch, order, place, section.start + at, window)

    def __len__(self) -> int:
        return len(self.units)


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
    # Of any units: another seed gives a node others, and so does another epoch.
    by_chance = min(width, len(run)) / len(run.place)
    is_it = share >= FOUND and len(evidence) * _divergence(share, by_chance) >= UNLIKELY
    return (share if is_it else 0.0), int(places[best])


def _divergence(share: float, chance: float) -> float:
    """Kullback and Leibler's, of two probabilities: n draws with this `chance` make this share of
    them, or more, with e ** (-n times it) at most (Chernoff's bound)."""
    if chance >= share:
        return 0.0
    rest = (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return share * math.log(share / chance) + rest
