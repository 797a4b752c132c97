"""The inputs of the published simulator's policies: accesses, file sizes, and rates."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.published.behaviours import Behaviour
from monarch_py.errors import ConfigError
from monarch_py.simulator.scenario import Curve, Scenario, StorageClass

__all__ = ["LOCAL", "PFS", "REMOTE", "Inputs", "Speeds", "make_inputs"]

# The origin of a sample; 0 means "nowhere".
PFS, LOCAL, REMOTE = 1, 2, 3

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int32]


def _together(curve: Curve, storage: StorageClass) -> float:
    """Returns the total rate of all threads of a storage class [bytes/s]."""
    return float(curve.total(storage.threads))


@dataclass(frozen=True, slots=True)
class Speeds:
    """The rates of one thread [bytes/s] in the performance model of NoPFS (section 4).

    pfs : (clients + 1,); pfs[n] is the rate of one client if n clients read from the PFS at the
        same time; pfs[0] is unused
    local : (classes,) the rate of reading a copy on the same node
    remote : (classes,) the rate of reading a copy on another node
    write : the rate of writing into the staging buffer, including preprocessing
    compute : the rate at which a rank trains
    """

    pfs: list[float]
    local: list[float]
    remote: list[float]
    write: float
    compute: float

    @classmethod
    def of(cls, scenario: Scenario, on: Collection[Behaviour]) -> Speeds:
        """Returns the rates of a scenario.

        on : the deviations of the published simulator that the re-creation reproduces
        """
        rates = scenario.rates
        clients = np.arange(1, scenario.nodes + 1)
        known = clients
        if Behaviour.PFS_FLAT_BELOW_FIRST_POINT in on:
            known = np.maximum(clients, min(scenario.pfs.points))
        pfs = np.minimum(rates.pfs_link, scenario.pfs.total(known) / clients)
        local = [_together(storage.read, storage) for storage in scenario.classes]
        if Behaviour.WHOLE_CLASS_FOR_ONE_THREAD not in on:
            local = [
                _together(storage.read, storage) / storage.threads for storage in scenario.classes
            ]
        staging = scenario.staging
        return cls(
            pfs=[0.0, *pfs.tolist()],
            local=local,
            remote=[min(rates.network, rate) for rate in local],
            # In the published model, a storage class is read and written at the same rate.
            write=min(rates.preprocess, _together(staging.write, staging) / staging.threads),
            compute=rates.compute,
        )

    def load_seconds(self, sizes: Floats, rate: float) -> Floats:
        """Returns an array (files,): the time to fetch each file at `rate` and to write it [s]."""
        return sizes / self.write + sizes / rate


@dataclass(slots=True)
class Inputs:
    """The inputs of one run. Policies may replace `orders` with orders of the same length.

    on : the deviations of the published simulator that the re-creation reproduces
    sizes : (files,) the size of each file [bytes], not rounded to whole bytes
    orders : one array (samples,) per node: the files that the node reads in all epochs, in the
        order in which it reads them
    starts : one list (batches + 1,) per node: the index in the node's order at which each batch
        begins, and the index at which the last batch ends
    random : the random state, after the orders and the sizes were drawn from it; policies draw
        further numbers from it
    """

    scenario: Scenario
    on: Collection[Behaviour]
    sizes: Floats
    orders: list[Numbers]
    starts: list[list[int]]
    speeds: Speeds
    random: np.random.RandomState

    @property
    def nodes(self) -> int:
        return self.scenario.nodes

    @property
    def files(self) -> int:
        return self.scenario.dataset.files

    def shards(self) -> list[tuple[int, int]]:
        """Divides the files into equal parts (shards), one for each node. Returns, for each node,
        the range (first, end) of the files in its shard. File `end` is outside the shard."""
        part = self.files // self.nodes
        ends = [part * (node + 1) for node in range(self.nodes)]
        if Behaviour.SHARDS_LEAVE_A_REST not in self.on:
            ends[-1] = self.files
        return [(part * node, end) for node, end in enumerate(ends)]


def make_inputs(scenario: Scenario, on: Collection[Behaviour]) -> Inputs:
    """Returns the inputs of a run. Raises ConfigError if the scenario has a feature that the
    published simulator lacks."""
    _refuse(scenario)
    random = np.random.RandomState(scenario.seed)
    if Behaviour.SHUFFLES_BEFORE_SIZES in on:
        orders, starts = _orders(scenario, random)
        sizes = _sizes(scenario, random)
    else:
        sizes = _sizes(scenario, random)
        orders, starts = _orders(scenario, random)
    return Inputs(scenario, on, sizes, orders, starts, Speeds.of(scenario, on), random)


def _refuse(scenario: Scenario) -> None:
    unknown = {
        "ranks_per_node": scenario.ranks_per_node != 1,
        "overrides": bool(scenario.overrides),
        "checkpoint": scenario.checkpoint is not None,
    }
    for key, is_there in unknown.items():
        if is_there:
            raise ConfigError(
                f"{scenario.name}: {key}: the published simulator has only equal nodes of one"
                " rank, without checkpoints; remove the key, or use `monarch simulate`"
            )


def _sizes(scenario: Scenario, random: np.random.RandomState) -> Floats:
    dataset = scenario.dataset
    if dataset.distribution is None:
        return scenario.sizes().astype(np.float64)
    return dataset.distribution.draw(random, dataset.files)


def _orders(
    scenario: Scenario, random: np.random.RandomState
) -> tuple[list[Numbers], list[list[int]]]:
    """Returns the values of `Inputs.orders` and `Inputs.starts`. Each epoch is shuffled
    independently. Every full batch is divided equally among the nodes. The last batch of an epoch
    may be incomplete. If the scenario has `drop_last`, an incomplete batch is left out. Otherwise,
    the nodes get unequal parts of this batch."""
    nodes, files, batch = scenario.nodes, scenario.dataset.files, scenario.batch_per_rank
    whole, rest = divmod(files, nodes * batch)
    orders: list[list[Numbers]] = [[] for _ in range(nodes)]
    lengths: list[list[int]] = [[] for _ in range(nodes)]
    for _ in range(scenario.epochs):
        shuffled = random.permutation(files).astype(np.int32)
        full = shuffled[: files - rest].reshape(whole, nodes, batch)
        for node in range(nodes):
            orders[node].append(full[:, node].ravel())
            lengths[node] += [batch] * whole
            if rest and not scenario.drop_last:
                last = shuffled[files - rest :][node * batch : (node + 1) * batch]
                orders[node].append(last)
                lengths[node].append(len(last))
    starts = [np.cumsum([0, *parts]).tolist() for parts in lengths]
    return [np.concatenate(parts) for parts in orders], starts


def numbers(values: Numbers) -> array[int]:
    """Returns the values as an array.array, (n,). Single elements of an array.array can be read in
    a third of the time that a numpy array needs."""
    return array("i", np.ascontiguousarray(values, np.int32).tobytes())


def floats(values: Floats) -> array[float]:
    """Returns the values as an array.array, (n,). Single elements of an array.array can be read
    faster than those of a numpy array."""
    return array("d", np.ascontiguousarray(values, np.float64).tobytes())
