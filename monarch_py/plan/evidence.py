"""Determines whether observed accesses fit a plan better than random accesses would."""

import math
from dataclasses import dataclass

import numpy as np

from monarch_py.plan.samplers import NONE
from monarch_py.plan.timeline import Run, Units

# A plan is considered wrong if two conditions hold. First, `Evidence.explained` is at most WRONG.
# Second, random accesses would fit the plan nearly as often: the number of accesses that fit is at
# most DEVIATIONS standard deviations above the expected number for random accesses.
WRONG, DEVIATIONS = 0.4, 4
# Some random accesses fit a plan, too. If more than this share of random accesses would fit, a good
# fit of the observed accesses proves nothing.
MOST_BY_CHANCE = 0.7
# The daemon does not see every access. It assumes that at most UNSEEN accesses have happened for
# each access that it has seen.
UNSEEN = 1.5
# `locate` finds a node's position if two conditions hold. First, at least the share FOUND of the
# node's last SEARCHED accesses lies close together in the plan. Second, the probability that random
# accesses lie as close together is at most e ** -UNLIKELY. This limit is so low because `locate`
# tries many places, and is called for many runs. (A run lists the units that a node uses in one
# loop of an epoch, see Run in plan/timeline.py.)
FOUND, SEARCHED, UNLIKELY = 0.7, 32, 12.0


@dataclass(eq=False)
class Verdict:
    """How well the units of one observation fit the plan. (An observation lists the units that were
    opened since the previous observation. A run lists the units that a node uses in one loop of an
    epoch.)

    units : (n,), the observed units, except those that another plan explains
    misfits : (m,), those of the `units` that do not fit. When the next run becomes known,
        `PositionEstimator.expect` removes the units that fit the next run
    chance : the share that would fit if the units were random units of the plan
    own : how many of the units are in the node's previous, current or next run
    own_chance : the share that would fit if the units were random units of these runs
    """

    units: Units
    misfits: Units
    chance: float
    own: int
    own_chance: float


@dataclass(frozen=True)
class Evidence:
    """How well the last accesses fit the plan.

    accesses : the number of accesses
    fits : how many of them fit
    by_chance : how many of them would fit on average if their order were random
    variance : the variance of the number that would fit if their order were random
    """

    fits: int
    accesses: int
    by_chance: float
    variance: float

    @classmethod
    def of(cls, fits: int, chances: list[tuple[int, float]]) -> "Evidence":
        """Returns the combined evidence of several observations.

        fits : how many accesses of all observations fit
        chances : for each observation, the number of its accesses, and the share of them that would
            fit if their order were random
        """
        by_chance = sum(n * chance for n, chance in chances)
        variance = sum(n * chance * (1 - chance) for n, chance in chances)
        return cls(fits, sum(n for n, _ in chances), by_chance, variance)

    @property
    def says_something(self) -> bool:
        return self.by_chance <= MOST_BY_CHANCE * self.accesses

    @property
    def explained(self) -> float:
        """How far the number of fits exceeds chance: 0 if only as many accesses fit as would fit by
        chance, 1 if all accesses fit."""
        return (self.fits - self.by_chance) / (self.accesses - self.by_chance)

    @property
    def is_chance(self) -> bool:
        beyond = DEVIATIONS * math.sqrt(self.variance) / (self.accesses - self.by_chance)
        return self.explained <= min(beyond, WRONG)


def by_chance(runs: list[tuple[Run, float]]) -> tuple[float, float]:
    """Returns two numbers. The first is the share of accesses that would fit if they went to random
    units of the plan. The second is the share that would fit if they went to random units of the
    given runs.

    runs : the node's previous, current and next run, as far as they are known. Each run is in a
        pair with the share of accesses that would fit if they went to random units of this run
    """
    not_fitting = not_own = 1.0
    for run, chance in runs:
        share = len(run) / max(1, len(run.place))
        not_fitting *= 1 - chance * share
        not_own *= 1 - share
    fits = 1 - not_fitting
    return fits, fits / max(fits, 1 - not_own, 1e-9)


def locate(run: Run, evidence: Units) -> tuple[float, int]:
    """Finds the range of places in a run in which the node probably is. This range contains many of
    the units that the node opened last. Of several such ranges, the one is chosen that would be the
    least likely result of random accesses. The longest ranges that are compared have the run's
    window, plus UNSEEN places for each unit in `evidence`. The window is often too long, because it
    assumes many workers if the plan does not name their number. If the epochs are short, the window
    may even be the whole run. So shorter ranges are compared too.

    evidence : (n,) the units that the node opened last

    Returns a score, and the place at which the range begins. The score is the negative logarithm of
    the probability that random accesses lie as close together. It is 0 if the range contains less
    than the share FOUND of `evidence`, or if the score is below UNLIKELY.
    """
    places = np.sort(run.place[evidence])
    places = places[places != NONE]
    best, place = 0.0, int(places[0]) if len(places) else 0
    width, tried = run.window + UNSEEN * len(evidence), 0
    while len(places) >= FOUND * len(evidence) > 0 and width >= len(evidence):
        inside = np.searchsorted(places, places + width) - np.arange(len(places))
        at = int(inside.argmax())
        share = float(inside[at]) / len(evidence)
        # The probability that a random unit of the plan lies in a given range of `width` places.
        # The unit is drawn from all units of the plan, not only from those in `run`. The reason is
        # that a node with another seed or in another epoch also uses units that are not in `run`.
        by_chance = min(width, len(run)) / len(run.place)
        # Each halving of the length doubles the number of ranges that are tried. To allow for this,
        # each halving reduces the score as if chance were 4 times as likely. The shorter ranges
        # together then at most double the probability of a false result.
        score = len(evidence) * _divergence(share, by_chance) - tried * math.log(4)
        if share >= FOUND and score >= max(UNLIKELY, best):
            best, place = score, int(places[at])
        width, tried = width / 2, tried + 1
    return best, place


def _divergence(share: float, chance: float) -> float:
    """Returns the Kullback-Leibler divergence of two probabilities; 0 if `share` is not above
    `chance`. It is used in Chernoff's bound: if each of `n` draws succeeds with the probability
    `chance`, then the share of successes reaches `share` with a probability of at most
    e ** (-n x divergence)."""
    if chance >= share:
        return 0.0
    rest = (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return share * math.log(share / chance) + rest
