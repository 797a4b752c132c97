"""The schedule of an epoch: which rank takes which samples in which step.

Most splits of a Loader (plan/loader.py) assign a sample to a rank only by the sample's position in
the order of the epoch. The schedules in this module also depend on which nodes hold the sample, or
on the sample's group.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np

from monarch_py.arrays import Int32s, Ints, pointer
from monarch_py.errors import ConfigError
from monarch_py.native import ffi, lib
from monarch_py.plan.samplers import NONE, GroupShuffle

# The largest value of Deal.cap. No accelerator has enough memory for a batch that is MOST_CAP times
# as large as the mean batch.
MOST_CAP = 1000.0
# The largest number of samples in a step.
MOST_SAMPLES = 2**31 - 1


@dataclass(frozen=True, eq=False)
class EpochSchedule:
    """The batches of all ranks in an epoch.

    samples : (accesses,) int32, grouped by step, then by rank
    starts : (steps * ranks + 1,) int64; the batch of step s and rank r is
        samples[starts[s * ranks + r] : starts[s * ranks + r + 1]]
    loads : (steps * ranks,) int32, how many samples of each batch must be loaded, because the
        rank's node does not hold them; these samples come first in the batch. None if it is unknown
        which nodes hold the samples
    """

    samples: Int32s
    starts: Ints
    ranks: int
    loads: Int32s | None = None

    @property
    def steps(self) -> int:
        return (len(self.starts) - 1) // self.ranks

    def batch(self, step: int, rank: int) -> Int32s:
        """Returns the samples that a rank takes in a step, in the order of access."""
        at = step * self.ranks + rank
        return self.samples[self.starts[at] : self.starts[at + 1]]

    def step(self, step: int) -> Int32s:
        """Returns the samples that all ranks take in a step: the global batch."""
        low, high = self.starts[step * self.ranks], self.starts[(step + 1) * self.ranks]
        return self.samples[low:high]

    def rows(self, per_step: int, rows: int) -> Int32s:
        """Returns the samples in the form that `Loader.rows` returns, (rows, ranks) int32. Each
        step has `per_step` rows. If a rank has fewer samples in a step, NONE follows them."""
        sizes = np.diff(self.starts)
        assert sizes.max(initial=0) <= per_step, "a batch has no room in its rows"
        batch = np.repeat(np.arange(len(sizes)), sizes)
        place = np.arange(len(self.samples)) - self.starts[batch]
        out = np.full((rows, self.ranks), NONE, dtype=np.int32)
        out[batch // self.ranks * per_step + place, batch % self.ranks] = self.samples
        return out

    def sizes(self) -> Ints:
        """Returns the sizes of all batches, (steps, ranks) int64."""
        return np.diff(self.starts).reshape(-1, self.ranks)


@dataclass(frozen=True)
class Deal:
    """The rules by which the samples of a step are assigned to nodes that hold them.

    per_step : samples of all ranks in a step; the last step of an epoch may have fewer
    ranks, nodes : the numbers of ranks and of nodes; rank r is on node r // (ranks // nodes)
    cap : the largest number of samples of a rank in a step, as a multiple of per_step / ranks. None
        means that all batches of a step have the same size (or sizes that differ by one sample, if
        `per_step` is not a multiple of `ranks`)
    least : the smallest number of samples of a rank in a step. A rank may get fewer if the step has
        too few samples for all ranks
    """

    per_step: int
    ranks: int
    nodes: int
    cap: float | None = None
    least: int = 1

    def __post_init__(self) -> None:
        for name in ("ranks", "nodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is out of range; write 1 or more")
        if self.ranks % self.nodes:
            raise ConfigError(
                f"nodes: {self.ranks} ranks cannot be divided equally among {self.nodes} nodes;"
                " start the same number of ranks on each node"
            )
        if self.cap is not None and not 1 <= self.cap <= MOST_CAP:
            raise ConfigError(
                f"cap: {self.cap} is out of range; write a number from 1 to {MOST_CAP}"
            )
        for name, least in (("per_step", 1), ("least", 0)):
            if not least <= getattr(self, name) <= MOST_SAMPLES:
                raise ConfigError(
                    f"{name}: {getattr(self, name)} is out of range; write a number from {least} to"
                    f" {MOST_SAMPLES}"
                )

    @property
    def most(self) -> int:
        """The largest number of samples that a rank takes in a step. It is computed exactly, from
        the decimals of `cap`. For example, if per_step / ranks is 100 and `cap` is 1.1, the result
        is 110. In floating point, the product would be slightly larger than 110, and would be
        rounded up to 111."""
        if self.cap is None:
            return -(-self.per_step // self.ranks)
        return min(ceil(Fraction(str(self.cap)) * self.per_step / self.ranks), self.per_step)

    def schedule(self, order: Int32s, holders: Int32s) -> EpochSchedule:
        """Returns a schedule that assigns the samples of an epoch to ranks, `per_step` samples in
        each step. Raises ConfigError for samples or nodes that do not exist.

        In each step, as many samples as possible are assigned to nodes that hold them. The other
        samples must be loaded. They are assigned so that all nodes load the same number of samples,
        as far as the limits for the batches' sizes permit.

        order : the samples of the epoch, in their global order
        holders : (samples,) or (samples, n) int32, up to n nodes that hold each sample, padded with
            NONE
        """
        table = np.ascontiguousarray(holders.reshape(len(holders), -1), dtype=np.int32)
        order = np.ascontiguousarray(order, dtype=np.int32)
        if table.size and not NONE <= table.min() <= table.max() < self.nodes:
            raise ConfigError(
                f"holders: some are not among the {self.nodes} nodes; write nodes from 0 to"
                f" {self.nodes - 1}, or {NONE} for none"
            )
        if len(order) and not 0 <= order.min() <= order.max() < len(table):
            raise ConfigError(f"holders: only {len(table)} samples have holders; give them for all")
        steps = -(-len(order) // self.per_step)
        out = np.empty(len(order), dtype=np.int32)
        starts = np.zeros(steps * self.ranks + 1, dtype=np.int64)
        loads = np.empty(steps * self.ranks, dtype=np.int32)
        deal = ffi.new("struct monarch_deal *")
        deal.nodes, deal.ranks, deal.per_step = self.nodes, self.ranks, self.per_step
        deal.width, deal.holders = table.shape[1], pointer(table.reshape(-1))
        deal.cap, deal.most, deal.least = self.cap or 0.0, self.most, self.least
        results = pointer(out), pointer(starts), pointer(loads)
        if lib.monarch_plan_deal(deal, pointer(order), len(order), *results) != 0:
            raise MemoryError(
                f"not enough memory for a schedule with {self.per_step} samples a step"
            )
        return EpochSchedule(out, starts, self.ranks, loads)


def equal_batches(chunks: Int32s, batch_size: int, drop_last: bool = False) -> EpochSchedule:
    """Returns the schedule in which each rank takes its own chunk of samples in batches of
    `batch_size`. A smaller last batch has the same size on all ranks. With `drop_last`, it is
    dropped.

    chunks : (ranks, samples of a rank), the samples of each rank in the order of access
    """
    ranks, each = chunks.shape
    full, rest = divmod(each, batch_size)
    whole = chunks[:, : full * batch_size].reshape(ranks, full, batch_size).transpose(1, 0, 2)
    sizes = np.full(full * ranks, batch_size, dtype=np.int64)
    parts = [whole.reshape(-1)]
    if rest and not drop_last:
        parts.append(chunks[:, full * batch_size :].reshape(-1))
        sizes = np.append(sizes, np.full(ranks, rest, dtype=np.int64))
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    return EpochSchedule(np.concatenate(parts), starts, ranks)


def group_schedule(  # noqa: PLR0917
    length: int,
    group: int,
    seed: int,
    epoch: int,
    ranks: int,
    batch_size: int,
    drop_last: bool = False,
) -> EpochSchedule:
    """Returns the schedule of an epoch with group shuffle (section III of Lee and others, 2021).
    Groups of contiguous samples are put in random order, and the samples within each group are
    shuffled. Each rank takes an equal contiguous part of the resulting order.

    If the border of two ranks lies within a group, the group is divided there before it is
    shuffled. So each rank reads a contiguous range of each of its groups. Without `drop_last`, all
    samples are used. The first `(-length) % ranks` samples of the epoch are then used again at its
    end, by the last ranks, so that all ranks have equally many samples. With `drop_last`, the last
    `length % ranks` samples of the epoch are not used, and each rank drops its last batch if this
    batch is not full.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size: {batch_size} is out of range; write 1 or more")
    order = GroupShuffle(length, ranks, group, seed, drop_last).epoch(epoch)
    each = len(order) // ranks
    if drop_last and each < batch_size:
        raise ConfigError(
            f"batch_size: {batch_size} is too large: {length} samples on {ranks} ranks give no full"
            " batch; use a smaller batch_size, or set drop_last=False"
        )
    return equal_batches(order.reshape(ranks, each), batch_size, drop_last)
