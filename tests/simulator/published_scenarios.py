"""A small scenario in which all storage is short, so that every rule of a policy has an effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from monarch_py.simulator.scenario import (
    Curve,
    Dataset,
    Rates,
    Scenario,
    SizeDistribution,
    StorageClass,
)

__all__ = ["scenario"]

MB = 1e6


def scenario(
    files: int = 603,
    size: float = 0.0,
    staging: int = 20_000,
    ram: int = 200_000,
    disk: int = 200_000,
    classes: int = 3,
    pfs: dict[int, float] | None = None,
    **changes: Any,
) -> Scenario:
    """Returns a scenario of 4 nodes, 3 epochs and batches of 8 samples a node.

    Files have 1,000 bytes on average with a standard deviation of 500, or all have `size` bytes.
    staging, ram and disk are capacities [bytes], and `changes` are fields of Scenario."""
    curve = {1: 3 * MB, 2: 7 * MB, 4: 15 * MB}
    memory, slow = Curve({2: 500 * MB}), Curve({1: 6 * MB})
    storage = (
        StorageClass("staging", staging, 2, memory, memory),
        StorageClass("ram", ram, 2, memory, memory),
        StorageClass("disk", disk, 1, slow, slow),
    )
    small = Scenario(
        name="small",
        nodes=4,
        ranks_per_node=1,
        epochs=3,
        batch_per_rank=8,
        drop_last=True,
        seed=5,
        dataset=Dataset(files, SizeDistribution(size) if size else SizeDistribution(1000.0, 500.0)),
        rates=Rates(6 * MB, 20 * MB, 240 * MB, 240 * MB),
        pfs=Curve(curve if pfs is None else pfs),
        classes=storage[:classes],
    )
    return replace(small, **changes)
