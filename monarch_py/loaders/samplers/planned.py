"""Makes the sampler that follows an access plan. Daemons with the same plan fetch its samples
ahead."""

from pathlib import Path
from typing import Any

from monarch_py.errors import ConfigError
from monarch_py.loaders.samplers.local_first import LocalFirstSampler
from monarch_py.loaders.samplers.sampler import ScheduledSampler
from monarch_py.loaders.samplers.solar import SolarSampler
from monarch_py.plan.loader import HELD_SPLITS
from monarch_py.plan.plan import Plan, PlanPart
from monarch_py.plan.recipe import read_plan
from monarch_py.plan.samplers import DistributedSampler
from monarch_py.policies.holding import with_holders


def sampler_of(
    plan: str | Path, part: str | None = None, *, rank: int | None = None
) -> ScheduledSampler:
    """Returns the batch sampler for a part of an access plan. The part must assign samples to the
    nodes that hold them ('split: local_first' or 'split: solar').

    plan : a plan.yaml, or the file that `monarch plan make` has made from it
    part : the name of the part; None for the first part with one of these splits
    rank : the rank of this process; None to take it from torch.distributed
    """
    loaded = with_holders(read_plan(Path(plan)))
    for each in loaded.parts:
        loader = each.loader
        if loader.split in HELD_SPLITS and part in (None, each.name):
            return _sampler(loaded, each, rank)
    named = "" if part is None else f" {part!r}"
    raise ConfigError(
        f"part: {plan} has no part{named} with 'split: local_first' or 'split: solar'; make the"
        " plan again with one of these splits"
    )


def _sampler(plan: Plan, part: PlanPart, rank: int | None) -> ScheduledSampler:
    loader, order = part.loader, part.loader.sampler
    if not isinstance(order, DistributedSampler) or order.drop_last != loader.drop_last:
        raise ConfigError(
            f"sampler: part {part.name!r} needs DistributedSampler with the part's 'drop_last';"
            " correct the plan"
        )
    if not order.set_epoch:
        raise ConfigError(
            f"set_epoch: {part.name!r} repeats one order in all epochs, which a batch sampler"
            " cannot do; write 'set_epoch: true'"
        )
    more: dict[str, Any] = {
        "rank": rank,
        "world_size": None if rank is None else loader.world_size,
        "ranks_per_node": loader.world_size // loader.nodes,
        "shuffle": order.shuffle,
        "drop_last": loader.drop_last,
        "holders": loader.holders,
    }
    index = plan.datasets[part.dataset]
    made: ScheduledSampler
    if loader.split == "solar":
        more |= {"cap": loader.cap, "least": loader.least}
        made = SolarSampler(index, loader.batch_size, order.seed, **more)
    else:
        made = LocalFirstSampler(index, loader.batch_size, order.seed, **more)
    if made.ranks.world_size != loader.world_size:
        raise ConfigError(
            f"world_size: the plan is for {loader.world_size} ranks, and {made.ranks.world_size}"
            " are running; make the plan again"
        )
    return made
