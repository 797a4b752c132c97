"""The figures of a plan: how much each node owns, and where the bytes of each epoch come from."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import Bools, Floats, Int32s, Ints
from monarch_py.plan.access import all_frequencies, analyse, spread
from monarch_py.plan.binomial import distribution
from monarch_py.plan.plan import Plan
from monarch_py.plan.timeline import Section, Timeline
from monarch_py.policies.nopfs.placement import is_placeable, place
from monarch_py.policies.rendezvous import file_keys, owners
from monarch_py.policies.view import PFS

Sizes = npt.NDArray[np.int64]


# The places from which nodes read: their own copies, the copies of other nodes, and the source.
PLACES = ("local", "remote", "source")


@dataclass(frozen=True, eq=False)
class Figures:
    """The figures of a plan. A unit is a sample, a file or a block of a file, as in Timeline.

    node : the node that `frequency`, `expected` and `spread` describe
    frequency : int64; frequency[n] is the number of units that the node accesses n times. The last
        index is the largest number of times that the node accesses one unit
    expected : (epochs + 1,) float64, the values of `frequency` that the binomial distribution
        predicts (NoPFS, section 3.1). None if the plan has several parts, or if a unit can contain
        several samples, because the prediction is wrong then
    spread : the coefficient of variation of the node's access counts (access.spread)
    owned_units, owned_bytes : (nodes,) int64, how many units and bytes each node owns. The owner of
        a unit reads it from the source for all nodes
    epochs : (epochs, 3) int64, how many bytes all nodes together read from each of PLACES in each
        epoch
    """

    node: int
    frequency: Ints
    expected: Floats | None
    spread: float
    owned_units: Ints
    owned_bytes: Ints
    epochs: Sizes

    def as_dict(self) -> dict[str, Any]:
        """The figures in JSON's types."""
        found = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }
        epochs = [dict(zip(PLACES, row, strict=True)) for row in self.epochs.tolist()]
        return {**found, "epochs": epochs}


def owners_of(timeline: Timeline, sizes: Sizes, quota: int | None) -> Int32s:
    """Returns, for each unit, the node that owns it, (units,); PFS if no node owns it.

    The daemons choose the same owners. The choice depends on how often each node accesses a unit.
    If the table of these access counts would be too large, a hash of the unit decides instead. If
    the loader of a part of the plan lists the nodes that hold each unit (`holders`), neither
    decides: the first of the listed nodes is the owner.

    sizes : (units,) the sizes of the units [bytes]
    quota : how many bytes of copies each node has room for; None for no limit
    """
    room = int(sizes.sum()) if quota is None else quota
    quotas = np.full(timeline.nodes, room, dtype=np.int64)
    if is_placeable(timeline.nodes, timeline.units):
        owner = place(list(all_frequencies(timeline)), sizes, quotas).owner
    else:
        owner = owners(file_keys(timeline.units), sizes, quotas)
    for units, nodes in timeline.holders():
        owner[units] = nodes[:, 0]
    return owner


def read_bytes(timeline: Timeline, owner: Int32s, sizes: Sizes) -> Sizes:
    """Returns how many bytes all nodes together read from each of PLACES in each epoch,
    (epochs, 3). A unit that has an owner is read from the source only at its first access. A unit
    without an owner is read from the source at every access."""
    found = np.zeros((timeline.epochs, len(PLACES)), dtype=np.int64)
    seen = np.zeros(timeline.units, dtype=bool)
    for section in timeline.sections():
        found[section.epoch] += _read_in(section, owner, sizes, seen)
    return found


def _read_in(section: Section, owner: Int32s, sizes: Sizes, seen: Bools) -> list[int]:
    rows = section.rows
    node = np.arange(rows.shape[1], dtype=np.int32) // section.ranks_per_node
    owner_of = np.where(rows >= 0, owner[rows], np.int32(PFS))
    weight = np.where(rows >= 0, sizes[rows], 0)
    first = np.zeros(rows.size, dtype=bool)
    flat = rows.reshape(-1)
    fresh = np.flatnonzero((flat >= 0) & ~seen[flat])
    # At its first access, each unit is read from the source.
    _, at = np.unique(flat[fresh], return_index=True)
    first[fresh[at]] = True
    seen[flat[fresh]] = True
    from_source = first.reshape(rows.shape) | (owner_of == PFS)
    is_local = ~from_source & (owner_of == node)
    source, local = int(weight[from_source].sum()), int(weight[is_local].sum())
    return [local, int(weight.sum()) - source - local, source]


def figures_of(plan: Plan, node: int = 0, quota: int | None = None) -> Figures:
    """Computes the figures of a plan.

    quota : how many bytes of copies each node has room for; None for no limit
    """
    timeline, sizes = plan.timeline(), plan.unit_bytes()
    frequency = analyse(timeline, node).frequency
    owner = owners_of(timeline, sizes, quota)
    owned = owner >= 0
    single = len(timeline.parts) == 1 and timeline.parts[0].lookup is None
    return Figures(
        node=node,
        frequency=np.bincount(frequency),
        expected=timeline.units * distribution(plan.epochs, plan.nodes) if single else None,
        spread=spread(frequency),
        owned_units=np.bincount(owner[owned], minlength=plan.nodes),
        owned_bytes=np.bincount(owner[owned], sizes[owned], plan.nodes).astype(np.int64),
        epochs=read_bytes(timeline, owner, sizes),
    )
