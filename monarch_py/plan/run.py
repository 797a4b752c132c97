"""A run: the units that a node uses in one section of its plan, and where accesses lie in it."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.plan.samplers import NONE
from monarch_py.plan.timeline import Section

# USUAL_AHEAD: batches that a DataLoader's workers usually have in flight, if the plan does not say
# (eight workers with four each). SLACK: the window is this many times larger, since some accesses
# are never seen, but that makes it at most 1 / AMPLE_SHARE of a run, or any order would fit.
USUAL_AHEAD, SLACK, AMPLE_SHARE = 32, 2, 4
# Number of last fitting accesses that are kept; a quarter of them lies before the front.
RECENT = 32
# Planned accesses that may have been made for each one that was seen.
UNSEEN = 1.5
# A place in the plan is found if the share FOUND of the last SEARCHED accesses lies together there,
# and the probability of that by chance is at most e ** -UNLIKELY. The bound is that low because
# many places in many runs are tried.
FOUND, SEARCHED, UNLIKELY = 0.7, 32, 12.0

Units = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Run:
    """The units that one node uses in one section of its plan, in the order of their first use.
    Later uses are left out, because a program that has a file open reads it again unseen.

    units : (n,) int32, in this order
    place : (units of the plan,) int32, the place of each unit in `units`; NONE if it is not there
    starts : (n,) int64, the position of each in the plan's timeline
    window : by how many places a unit may come early
    """

    epoch: int
    units: Units
    place: Units
    starts: npt.NDArray[np.int64]
    window: int

    @classmethod
    def of(cls, section: Section, node: int, units: int) -> "Run":
        """The run of a node in a section. units : of the plan"""
        own = section.node(node)
        at = np.flatnonzero(own != NONE)
        # Assign backwards, so that the first of several uses remains.
        first = np.full(units, -1, dtype=np.int32)
        first[own[at[::-1]]] = at[::-1]
        at = at[first[own[at]] == at]
        order = own[at]
        place = np.full(units, NONE, dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        # By how many steps accesses may be out of order: W workers that each prepare P batches have
        # W P batches in flight, and the training waits for one more.
        loader = section.part.loader
        steps = (loader.ahead if loader.workers else USUAL_AHEAD) + 1
        # Convert steps to places, which are fewer, since each unit has only one place.
        ends = np.searchsorted(at, at + steps * section.per_step)
        least = int((ends - np.arange(len(at))).max(initial=1))
        # The front lags behind by almost as many accesses as it is computed from.
        ample = max(SLACK * least, 2 * RECENT)
        window = max(least, min(ample, len(order) // AMPLE_SHARE))
        return cls(section.epoch, order, place, section.start + at, window)

    def __len__(self) -> int:
        return len(self.units)


def locate(run: Run, evidence: Units) -> tuple[float, int]:
    """Looks for the part of this run to which the evidence points. evidence : (n,) units that were
    opened one after the other.

    Returns the share of the evidence that lies together in the run, and the place where that
    begins. The share is 0 if it may be due to chance.
    """
    places = np.sort(run.place[evidence])
    places = places[places != NONE]
    if not len(places):
        return 0.0, 0
    width = run.window + UNSEEN * len(evidence)
    inside = np.searchsorted(places, places + width) - np.arange(len(places))
    best = int(inside.argmax())
    share = float(inside[best]) / len(evidence)
    # The chance is that of arbitrary units, since with another seed or epoch a node uses others.
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
