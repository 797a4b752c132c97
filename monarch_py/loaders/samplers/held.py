"""Batch samplers that assign samples to the nodes that hold them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from monarch_py.arrays import Int32s
from monarch_py.errors import ConfigError
from monarch_py.loaders.memory.kept import KeptDataset
from monarch_py.loaders.samplers.holders import (
    Files,
    Quota,
    given_holders,
    kept_by_daemons,
    kept_here,
)
from monarch_py.loaders.samplers.misuse import refuse_sampler
from monarch_py.loaders.samplers.ranks import Ranks
from monarch_py.loaders.samplers.sampler import ScheduledSampler

# The most bytes that pickling adds to a sample. `keep` reserves this much additional memory for
# each kept sample.
PICKLED_BYTES = 512


class HeldSampler(ScheduledSampler):
    """The base of batch samplers that assign samples to the nodes that hold them. A node holds a
    sample if it keeps the sample in memory, or if its daemon keeps a copy of the sample's file.

    files : an Index, a dataset with `sizes`, or the paths of the samples' files in the dataset's
        order. With `quota`, the sizes must be those of the samples that the dataset returns
    batch_size : the number of samples of a rank in a step
    seed, shuffle, drop_last : as for DistributedSampler
    rank, world_size : None to take them from torch.distributed
    ranks_per_node : None for the number that the launcher has set
    quota : if there are no daemons, how much each node keeps in memory, for example "8GiB"; None if
        daemons keep files
    config : the daemons' configuration file; None for the file that MONARCH_CONFIG names
    others : further files in the daemons' sources, which take up room in the tiers too
    holders : an array with one row for each sample: the numbers of the nodes that hold the sample,
        padded with -1; None to compute the holders
    """

    # Whether `holders` also names the nodes that hold second copies. Daemons make second copies if
    # their tiers have room left.
    EXTRA: ClassVar[bool]
    holders: Int32s  # (samples, the largest number of holders)

    def __init__(
        self,
        files: Any,
        batch_size: int = 64,
        seed: int = 17,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        ranks_per_node: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        quota: Quota | None = None,
        config: str | Path | None = None,
        others: Sequence[str] = (),
        holders: Int32s | None = None,
    ) -> None:
        refuse_sampler(files)
        ranks, found = Ranks.found(rank, world_size, ranks_per_node), Files(files)
        super().__init__(
            found.samples, batch_size, seed, ranks, shuffle=shuffle, drop_last=drop_last
        )
        # The sizes of the samples, if the ranks keep samples in memory; None if daemons keep files.
        self._sizes = None if quota is None else found.sample_sizes
        if holders is not None:
            held = given_holders(holders, found.samples)
        elif quota is None:
            held = kept_by_daemons(found, ranks.nodes, config, others, extra=self.EXTRA)
        else:
            held = kept_here(found, ranks.nodes, quota)
        self.holders = np.ascontiguousarray(held)

    def _dealt_by(self) -> list[Any]:
        return [*super()._dealt_by(), self.holders.data]

    def keep(self, dataset: Any) -> KeptDataset:
        """Returns a dataset that reads from `dataset`, and keeps in memory the samples that this
        node holds. Pass the returned dataset to the loader. A kept sample is always returned as it
        was first read. So apply random augmentations to the samples of the returned dataset, not in
        `dataset`. If the sampler has no quota, daemons keep the files, and ConfigError is
        raised."""
        if self._sizes is None:
            raise ConfigError(
                "quota: it is not given, so daemons keep the files and `keep` is not"
                " needed; use the dataset as it is"
            )
        self.check_dataset(dataset)
        own = np.flatnonzero(self.holders[:, 0] == self.ranks.node)
        room = int(self._sizes[own].sum()) + PICKLED_BYTES * len(own)
        return KeptDataset(dataset, own, max(room, 1))
