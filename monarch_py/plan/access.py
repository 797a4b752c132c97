"""Statistics of a timeline: how often a node accesses each unit, when it first accesses the unit,
and, for each access, when it accesses the same unit again.

A timeline is the sequence of all accesses of a training run. A unit is a sample, a file or a part
of a file. Epochs are processed one after the other, so the required memory depends on the number of
units, not on the number of epochs. The loops over accesses are in C (csrc/plan/access.c).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import pointer
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.native import lib
from monarch_py.plan.samplers import Order
from monarch_py.plan.timeline import Section, Timeline

# Used as the position of a unit's first or next use if there is no such use. It is larger than
# every real position, and equals MONARCH_PLAN_NEVER in C.
NEVER = int(np.iinfo(np.int64).max)

# `in_pieces` copies at most this many rows into contiguous memory at a time.
ROWS = 1 << 14

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NodeAccess:
    """How one node accesses every unit.

    frequency : (units,) uint32, how often the node accesses each unit in all epochs, as in section
        3.1 of the NoPFS paper
    first_use : (units,) int64, the position of the first access to each unit; NEVER if the node
        does not access the unit
    """

    frequency: npt.NDArray[np.uint32]
    first_use: Positions


def add_uses(accesses: Order, frequency: npt.NDArray[np.uint32]) -> None:
    """Counts accesses: for each access, adds 1 to its unit's element of `frequency`, (units,).
    Raises MonarchError if an access is neither a unit nor NONE.

    accesses : a contiguous array of units, NONE where there is no access
    """
    taken = pointer(accesses.reshape(-1))
    check(lib.monarch_plan_count(taken, accesses.size, pointer(frequency), len(frequency)))


def add_first_uses(accesses: Order, start: int, first: Positions) -> None:
    """Finds the first access to each unit in `accesses`, and writes its position into the unit's
    element of `first`, (units,). Changes only elements that are still NEVER. Raises MonarchError if
    an access is neither a unit nor NONE.

    accesses : a contiguous array of units, NONE where there is no access. Element i has the
        position `start` + i
    """
    taken = pointer(accesses.reshape(-1))
    check(lib.monarch_plan_first(taken, accesses.size, start, pointer(first), len(first)))


def analyse(timeline: Timeline, node: int, epoch: int = 0, batch: int = 0) -> NodeAccess:
    """Returns how often a node (all its ranks together) accesses each unit, and the position of its
    first access to each unit. Ignores all accesses before batch `batch` of epoch `epoch`. Raises
    ConfigError if there is no such node, epoch or batch."""
    _check_node(timeline, node)
    frequency = counters(timeline.units)
    first = np.full(timeline.units, NEVER, dtype=np.int64)
    for section in timeline.sections(epoch, batch):
        own = section.node(node)
        add_uses(own, frequency)
        add_first_uses(own, section.start, first)
    return NodeAccess(frequency, first)


def all_frequencies(timeline: Timeline) -> npt.NDArray[np.uint16]:
    """Returns how often each node accesses each unit, (nodes, units) uint16. The array fits into
    memory only for few nodes or few units. Raises ConfigError if a node accesses a unit more than
    65,535 times."""
    counts = np.full((timeline.nodes, timeline.units), 0, dtype=np.uint16)
    out = pointer(counts.reshape(-1))
    for section in timeline.sections():
        for rows in in_pieces(section.rows):
            shape = (len(rows), rows.shape[1], timeline.ranks_per_node)
            status = lib.monarch_plan_count_nodes(pointer(rows), *shape, out, timeline.units)
            check(status)
    return counts


def next_uses(timeline: Timeline, node: int) -> Iterator[tuple[Section, Positions]]:
    """Finds, for every access of a node, the position of the node's next access to the same unit.

    Yields a pair (section, positions) for each section of the timeline, the last section first.
    `positions` is int64, with one element for each access of the node in the section. An element is
    NEVER if the unit is not accessed again, or if the section has NONE (no access) at its
    place. Raises ConfigError if there is no such node.
    """
    _check_node(timeline, node)
    later = np.full(timeline.units, NEVER, dtype=np.int64)
    for section in timeline.sections_backwards():
        own = section.node(node)
        following = np.empty(len(own), dtype=np.int64)
        status = lib.monarch_plan_next(
            pointer(own),
            len(own),
            section.start,
            pointer(later),
            timeline.units,
            pointer(following),
        )
        check(status)
        yield section, following


def spread(frequency: npt.NDArray[np.uint32]) -> float:
    """Returns the coefficient of variation of the frequencies: their standard deviation divided by
    their mean; 0 if there are no accesses.

    A coefficient near 0 means that all units are accessed about equally often, for example because
    each file contains many samples. A policy that exploits differences between units then gains
    nothing.
    """
    mean = float(frequency.mean()) if len(frequency) else 0.0
    return float(frequency.std()) / mean if mean else 0.0


def counters(n: int) -> npt.NDArray[np.uint32]:
    """Returns an array of zeros, (n,) uint32, in huge pages of memory if possible. (np.zeros does
    not request huge pages, and random access to an array in small pages takes twice as long.)"""
    return np.full(n, 0, dtype=np.uint32)


def in_pieces(rows: Order) -> Iterator[Order]:
    """Yields the rows in contiguous arrays: all rows at once if they are contiguous, otherwise
    copies of ROWS rows at a time."""
    if rows.flags.c_contiguous:
        yield rows
        return
    for low in range(0, len(rows), ROWS):
        yield np.ascontiguousarray(rows[low : low + ROWS])


def check(status: int) -> None:
    """Raises an error if `status`, which a function of csrc/plan/access.c returned, is not 0."""
    if status == -1:
        raise MonarchError(
            "a sample belongs to no unit of the plan; build the dataset's index again"
        )
    if status == -2:
        raise ConfigError(
            "epochs: one node accesses a unit more than 65,535 times, which is the most that can be"
            " counted; plan fewer epochs"
        )


def _check_node(timeline: Timeline, node: int) -> None:
    if not 0 <= node < timeline.nodes:
        raise ConfigError(
            f"node: there is no node {node}; the plan has nodes 0 to {timeline.nodes - 1}"
        )
