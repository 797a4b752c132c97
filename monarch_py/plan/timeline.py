"""The timeline of training: all accesses, epoch by epoch, in the order in which they happen.

A section of the timeline is one loop over a dataset in one epoch. A `Run` lists the units that one
node uses in one section.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from monarch_py.arrays import Int32s, Ints
from monarch_py.errors import ConfigError
from monarch_py.plan.index import DatasetUnits
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import NONE, GroupShuffle, Order

# The largest number of nodes. Arrays of all nodes' accesses store the number of a node in 2 bytes.
MAX_NODES = 1 << 16
# The largest number of epochs. `Timeline.layout` takes about 140 bytes and 1 microsecond per epoch.
MAX_EPOCHS = 1_000_000
# The window of a run says how far an access may come before its turn.
# SLACK: the factor by which the window is enlarged, because some accesses are never seen.
# AMPLE_SHARE: the enlarged window is at most 1 / AMPLE_SHARE of the run, because in a larger window
# accesses would fit the plan in any order.
SLACK, AMPLE_SHARE = 2, 4
# A GroupLoader reads this many groups ahead, one into each of its buffers.
AHEAD_GROUPS = 2
# plan/position.py estimates a node's position (the front) from the places (`Run.place`) of the last
# RECENT accesses that fitted the plan. A quarter of these places lies before the front.
RECENT = 32

Units = Int32s


@dataclass(frozen=True, eq=False)
class Part:
    """One loop over a dataset, for example the training loop or the validation loop.

    every : n if the loop runs in every n-th epoch
    lookup : (samples + 1,) int32, the unit in which each sample lies; the last element is NONE. The
        field is None if every sample is a unit of its own
    """

    name: str
    loader: Loader
    every: int = 1
    lookup: Int32s | None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"every: {self.every} is out of range; write 1 or more")
        if self.lookup is not None and len(self.lookup) != self.loader.sampler.length + 1:
            raise ConfigError(
                f"dataset: the dataset of {self.name!r} has {len(self.lookup) - 1} samples, but the"
                f" sampler of {self.name!r} has {self.loader.sampler.length}; correct 'length', or"
                " name another dataset"
            )

    def runs(self, epoch: int) -> bool:
        """Whether the part runs in this epoch, counted from 0."""
        return (epoch + 1) % self.every == 0

    def number(self, epoch: int) -> int:
        """Returns the epoch number that the part's sampler uses for an epoch of the training run.
        If the sampler counts all epochs (Sampler.by_epoch), the two numbers are the same. Otherwise
        the sampler counts only the epochs in which its part runs."""
        return epoch if self.loader.sampler.by_epoch else (epoch + 1) // self.every - 1

    def units(self, rows: Order) -> Order:
        """Converts samples to units; NONE stays NONE."""
        return rows if self.lookup is None else self.lookup[rows]


@dataclass(frozen=True, eq=False)
class Section:
    """The accesses of all ranks while one part runs in one epoch.

    start : position of the section's first access, the same on every node
    rows : (per_rank, world_size) int32, units; row i contains the i-th access of every rank, or
        NONE for a rank without an i-th access
    """

    epoch: int
    part: Part
    start: int
    ranks_per_node: int
    rows: Order

    def node(self, node: int) -> Order:
        """Returns the units that one node accesses, (per_rank x ranks_per_node,) int32. The node's
        ranks alternate, and element i has the position `start` + i."""
        low = node * self.ranks_per_node
        return np.ascontiguousarray(self.rows[:, low : low + self.ranks_per_node]).reshape(-1)

    def entered(self, position: int) -> "Section":
        """Returns the rest of the section from this position on."""
        row = (position - self.start) // self.ranks_per_node
        return replace(self, start=position, rows=self.rows[row:])

    @property
    def per_step(self) -> int:
        """How many accesses a node makes in one step, including those that are NONE."""
        return self.part.loader.rows_per_step * self.ranks_per_node


@dataclass(frozen=True, eq=False)
class Run:
    """The units that one node uses in one section of its plan, in the order of their first use.

    Later uses are left out, because the daemon does not notice when a program reads an open file
    again.

    units : (n,) int32, in the order of their first use
    place : (units of the plan,) int32, the index of each unit in `units`; NONE for a unit that is
        not in `units`
    starts : (n,) int64, the position of each first use in the plan's timeline
    window : the largest number of elements of `units` by which an access may come before its turn
    """

    epoch: int
    units: Units
    place: Units
    starts: Ints
    window: int

    @classmethod
    def of(cls, section: Section, node: int, units: int) -> "Run":
        """Returns the units that a node uses in a section, as a Run.

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
        # `steps` is the number of steps by which an access may come early: one for each batch that
        # the workers have in flight (`ahead`), and one for the batch that the training waits for.
        loader = section.part.loader
        steps = loader.ahead + 1
        # `early` is a number of accesses. The code below converts it to a number of indices in
        # `order`. That number may be smaller, because a unit that is used several times occurs only
        # once in `order`.
        early = steps * section.per_step
        if isinstance(loader.sampler, GroupShuffle):
            # A GroupLoader reads AHEAD_GROUPS groups ahead. It reads the samples of a group in
            # ascending order. So the access that the plan lists last in a group may come first.
            early = max(early, AHEAD_GROUPS * loader.sampler.group * section.ranks_per_node)
        ends = np.searchsorted(at, at + min(early, len(own)))
        least = int((ends - np.arange(len(at))).max(initial=1))
        # The window is at least 2 * RECENT places if the run is long enough for that, because the
        # estimate of the node's position (plan/position.py) lags behind by almost RECENT accesses.
        ample = max(SLACK * least, 2 * RECENT)
        window = max(least, min(ample, len(order) // AMPLE_SHARE))
        return cls(section.epoch, order, place, section.start + at, window)

    def __len__(self) -> int:
        return len(self.units)


@dataclass(frozen=True, eq=False)
class Timeline:
    """The accesses of every rank in all epochs. The constructor raises ConfigError if the parts do
    not fit the numbers of nodes, ranks and units.

    A unit is a sample, a file or a block of a file. All accesses of a node are numbered from the
    first section to the last. This number is the access's position. A NONE that stands for a
    missing access has a position too. Consecutive positions belong to the node's ranks in turn. A
    section has the same positions on every node.

    parts : the loops, in the order in which they run in an epoch
    nodes : number of nodes; rank r is on node r // ranks_per_node;  units : number of units
    """

    parts: tuple[Part, ...]
    epochs: int
    nodes: int
    units: int
    ranks_per_node: int = field(init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.epochs <= MAX_EPOCHS:
            raise ConfigError(f"epochs: {self.epochs} is out of range; write 1 to {MAX_EPOCHS}")
        if not 1 <= self.nodes <= MAX_NODES:
            raise ConfigError(f"nodes: {self.nodes} is out of range; write 1 to {MAX_NODES}")
        if not self.parts:
            raise ConfigError("parts: the plan has no part; describe at least the training")
        world_size = self.parts[0].loader.world_size
        if any(part.loader.world_size != world_size for part in self.parts):
            raise ConfigError(
                "world_size: the parts have different numbers of ranks; use the same number for all"
            )
        if world_size % self.nodes:
            raise ConfigError(
                f"world_size: {world_size} ranks cannot be divided evenly among {self.nodes} nodes;"
                f" write a multiple of {self.nodes}"
            )
        object.__setattr__(self, "ranks_per_node", world_size // self.nodes)
        if all(part.every > self.epochs for part in self.parts):
            raise ConfigError(
                f"epochs: with {self.epochs}, no part would run, because each part's 'every' is"
                " larger; write more epochs"
            )
        for part in self.parts:
            if part.every > self.epochs:
                continue
            part.loader.sampler.check_epoch(part.number(self.epochs // part.every * part.every - 1))

    def holders(self) -> list[tuple[Int32s, Int32s]]:
        """Returns a pair of arrays for each part whose split depends on holders: the units of the
        part, (n,), and the nodes that hold each unit, (n, m), padded with NONE."""
        found = []
        for part in self.parts:
            if part.loader.holders is not None:
                samples = np.arange(len(part.loader.holders), dtype=np.int32)
                units, first = np.unique(part.units(samples), return_index=True)
                found.append((units, part.loader.holders[first]))
        return found

    @classmethod
    def of(cls, loader: Loader, epochs: int, nodes: int) -> "Timeline":
        """Returns the timeline of a training run that has only one loop. Each sample is a unit."""
        return cls((Part("training", loader),), epochs, nodes, loader.sampler.length)

    @classmethod
    def joined(
        cls,
        loops: Iterable[tuple[Part, int]],
        datasets: Sequence[DatasetUnits],
        epochs: int,
        nodes: int,
    ) -> "Timeline":
        """Returns the timeline of loops over several datasets. Units are numbered consecutively: a
        dataset's first unit follows the last unit of the previous dataset.

        loops : each loop, without a `lookup`, and the position of its dataset in `datasets`
        datasets : the units of each dataset
        """
        bases = np.cumsum([0, *map(len, datasets)])
        parts = []
        for part, number in loops:
            units, base = datasets[number], int(bases[number])
            lookup = units.lookup
            if base:
                each = np.arange(len(units), dtype=np.int32) if lookup is None else lookup[:-1]
                lookup = lookup_of(each, base)
            parts.append(replace(part, lookup=lookup))
        return cls(tuple(parts), epochs, nodes, int(bases[-1]))

    def layout(self) -> list[tuple[int, Part, int]]:
        """Returns the epoch, the part and the start of every section, from the first section to the
        last. Does not compute any order of samples."""
        found, start = [], 0
        for epoch in range(self.epochs):
            for part in self.parts:
                if part.runs(epoch):
                    found.append((epoch, part, start))
                    start += part.loader.per_rank * self.ranks_per_node
        return found

    def sections(self, epoch: int = 0, batch: int = 0) -> Iterator[Section]:
        """Yields the sections from `epoch` on. The first section begins with its batch `batch`.
        Keeps only one section at a time in memory. Raises ConfigError if there is no such epoch or
        batch."""
        self._check_epoch(epoch)
        entered = self.position(epoch, batch) if batch else 0
        orders = {id(part): self._orders(part, epoch) for part in self.parts}
        for number, part, start in self.layout():
            if number >= epoch:
                section = self._section(number, part, start, next(orders[id(part)]))
                yield section.entered(entered) if start < entered else section

    def sections_backwards(self) -> Iterator[Section]:
        """Yields all sections, the last one first."""
        orders = {id(part): self._orders_backwards(part) for part in self.parts}
        for number, part, start in reversed(self.layout()):
            yield self._section(number, part, start, next(orders[id(part)]))

    def section(self, epoch: int, part: str | None = None) -> Section:
        """Returns one section of an epoch. Raises ConfigError if there is no such section.

        part : the part's name; None for the first part that runs in the epoch
        """
        each, start = self._found(epoch, part)
        return self._section(epoch, each, start, each.loader.sampler.epoch(each.number(epoch)))

    def position(self, epoch: int, batch: int, part: str | None = None) -> int:
        """Returns the position of the first access in a batch. A training run that starts with this
        batch begins at this position. Raises ConfigError if there is no such batch."""
        each, start = self._found(epoch, part)
        if not 0 <= batch < each.loader.steps:
            raise ConfigError(
                f"batch: there is no batch {batch}; an epoch of {each.name!r} has batches 0 to"
                f" {each.loader.steps - 1}"
            )
        return start + batch * each.loader.rows_per_step * self.ranks_per_node

    def _found(self, epoch: int, part: str | None) -> tuple[Part, int]:
        """Returns the part with this name (None for the first part) that runs in the epoch, and the
        start of its section. Raises ConfigError if no such part runs in the epoch."""
        self._check_epoch(epoch)
        for number, each, start in self.layout():
            if number == epoch and part in (None, each.name):
                return each, start
        which = "no part runs" if part is None else f"no part {part!r} runs"
        raise ConfigError(f"epoch: {which} in epoch {epoch}; choose another one")

    def _check_epoch(self, epoch: int) -> None:
        if not 0 <= epoch < self.epochs:
            raise ConfigError(
                f"epoch: there is no epoch {epoch}; the plan has epochs 0 to {self.epochs - 1}"
            )

    def _section(self, epoch: int, part: Part, start: int, order: Order) -> Section:
        rows = part.units(part.loader.rows(order))
        return Section(epoch, part, start, self.ranks_per_node, rows)

    def _orders(self, part: Part, epoch: int) -> Iterator[Order]:
        numbers = [part.number(each) for each in range(epoch, self.epochs) if part.runs(each)]
        if not numbers:
            return iter(())
        if numbers == list(range(numbers[0], numbers[-1] + 1)):
            return part.loader.sampler.epochs(numbers[0])
        return (part.loader.sampler.epoch(number) for number in numbers)

    def _orders_backwards(self, part: Part) -> Iterator[Order]:
        numbers = [part.number(each) for each in range(self.epochs) if part.runs(each)]
        if numbers == list(range(len(numbers))):
            return part.loader.sampler.backwards(0, len(numbers))
        return (part.loader.sampler.epoch(number) for number in reversed(numbers))


def lookup_of(units: Int32s, base: int = 0) -> Int32s:
    """Returns the field `lookup` of a Part.

    units : (samples,), the unit of each sample;  base : a number that is added to each unit
    """
    return np.append(units + np.int32(base), np.int32(NONE)).astype(np.int32)
