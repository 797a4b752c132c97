"""The figures of a plan: how much each node owns, and where the bytes of each epoch come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.plan.access import analyse, spread
from monarch_py.plan.binomial import distribution
from monarch_py.plan.holders import NOBODY, Holders
from monarch_py.plan.plan import Plan
from monarch_py.plan.timeline import Section, Timeline

__all__ = ["EpochBytes", "Figures", "figures_of", "held_by", "read_bytes"]

Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EpochBytes:
    """What all nodes together read in an epoch [bytes]: from their own copies, from copies of other
    nodes, and from the source."""

    local: int = 0
    remote: int = 0
    source: int = 0

    def __add__(self, other: EpochBytes) -> EpochBytes:
        return EpochBytes(
            self.local + other.local, self.remote + other.remote, self.source + other.source
        )


@dataclass(frozen=True, eq=False)
class Figures:
    """The figures of a plan, as seen by one node.

    frequency : (most + 1,) int64, how many units the node accesses 0, 1, ... times
    expected : the same by the binomial distribution, (epochs + 1,) float64 (NoPFS, 3.1), if each
        unit is a file of one sample; else None
    spread : of the frequencies, see access.spread
    owned_units, owned_bytes : (nodes,) int64, what each node holds
    epochs : the bytes that each epoch reads, by where they come from
    """

    node: int
    frequency: npt.NDArray[np.int64]
    expected: npt.NDArray[np.float64] | None
    spread: float
    owned_units: npt.NDArray[np.int64]
    owned_bytes: npt.NDArray[np.int64]
    epochs: list[EpochBytes]

    def as_dict(self) -> dict[str, Any]:
        """The figures in JSON's types."""
        return {
            "node": self.node,
            "frequency": self.frequency.tolist(),
            "expected": None if self.expected is None else self.expected.tolist(),
            "spread": self.spread,
            "owned_units": self.owned_units.tolist(),
            "owned_bytes": self.owned_bytes.tolist(),
            "epochs": [
                {"local": each.local, "remote": each.remote, "source": each.source}
                for each in self.epochs
            ],
        }


def held_by(holders: Holders, sizes: Sizes, nodes: int, quota: int | None) -> npt.NDArray[np.int32]:
    """The node that holds each unit, (units,) int32, if each node takes the units of which it is
    the holder, the most used ones first, until one does not fit into `quota` [bytes]; NOBODY for
    the rest.

    This is an estimate, not a placement: another node may have room for what does not fit.
    """
    holder: npt.NDArray[np.int32] = holders.holder.copy()
    if quota is None:
        return holder
    order = np.lexsort((-holders.counts[:, 0].astype(np.int64), holder))
    sums = np.cumsum(sizes[order])
    first = np.searchsorted(holder[order], np.arange(nodes))
    before = np.concatenate([[0], sums])[first]
    used = sums - before[holder[order].clip(min=0)]
    holder[order[used > quota]] = NOBODY
    return holder


def read_bytes(timeline: Timeline, held: npt.NDArray[np.int32], sizes: Sizes) -> list[EpochBytes]:
    """What each epoch reads. The source is read once for a unit that a node holds, in the first
    epoch that uses it, and each time for a unit that nobody holds."""
    found = [EpochBytes() for _ in range(timeline.epochs)]
    seen = np.zeros(timeline.units, dtype=bool)
    for section in timeline.sections():
        found[section.epoch] += _read_in(section, held, sizes, seen)
    return found


def _read_in(
    section: Section, held: npt.NDArray[np.int32], sizes: Sizes, seen: npt.NDArray[np.bool_]
) -> EpochBytes:
    rows = section.rows
    node = np.arange(rows.shape[1], dtype=np.int32) // section.ranks_per_node
    owner = np.where(rows >= 0, held[rows], np.int32(NOBODY))
    weight = np.where(rows >= 0, sizes[rows], 0)
    first = np.zeros(rows.size, dtype=bool)
    flat = rows.reshape(-1)
    fresh = np.flatnonzero((flat >= 0) & ~seen[flat])
    # The first access of a unit that was never read before goes to the source.
    _, at = np.unique(flat[fresh], return_index=True)
    first[fresh[at]] = True
    seen[flat[fresh]] = True
    from_source = first.reshape(rows.shape) | (owner == NOBODY)
    is_local = ~from_source & (owner == node)
    source, local = int(weight[from_source].sum()), int(weight[is_local].sum())
    return EpochBytes(local, int(weight.sum()) - source - local, source)


def figures_of(plan: Plan, node: int = 0, quota: int | None = None) -> Figures:
    """The figures of a plan, with the holders computed if the plan has none.

    quota : what each node can hold [bytes]; None = everything
    """
    plan = plan.with_holders()
    assert plan.holders is not None
    timeline, sizes = plan.timeline(), plan.unit_bytes()
    frequency = analyse(timeline, node).frequency
    held = held_by(plan.holders, sizes, plan.nodes, quota)
    taken = held >= 0
    single = len(timeline.parts) == 1 and timeline.parts[0].lookup is None
    return Figures(
        node=node,
        frequency=np.bincount(frequency),
        expected=timeline.units * distribution(plan.epochs, plan.nodes) if single else None,
        spread=spread(frequency),
        owned_units=np.bincount(held[taken], minlength=plan.nodes),
        owned_bytes=np.bincount(held[taken], sizes[taken], plan.nodes).astype(np.int64),
        epochs=read_bytes(timeline, held, sizes),
    )
