"""LocalFirstSampler: equal batches, with samples dealt to nodes that hold them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
from monarch_py.native import Int32s
from monarch_py.plan.schedule import Deal, EpochSchedule


class LocalFirstSampler(ScheduledSampler):
    """Deals the samples of each global batch to the nodes that hold them (Yang and Cong 2019).

    files : the samples' files in the dataset's order, an Index, or a dataset with `sizes`. With
        `quota`, sizes are to be those of the samples as the dataset returns them
    batch_size : samples of a rank in a step;  seed, shuffle, drop_last : as DistributedSampler's
    rank, world_size : None for torch.distributed's
    ranks_per_node : None for the number that the launcher has set
    quota : how much each node keeps in memory without daemons, for example "8GiB"; None if daemons
        keep files
    config : the daemons' configuration file; None for the one that MONARCH_CONFIG names
    others : further files of the sources that the daemons keep
    holders : (samples, any) the nodes that hold each sample, filled up with -1, if a plan fixes
        them (planned.py); else None
    """

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
        sizes = None if quota is None else found.sample_sizes
        super().__init__(
            found.samples,
            batch_size,
            seed,
            ranks,
            shuffle=shuffle,
            drop_last=drop_last,
            sizes=sizes,
        )
        if holders is not None:
            self.holders = given_holders(holders, found.samples)
        elif quota is None:
            self.holders = kept_by_daemons(found, ranks.nodes, config, others, extra=True)
        else:
            self.holders = kept_here(found, ranks.nodes, quota)

    def _dealt_by(self) -> list[Any]:
        return [*super()._dealt_by(), np.ascontiguousarray(self.holders).data]

    def _dealt(self, order: Int32s) -> EpochSchedule:
        deal = Deal(self._at.per_step, self.ranks.world_size, self.ranks.nodes)
        return deal.schedule(order, self.holders)
