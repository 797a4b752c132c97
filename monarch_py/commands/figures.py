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


# Where nodes read from: their own copies, copies of other nodes, the source.
PLACES = ("local", "remote", "source")


@dataclass(frozen=True, eq=False)
class Figures:
    """The figures of a plan, as seen by one node. A unit is a sample, a file or a block of a file,
    as in Timeline.

    frequency : (most + 1,) int64; frequency[n] is how many units the node accesses n times, and
        `most` is the largest such n
    expected : (epochs + 1,) float64, the `frequency` that the binomial distribution predicts
        (NoPFS, 3.1) if each unit is a file of one sample; else None
    spread : the spread of the node's frequencies (access.spread)
    owned_units, owned_bytes : (nodes,) int64, what each node owns
    epochs : (epochs, 3) int64, what all nodes together read in each epoch, by PLACES [bytes]
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
    """The node that owns each unit, (units,); PFS if no node owns it. The owners are chosen as the
    daemons choose them: by how often each node uses a unit. If these numbers would take too much
    memory, a hash of the unit decides instead. If a part of the plan gives samples to the nodes
    that hold them, each unit of that part belongs to the first of its holders.

    sizes : (units,) [bytes];  quota : what each node can hold [bytes]; None for everything
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
    """The bytes that all nodes read in each epoch, (epochs, 3), by PLACES. A unit that has an owner
    is read from the source once, at its first access; a unit without an owner at every access."""
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
    # The first access to a unit goes to the source.
    _, at = np.unique(flat[fresh], return_index=True)
    first[fresh[at]] = True
    seen[flat[fresh]] = True
    from_source = first.reshape(rows.shape) | (owner_of == PFS)
    is_local = ~from_source & (owner_of == node)
    source, local = int(weight[from_source].sum()), int(weight[is_local].sum())
    return [local, int(weight.sum()) - source - local, source]


def figures_of(plan: Plan, node: int = 0, quota: int | None = None) -> Figures:
    """The figures of a plan.

    quota : what each node can hold [bytes]; None for everything
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
