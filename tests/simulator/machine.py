"""Small machines and jobs for tests of the simulation.

Sizes and times are small numbers of bytes and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monarch_py.policies.view import Decision, Job
from monarch_py.simulator.engine import Measured, measure
from monarch_py.simulator.jobs import cluster_of
from monarch_py.simulator.scenario import (
    LINKS,
    Curve,
    Dataset,
    Rates,
    Scenario,
    SizeDistribution,
    StorageClass,
)

__all__ = ["FAST", "Machine", "job", "scenario"]

# A rate so high that transfers take practically no time [bytes/s].
FAST = 1e15


@dataclass(frozen=True)
class Machine:
    """A node with two storage classes, the staging buffer and a cache.

    Sizes are in bytes. Rates are in bytes/s and are those of all threads together."""

    pfs: dict[int, float]
    compute: float = FAST
    staging: int = 1_000_000
    staging_threads: int = 1
    preprocess: float = FAST
    cache: int = 1_000_000
    cache_rate: float = FAST
    cache_threads: int = 1
    network: float = FAST
    links: str = LINKS[0]


def scenario(
    machine: Machine, *, nodes: int, ranks: int = 1, epochs: int, batch: int, files: int
) -> Scenario:
    def storage(name: str, capacity: int, threads: int, rate: float) -> StorageClass:
        curve = Curve({threads: rate})
        return StorageClass(name, capacity, threads, curve, curve)

    return Scenario(
        name="test",
        nodes=nodes,
        ranks_per_node=ranks,
        epochs=epochs,
        batch_per_rank=batch,
        drop_last=True,
        seed=1,
        dataset=Dataset(files, SizeDistribution(1)),
        rates=Rates(machine.compute, machine.preprocess, machine.network, FAST),
        pfs=Curve(machine.pfs),
        classes=(
            storage("staging", machine.staging, machine.staging_threads, FAST),
            storage("cache", machine.cache, machine.cache_threads, machine.cache_rate),
        ),
        links=machine.links,
    )


def job(of: Scenario, sizes: Sequence[int], orders: Sequence[Any]) -> Job:
    """Returns a job with the given orders.

    orders : for each epoch, a table (nodes, steps, batch of a node) of file numbers"""
    made = [np.array(order, np.int32) for order in orders]
    return Job(
        sizes=np.array(sizes, np.int64),
        cluster=cluster_of(of),
        epochs=of.epochs,
        batch=made[0].shape[2],
        orders=lambda epoch: made[epoch],
    )


def run(
    machine: Machine,
    sizes: Sequence[int],
    orders: Sequence[Any],
    decision: Decision,
    ranks: int = 1,
) -> Measured:
    """Simulates a decision. For each epoch, `orders` has a table (nodes, steps, batch of a node) of
    file numbers."""
    nodes, _, batch = np.array(orders[0]).shape
    files = np.array(orders[0]).size
    of = scenario(
        machine, nodes=nodes, ranks=ranks, epochs=len(orders), batch=batch // ranks, files=files
    )
    return measure(of, job(of, sizes, orders), decision)
