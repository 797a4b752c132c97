"""Finds the holder of each unit: the node that uses the unit most.

A unit is a sample, a file or a part of a file. The accesses of all nodes to all units do not fit
into memory, so the units are processed in passes. A pass handles only some units: as many as fit
into memory together with all accesses to these units. To collect the accesses, each pass computes
the orders of all epochs again. No access is left out, so the result is exact.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import Int32s, Uints, pointer
from monarch_py.errors import MonarchError
from monarch_py.native import lib
from monarch_py.plan.access import add_uses, counters, in_pieces
from monarch_py.plan.timeline import Timeline

# The value of the last elements in a unit's row of Holders.nodes, if fewer nodes access the unit
# than the row has elements.
NOBODY = -1

# How much memory the accesses of one pass take, for each unit of the dataset [bytes]. The accesses,
# the orders of two epochs and the results together take less than 64 bytes per unit.
SLOT_BYTES = 32


@dataclass(frozen=True, eq=False)
class Holders:
    """The nodes that should hold each unit.

    nodes : (units, top) int32, the nodes that access each unit most, in descending order of
        `counts`. Of nodes with equal counts, the node with the earlier first use comes first. A row
        is padded with NOBODY
    counts : (units, top) uint32, how often each of these nodes accesses the unit
    """

    nodes: Int32s
    counts: npt.NDArray[np.uint32]


def find_holders(timeline: Timeline, top: int = 1, slot_bytes: int = SLOT_BYTES) -> Holders:
    """Returns the `top` nodes that access each unit most.

    slot_bytes : how much memory the accesses of one pass may take, for each unit of the dataset
        [bytes]. The search needs about (accesses per unit x 2 / slot_bytes) passes. Each pass takes
        about as long as computing the orders of all epochs
    """
    nodes = np.empty((timeline.units, top), dtype=np.int32)
    counts = np.empty((timeline.units, top), dtype=np.uint32)
    # Scratch memory of monarch_plan_rank, which all passes share.
    scratch = np.zeros(timeline.nodes, dtype=np.uint32)
    totals = _totals(timeline)
    for low, high in _passes(totals, slot_bytes * timeline.units // 2):
        ends = np.cumsum(totals[low:high], dtype=np.uint64)
        slots = np.empty(int(ends[-1]), dtype=np.uint16)
        _collect(timeline, low, ends - totals[low:high], slots)
        lib.monarch_plan_rank(
            pointer(slots),
            pointer(ends),
            high - low,
            top,
            pointer(scratch),
            pointer(nodes[low:high].reshape(-1)),
            pointer(counts[low:high].reshape(-1)),
        )
    return Holders(nodes, counts)


def _totals(timeline: Timeline) -> npt.NDArray[np.uint32]:
    """Returns how often all nodes together access each unit, (units,)."""
    totals = counters(timeline.units)
    for section in timeline.sections():
        for rows in in_pieces(section.rows):
            add_uses(rows, totals)
    return totals


def _passes(totals: npt.NDArray[np.uint32], room: int) -> Iterator[tuple[int, int]]:
    """Yields a range [low, high) of units for each pass. The number of accesses to all units of a
    range is at most `room`, unless the range is a single unit."""
    sums = np.cumsum(totals, dtype=np.uint64)
    edges, low = [0], 0
    while low < len(totals):
        done = int(sums[low - 1]) if low else 0
        low = max(low + 1, int(np.searchsorted(sums, np.uint64(done + room), side="right")))
        edges.append(low)
    del sums  # Free the memory of `sums`, 8 bytes per unit, because the passes need it.
    yield from pairwise(edges)


def _collect(timeline: Timeline, low: int, cursors: Uints, slots: npt.NDArray[np.uint16]) -> None:
    for section in timeline.sections():
        for rows in in_pieces(section.rows):
            status = lib.monarch_plan_collect(
                pointer(rows),
                len(rows),
                rows.shape[1],
                timeline.ranks_per_node,
                low,
                len(cursors),
                pointer(cursors),
                pointer(slots),
                len(slots),
            )
            if status != 0:
                raise MonarchError(
                    "a sampler gave two different orders for the same epoch; correct the sampler"
                )
