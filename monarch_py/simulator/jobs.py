"""Creates a scenario's `Job`, which is the input of policies."""

from functools import lru_cache
from itertools import pairwise

import numpy as np

from monarch_py.arrays import Int32s
from monarch_py.errors import ConfigError
from monarch_py.policies.view import NO_FILE, Cluster, Job
from monarch_py.simulator.scenario import Scenario

# The orders of this many epochs are kept. The engine needs the orders of two epochs, and a policy
# that looks ahead needs a few more.
ORDERS_KEPT = 4
# The largest number of threads of all nodes together. The engine reserves memory for one event of
# each thread.
MOST_THREADS = 1 << 26


def cluster_of(scenario: Scenario) -> Cluster:
    """Returns the cluster of a scenario."""
    rates = scenario.rates_of_nodes()
    read = [storage.read.total(storage.threads) for storage in scenario.classes]
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
    """Returns the job of a scenario. Every epoch is a new random permutation of the files, which is
    divided into steps. The samples of each step are divided among the ranks. (PyTorch's
    DistributedSampler does the same, but its permutations are not those of NumPy's generator.)

    Raises ConfigError if the cluster is too large to be simulated.
    """
    ranks = scenario.ranks()
    threads = sum(storage.threads for storage in scenario.classes) + int(ranks.max())
    if scenario.nodes * threads > MOST_THREADS:
        raise ConfigError(
            f"{scenario.name}: classes: {threads} threads and ranks on each of {scenario.nodes} "
            f"nodes are more than {MOST_THREADS} in all; use fewer nodes or threads"
        )
    batch = scenario.batch_per_rank * int(ranks.max())
    # For each node, the index of its first sample among the samples of a step.
    starts = np.concatenate([[0], np.cumsum(ranks)]) * scenario.batch_per_rank

    @lru_cache(maxsize=ORDERS_KEPT)
    def orders(epoch: int) -> Int32s:
        random = np.random.Generator(np.random.PCG64([scenario.seed, epoch]))
        order = random.permutation(scenario.dataset.files).astype(np.int32)
        steps, per_step = scenario.batches_per_epoch, scenario.global_batch
        # Without drop_last, a short last step is padded with samples from the beginning of the
        # epoch. With drop_last, the samples that do not fill a whole step are left out.
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
