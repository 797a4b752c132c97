"""Group shuffle (section III of Lee and others, 2021): shuffles the order of the groups, and the
samples within each group."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from typing import ClassVar

import numpy as np

from monarch_py.errors import ConfigError
from monarch_py.plan.samplers._base import Order, Sampler, check_length


@dataclass(frozen=True)
class GroupShuffle(Sampler):
    """Puts contiguous groups of samples in random order, and shuffles the samples of each group.
    The resulting order is divided among the ranks into equal contiguous runs: rank 0 takes the
    first run, rank 1 the second, and so on.

    If the border of two ranks lies within a group, the group is divided there before it is
    shuffled. So every rank reads a contiguous range of each of its groups. Without `drop_last`, all
    samples are used. The first (-length) % ranks samples of the epoch are then used again at its
    end, by the last ranks, so that all ranks have equally many samples. With `drop_last`, the last
    length % ranks samples of the epoch are not used.

    group : the number of samples in a group
    """

    length: int
    ranks: int
    group: int
    seed: int = 0
    drop_last: bool = False
    by_epoch: ClassVar[bool] = True
    ranks_field: ClassVar[str | None] = "ranks"
    own_split: ClassVar[str | None] = "groups"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length("ranks", self.ranks)
        check_length("group", self.group)
        if self.count == 0:
            raise ConfigError(
                f"length: {self.length} samples leave nothing for {self.ranks} ranks; write"
                " 'drop_last: false'"
            )

    @property
    def run(self) -> int:
        """The number of samples that a rank takes."""
        return self.length // self.ranks if self.drop_last else -(-self.length // self.ranks)

    @property
    def count(self) -> int:
        return self.ranks * self.run

    def epochs(self, start: int = 0) -> Iterator[Order]:
        for number in count(start):
            rng = np.random.default_rng([self.seed % (1 << 64), number])
            order = _groups_in_runs(self.length, min(self.group, self.length), self.run, rng)
            # If `order` is too short, np.resize repeats the beginning of `order` at its end. If
            # `order` is too long, np.resize cuts its end off.
            yield np.resize(order, self.count)


def _groups_in_runs(length: int, group: int, run: int, rng: np.random.Generator) -> Order:
    """Returns all samples, group by group, (length,). The groups are in random order, and the
    samples of each group are shuffled. Each rank takes `run` consecutive samples of this order. If
    the border of two ranks lies within a group, the group is divided there, and its parts are
    shuffled separately."""
    count = -(-length // group)
    place = rng.permutation(count)
    rows = place.astype(np.int32)[:, None] * np.int32(group) + np.arange(group, dtype=np.int32)
    order = rng.permuted(rows, axis=1, out=rows).reshape(-1)
    order = order[order < length] if count * group > length else order
    sizes = np.full(count, group, dtype=np.int64)
    sizes[place == count - 1] = length - (count - 1) * group
    ends = np.cumsum(sizes)
    cuts = np.arange(run, length, run)
    within = np.searchsorted(ends, cuts, side="right")
    for number in np.unique(within).tolist():
        low, high = int(ends[number] - sizes[number]), int(ends[number])
        edges = np.unique([low, *cuts[within == number].tolist(), high]).tolist()
        first = int(place[number]) * group - low
        for begin, end in pairwise(edges):
            piece = np.arange(first + begin, first + end, dtype=np.int32)
            order[begin:end] = rng.permutation(piece)
    return order
