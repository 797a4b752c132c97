"""The job that a scenario describes, as policies see it."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from monarch_py.errors import ConfigError
from monarch_py.policies.view import NO_FILE, Cluster, Job
from monarch_py.simulator.scenario import Scenario

__all__ = ["cluster_of", "job_of"]

# Epochs whose order is kept: the machine asks for two, a policy that looks ahead for some more.
ORDERS_KEPT = 4
# Of all nodes: each has an event of its own.
MOST_THREADS = 1 << 26


def cluster_of(scenario: Scenario) -> Cluster:
    """The scenario's machine."""
    read, rates = [storage.read_rate for storage in scenario.classes], scenario.rates_of_nodes()
    return Cluster(
        capacity=scenario.capacities(),
        threads=np.array([storage.threads for storage in scenario.classes], np.int64),
        read_rate=np.tile(np.array(read), (scenario.nodes, 1)),
        network=rates["network"],
        ranks=scenario.ranks(),
        preprocess=rates["preprocess"],
        pfs_rate=lambda clients: float(scenario.pfs.total(clients)),
    )


def job_of(scenario: Scenario) -> Job:
    """The scenario's job: in every epoch a fresh permutation of the files, cut into steps, each
    step into ranks (DistributedSampler's law, with numpy's generator).

    ConfigError where the machine cannot be simulated: see the message.
    """
    ranks = scenario.ranks()
    threads = sum(storage.threads for storage in scenario.classes) + int(ranks.max())
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

    batch = scenario.batch_per_rank * int(ranks.max())
    # Of each node's samples in a step.
    starts = np.concatenate([[0], np.cumsum(ranks)]) * scenario.batch_per_rank

    @lru_cache(maxsize=ORDERS_KEPT)
    def orders(epoch: int) -> npt.NDArray[np.int32]:
        random = np.random.Generator(np.random.PCG64([scenario.seed, epoch]))
        order = random.permutation(scenario.dataset.files).astype(np.int32)
        steps, per_step = scenario.batches_per_epoch, scenario.global_batch
        # The last step of an epoch that is kept is filled up from its beginning.
        order = np.resize(order, steps * per_step)
        by_step = order.reshape(steps, per_step)
        dealt = np.full((scenario.nodes, steps, batch), NO_FILE, np.int32)
        for node, (start, end) in enumerate(pairwise(starts)):
            dealt[node, :, : end - start] = by_step[:, start:end]
        return dealt

    return Job(
        sizes=scenario.sizes(),
        cluster=cluster_of(scenario),
        epochs=scenario.epochs,
        batch=batch,
        orders=orders,
        seed=scenario.seed,
    )
