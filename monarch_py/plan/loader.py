"""The loader, which distributes a sampler's order over ranks, batches and workers."""

from dataclasses import dataclass, field

import numpy as np

from monarch_py.arrays import Int32s
from monarch_py.errors import ConfigError
from monarch_py.plan.samplers import NONE, Order, Sampler, check_choice
from monarch_py.plan.schedule import Deal

# A split is a rule by which the order of an epoch is distributed over the ranks. A global batch
# consists of the samples of all ranks in one step. The splits are:
# strided : rank r takes the samples r, r + ranks, ... of the order (DistributedSampler)
# slices : rank r takes the r-th slice of each global batch (NoPFS)
# chunks : rank r takes the r-th contiguous part of the epoch (DALI's shards)
# replicated : every rank takes all samples
# groups : like chunks, but only for the order of a GroupShuffle, which already consists of the part
#     of rank 0, then the part of rank 1, and so on
# local_first : a global batch has the same samples as with `strided`, but as many of them as
#     possible go to a node that holds them
# solar : like local_first, but batches differ in size, so that all nodes load the same number of
#     samples
PLAIN_SPLITS = ("strided", "slices", "chunks", "replicated")
# The splits that depend on the samples' holders, the nodes that keep copies of them. These splits
# accept the same samplers as `strided`.
HELD_SPLITS = ("local_first", "solar")
SPLITS = (*PLAIN_SPLITS, "groups", *HELD_SPLITS)

# If it is unknown how many workers a rank has, they are assumed to prepare this many batches ahead:
# as many as eight workers prepare if each prepares four.
USUAL_AHEAD = 32

# The least values of a Loader's fields.
LEAST = {
    "world_size": 1,
    "batch_size": 1,
    "workers": 0,
    "prefetch_factor": 1,
    "nodes": 1,
    "quota": 0,
    "least": 0,
}


