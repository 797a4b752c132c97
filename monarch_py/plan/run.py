"""A run: the units that a node uses in one section of its plan, and the place of each unit."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import Ints
from monarch_py.plan.samplers import NONE, GroupShuffle
from monarch_py.plan.timeline import Section

# USUAL_AHEAD: how many batches a DataLoader's workers have in flight if the plan does not specify
# it (eight workers with four batches each).
# SLACK: the factor by which the window is enlarged, because some accesses are never seen.
# AMPLE_SHARE: the enlarged window is at most 1 / AMPLE_SHARE of the run, because accesses in any
# order would fit a larger window.
USUAL_AHEAD, SLACK, AMPLE_SHARE = 32, 2, 4
# Groups that a GroupLoader reads ahead: as many as it has buffers.
AHEAD_GROUPS = 2
# The places of this many of the last fitting accesses are kept. The front is set so that the lowest
# quarter of these places lies before it.
RECENT = 32
# How many planned accesses may have happened for each access that was seen.
UNSEEN = 1.5
# A node's position is found under two conditions. At least the share FOUND of the node's last
# SEARCHED accesses lies close together in the plan. Random accesses would lie so with a probability
# of at most e ** -UNLIKELY; this bound is so low because many places in many runs are tried.
FOUND, SEARCHED, UNLIKELY = 0.7, 32, 12.0

Units = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Run:
    """The units that one node uses in one section of its plan, in the order of their first use.

    Later uses are left out, because the daemon does not notice when a program reads an open file
    again.

    units : (n,) int32, in the order of their first use
    place : (units of the plan,) int32, the index of each unit in `units`; NONE if it is not there
    starts : (n,) int64, the position of each first use in the plan's timeline
    window : by how many places a unit may be accessed early
    """

    epoch: int
    units: Units
    place: Units
    starts: Ints
    window: int

    @classmethod
    def of(cls, section: Section, node: int, units: int) -> "Run":
        """Returns the run of a node in a section.

        units : number of units in the plan
        """
        own = section.node(node)
        at = np.flatnonzero(own != NONE)
        # Assign backwards, so that the first of a unit's uses overwrites the later ones.
        first = np.full(units, -1, dtype=np.int32)
        first[own[at[::-1]]] = at[::-1]
        at = at[first[own[at]] == at]
        order = own[at]
        place = np.full(units, NONE, dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        # How many steps early an access may be: W workers that each prepare P batches have W * P
        # batches in flight, and the training waits for one more batch.
        loader = section.part.loader
        steps = (loader.ahead if loader.workers else USUAL_AHEAD) + 1
        # Convert steps to places. There are fewer places than accesses, because a unit that is used
        # several times has only one place.
        early = steps * section.per_step
        if isinstance(loader.sampler, GroupShuffle):
            # A GroupLoader reads two groups ahead, each of them in ascending order.
            early = max(early, AHEAD_GROUPS * loader.sampler.group * section.ranks_per_node)
        ends = np.searchsorted(at, at + early)
        least = int((ends - np.arange(len(at))).max(initial=1))
        # At least 2 * RECENT, because the front lags behind by almost RECENT accesses.
        ample = max(SLACK * least, 2 * RECENT)
        window = max(least, min(ample, len(order) // AMPLE_SHARE))
        return cls(section.epoch, order, place, section.start + at, window)

    def __len__(self) -> int:
        return len(self.units)


def locate(run: Run, evidence: Units) -> tuple[float, int]:
    """Finds the part of the run that a node is probably in.

    evidence : (n,) the units that the node opened last

    Returns the share of the evidence that lies close together in the run, and the place where that
    part of the run begins. The share is 0 if it can be explained by chance.
    """
    places = np.sort(run.place[evidence])
    places = places[places != NONE]
    if not len(places):
        return 0.0, 0
    width = run.window + UNSEEN * len(evidence)
    inside = np.searchsorted(places, places + width) - np.arange(len(places))
    best = int(inside.argmax())
    share = float(inside[best]) / len(evidence)
    # The chance is that of random units of the plan, not of random units of this run: a node with
    # another seed, or in another epoch, uses units outside this run too.
    by_chance = min(width, len(run)) / len(run.place)
    is_it = share >= FOUND and len(evidence) * _divergence(share, by_chance) >= UNLIKELY
    return (share if is_it else 0.0), int(places[best])


def _divergence(share: float, chance: float) -> float:
    """The Kullback-Leibler divergence D of two probabilities. By Chernoff's bound, n draws that
    each succeed with this `chance` reach this `share` with a probability of at most e ** (-n D)."""
    if chance >= share:
        return 0.0
    rest = (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return share * math.log(share / chance) + rest
