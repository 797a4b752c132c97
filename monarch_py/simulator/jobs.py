"""The job that a scenario describes, as policies see it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from monarch_py.errors import ConfigError
from monarch_py.policies.view import Cluster, Job
from monarch_py.simulator.scenario import Scenario

__all__ = ["cluster_of", "job_of"]

# Epochs whose order is kept: the machine asks for two, a policy that looks ahead for some more.
ORDERS_KEPT = 4
# Of all nodes: each has an event of its own.
MOST_THREADS = 1 << 26


def cluster_of(scenario: Scenario) -> Cluster:
    """The scenario's machine."""
    rates = np.array([storage.read_rate for storage in scenario.classes])
    return Cluster(
        capacity=scenario.capacities(),
        threads=np.array([storage.threads for storage in scenario.classes], np.int64),
        read_rate=np.tile(rates, (scenario.nodes, 1)),
        network=scenario.rates_of_nodes()["network"],
        pfs_rate=lambda clients: float(scenario.pfs.total(clients)),
    )


def job_of(scenario: Scenario) -> Job:
    """The scenario's job: in every epoch a fresh permutation of the files, cut into steps, each
    step into ranks (DistributedSampler's law, with numpy's generator).

    ConfigError where the machine cannot be simulated: see the message.
    """
    if len(set(scenario.ranks().tolist())) > 1:
        raise ConfigError(
            f"{scenario.name}: overrides.ranks: the simulation needs the same number of ranks on "
            "every node; use ranks_per_node alone, or --as-published"
        )
    threads = sum(storage.threads for storage in scenario.classes) + scenario.ranks_per_node
    if scenario.nodes * threads > MOST_THREADS:
        raise ConfigError(
            f"{scenario.name}: classes: {threads} threads and ranks on each of {scenario.nodes} "
            f"nodes are more than {MOST_THREADS} in all; use fewer nodes or threads"
        )
    if not scenario.batches_per_epoch:
        raise ConfigError(
            f"{scenario.name}: dataset.files: {scenario.dataset.files} are fewer than one step of "
            f"{scenario.global_batch}; use more files, or a smaller batch_per_rank"
        )

    @lru_cache(maxsize=ORDERS_KEPT)
    def orders(epoch: int) -> npt.NDArray[np.int32]:
        random = np.random.Generator(np.random.PCG64([scenario.seed, epoch]))
        order = random.permutation(scenario.dataset.files).astype(np.int32)
        steps, per_step = scenario.batches_per_epoch, scenario.global_batch
        # The last step of an epoch that is kept is filled up from its beginning.
        order = np.resize(order, steps * per_step)
        by_step = order.reshape(steps, scenario.nodes, -1)
        return np.ascontiguousarray(by_step.transpose(1, 0, 2))

    return Job(
        sizes=scenario.sizes(),
        cluster=cluster_of(scenario),
        epochs=scenario.epochs,
        batch=scenario.batch_per_rank * scenario.ranks_per_node,
        orders=orders,
        seed=scenario.seed,
    )