@dataclass(frozen=True)
class Loader:
    """Determines which samples the ranks read in an epoch, and in which order. A Loader describes a
    sampler together with torch's BatchSampler and DataLoader, or with equivalents of these two.

    world_size : number of ranks;  batch_size : samples that a rank takes in one step
    drop_last : whether a rank's last batch is dropped if it is not full
    split : one of SPLITS
    workers, prefetch_factor : the DataLoader's arguments; worker w makes the batches w, w +
        workers, ... If `workers` is None, the number is unknown
    nodes, quota : for HELD_SPLITS: the number of nodes, and how much each node holds [bytes]
    cap : for `solar`: the largest number of samples of a rank in a step, as a multiple of
        `batch_size`
    least : for `solar`: the smallest number of samples of a rank in a step
    holders : for HELD_SPLITS: (samples, n) int32, up to n nodes that hold each sample, padded with
        NONE. They are computed from the dataset and the quota. Until then, the field is None
    """

    sampler: Sampler
    world_size: int
    batch_size: int
    drop_last: bool = False
    split: str = "strided"
    workers: int | None = None
    prefetch_factor: int = 2
    nodes: int = 1
    quota: int = 0
    cap: float = 1.5
    least: int = 1
    holders: Int32s | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for key, least in LEAST.items():
            if (value := getattr(self, key)) is not None and value < least:
                raise ConfigError(
                    f"{key}: {value} is out of range; write a whole number, {least} or more"
                )
        check_choice("split", self.split, SPLITS)
        self._check_sampler()
        if self.split in HELD_SPLITS:
            self._deal()  # raises ConfigError for invalid numbers
        if self.split == "groups" and self.sampler.own_split != "groups":
            raise ConfigError(
                "split: 'groups' needs the sampler GroupShuffle; write 'kind: GroupShuffle'"
            )
        if self.steps == 0:
            raise ConfigError(
                f"batch_size: {self.batch_size} leaves no full batch if {self.world_size} ranks"
                f" share {self.sampler.count} samples; write a smaller one or 'drop_last: false'"
            )

    def _check_sampler(self) -> None:
        kind, field, split = type(self.sampler), self.sampler.ranks_field, self.sampler.own_split
        if field is not None and getattr(self.sampler, field) != self.world_size:
            raise ConfigError(
                f"{field}: {getattr(self.sampler, field)} is not the number of ranks,"
                f" {self.world_size}; write {self.world_size}"
            )
        dealt = "strided" if self.split in HELD_SPLITS else self.split
        if split not in (None, dealt):
            raise ConfigError(
                f"split: {self.split!r} does not fit the sampler {kind.__name__}; write"
                f" 'split: {split}'"
            )

    @property
    def longest(self) -> int:
        """The largest number of samples of any rank in an epoch. The samples that `drop_last`
        leaves out are included."""
        count, ranks = self.sampler.count, self.world_size
        if self.split == "replicated":
            return count
        if self.split == "slices":
            whole, rest = divmod(count, ranks * self.batch_size)
            return whole * self.batch_size + min(rest, self.batch_size)
        return -(-count // ranks)

    @property
    def steps(self) -> int:
        """The largest number of batches that any rank has."""
        if self.split in HELD_SPLITS:
            whole = self.world_size * self.batch_size
            return (
                self.sampler.count // whole if self.drop_last else -(-self.sampler.count // whole)
            )
        if self.drop_last:
            return self.longest // self.batch_size
        return -(-self.longest // self.batch_size)

    @property
    def rows_per_step(self) -> int:
        """The number of rows of each step in the array that `rows` returns: the largest number of
        samples that any rank may take in a step."""
        return self._deal().most if self.split == "solar" else self.batch_size

    @property
    def per_rank(self) -> int:
        """The number of rows of an epoch in the array that `rows` returns: the largest number of
        accesses of any rank. The column of a rank with fewer accesses ends with NONE. With the
        split `solar`, each step has `rows_per_step` rows, and the last rows of any step may be
        NONE."""
        if self.split == "solar":
            return self.steps * self.rows_per_step
        return self.steps * self.batch_size if self.drop_last else self.longest

    @property
    def ahead(self) -> int:
        """How many batches the workers of a rank may prepare ahead, in addition to the batch that
        the training needs next. USUAL_AHEAD if the number of workers is unknown."""
        return USUAL_AHEAD if self.workers is None else self.workers * self.prefetch_factor

    def rows(self, order: Order) -> Order:
        """Distributes an epoch's order over the ranks. Returns the samples of all ranks,
        (per_rank, world_size) int32. Column r has the samples of rank r in the order of access,
        padded with NONE as `per_rank` describes. The array may be a view of `order`."""
        rows = getattr(self, f"_{self.split}")(order)
        if self.drop_last and self.split not in HELD_SPLITS:
            rows = self._without_rests(rows[: self.per_rank])
        return np.asarray(rows)

    def ranks(self, epoch: int) -> Order:
        """Returns the samples of every rank in the order of access, (world_size, per_rank) int32. A
        rank with fewer than `per_rank` samples is padded with NONE."""
        return np.asarray(self.rows(self.sampler.epoch(epoch)).T)

    def batches(self, epoch: int) -> Order:
        """Returns the samples of every rank in batches, (world_size, steps, rows_per_step) int32. A
        batch that is not full is padded with NONE."""
        ranks = self.ranks(epoch)
        shape = (self.world_size, self.steps, self.rows_per_step)
        full = np.full((shape[0], shape[1] * shape[2]), NONE, dtype=np.int32)
        full[:, : ranks.shape[1]] = ranks
        return full.reshape(shape)

    def _strided(self, order: Order) -> Order:
        return _filled_up(order, self.world_size).reshape(-1, self.world_size)

    def _slices(self, order: Order) -> Order:
        order = _filled_up(order, self.batch_size * self.world_size)
        dealt = order.reshape(-1, self.world_size, self.batch_size)
        rows: Order = dealt.transpose(0, 2, 1).reshape(-1, self.world_size)
        return rows[: self.longest]

    def _chunks(self, order: Order) -> Order:
        edges = [len(order) * rank // self.world_size for rank in range(self.world_size + 1)]
        rows = np.full((self.longest, self.world_size), NONE, dtype=np.int32)
        for rank in range(self.world_size):
            low, high = edges[rank], edges[rank + 1]
            rows[: high - low, rank] = order[low:high]
        return rows

    def _groups(self, order: Order) -> Order:
        return np.asarray(order.reshape(self.world_size, -1).T)

    def _local_first(self, order: Order) -> Order:
        return self._held(order)

    def _solar(self, order: Order) -> Order:
        return self._held(order)

    def _deal(self) -> Deal:
        cap = self.cap if self.split == "solar" else None
        ranks = self.world_size
        return Deal(ranks * self.batch_size, ranks, self.nodes, cap, self.least)

    def _held(self, order: Order) -> Order:
        if self.holders is None:
            raise ConfigError(
                f"split: {self.split!r} needs the holders of the samples, which are not known here;"
                " make the plan with `monarch plan make`"
            )
        whole = order[: self.steps * self.world_size * self.batch_size]
        schedule = self._deal().schedule(whole, self.holders)
        return schedule.rows(self.rows_per_step, self.per_rank)

    def _replicated(self, order: Order) -> Order:
        return np.asarray(np.broadcast_to(order[:, np.newaxis], (len(order), self.world_size)))

    def _without_rests(self, rows: Order) -> Order:
        """Returns the rows, with NONE instead of the samples of incomplete last batches. Only a
        rank that has fewer samples than others can have an incomplete last batch here."""
        short = np.flatnonzero(rows[-1] == NONE)
        if len(short):
            rows = rows.copy()
            rows[-self.batch_size :, short] = NONE
        return rows


def _filled_up(order: Order, unit: int) -> Order:
    """Returns the order, padded with NONE to a length that is a multiple of `unit`."""
    missing = -len(order) % unit
    return np.append(order, np.full(missing, NONE, dtype=np.int32)) if missing else order
