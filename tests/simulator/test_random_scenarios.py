"""Properties of every policy on any machine, checked on random scenarios."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support import draws

from monarch_py.errors import PolicyError
from monarch_py.policies.named import NAMES, POLICIES
from monarch_py.policies.view import PFS, Decision, Job
from monarch_py.simulator.engine import Measured, measure
from monarch_py.simulator.jobs import job_of
from monarch_py.simulator.result import PLACES
from monarch_py.simulator.scenario import (
    Curve,
    Dataset,
    NodeOverride,
    Rates,
    Scenario,
    SizeDistribution,
    StorageClass,
)

SEEDS = range(draws.sized(6, 125))
ROUNDING = 1 + 1e-9
# Maps each policy that evicts by Belady's rule to the policies that must not have more hits than
# it.
EVICTING = {"belady": ("lru", "first-fit"), "belady-shared": ("lru-shared",)}


def random_scenario(seed: int) -> Scenario:
    """Returns a random scenario.

    The more clients the file system has, the higher its total rate, and the lower the rate for each
    client. In some scenarios with two ranks per node, the first node has only one rank."""
    random = np.random.default_rng(seed)
    nodes, batch = int(random.integers(1, 7)), int(random.integers(2, 17))
    ranks = int(random.integers(1, 3))
    per_step = nodes * ranks * batch
    files = int(random.integers(4 * per_step, 30 * per_step))
    totals = np.cumsum(np.sort(random.uniform(1, 400, nodes))[::-1])
    distribution = SizeDistribution(100) if seed % 2 else SizeDistribution(100, 40, 1)

    def storage(name: str, capacity: float, threads: int, rate: float) -> StorageClass:
        curve = Curve({threads: rate})
        return StorageClass(name, int(capacity), threads, curve, curve)

    def share() -> float:
        return float(files * 100 / nodes * random.uniform(0.1, 1.3))

    def rate(lowest: float, highest: float) -> float:
        return float(10 ** random.uniform(lowest, highest))

    return Scenario(
        name="random",
        nodes=nodes,
        ranks_per_node=ranks,
        epochs=int(random.integers(1, 5)),
        batch_per_rank=batch,
        drop_last=bool(seed % 3),
        seed=seed,
        dataset=Dataset(files, distribution),
        rates=Rates(rate(1, 3.5), rate(1.5, 4), rate(2, 4), rate(2, 4)),
        pfs=Curve(dict(enumerate(totals.tolist(), 1))),
        overrides=() if seed % 5 else (NodeOverride((0,), ranks=1),),
        classes=(
            storage(
                "staging",
                ranks * batch * 100 * random.uniform(1, 8),
                int(random.integers(1, 9)),
                1e5,
            ),
            storage("ram", share(), int(random.integers(1, 4)), rate(2.5, 5)),
            storage("ssd", share(), 2, rate(2, 4)),
        ),
    )


@pytest.fixture(scope="module")
def runs() -> list[tuple[Scenario, Job, dict[str, tuple[Decision, Measured]]]]:
    made = []
    for seed in SEEDS:
        scenario = random_scenario(seed)
        job = job_of(scenario)
        ran = {}
        for name in NAMES:
            try:
                decision = POLICIES[name](job)
            except PolicyError:
                continue
            ran[name] = (decision, measure(scenario, job, decision))
        made.append((scenario, job, ran))
    return made


def used_by_node(own: list[npt.NDArray[Any]]) -> float:
    """Returns the largest number of bytes that any node uses in all epochs together."""
    return float(sum(sizes.sum(axis=(1, 2)) for sizes in own).max())


def sizes_of(job: Job, order: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.where(order < 0, 0, job.sizes[np.maximum(order, 0)])


def test_every_policy_runs_somewhere(runs: list[Any]) -> None:
    assert {name for _, _, ran in runs for name in ran} == set(NAMES)


def test_no_policy_is_faster_than_its_compute_or_its_bytes(runs: list[Any]) -> None:
    for scenario, job, ran in runs:
        most = scenario.pfs.total(np.arange(1, scenario.nodes + 1)).max()
        for name, (decision, measured) in ran.items():
            orders = decision.orders or job.orders
            own = [sizes_of(job, orders(epoch)) for epoch in range(scenario.epochs)]
            ranks = scenario.ranks()[:, None]
            slowest = sum((sizes.sum(axis=2) / ranks).max(axis=0).sum() for sizes in own)
            compute = slowest / scenario.rates.compute
            end = measured.epoch_end[-1] * ROUNDING
            assert end >= compute, (name, scenario)
            assert end >= measured.pfs_bytes.sum() / most, (name, scenario)
            through = measured.node_bytes[:, PLACES.index("pfs")] + measured.filled
            assert end >= through.max() / scenario.rates.pfs_link, (name, scenario)
            prepared = 0 if decision.free or not decision.staging else used_by_node(own)
            # If there are fewer threads than ranks, ranks load samples themselves.
            threads = max(scenario.staging.threads, scenario.ranks_per_node)
            assert end >= prepared / threads / scenario.rates.preprocess, (name, scenario)
            used = [int(sizes.sum()) for sizes in own]
            assert measured.bytes.sum(axis=1).tolist() == used, (name, scenario)


def test_no_copy_is_used_again_that_has_no_room(runs: list[Any]) -> None:
    """In an epoch, copies from earlier epochs serve no more bytes than the classes can hold."""
    for scenario, job, ran in runs:
        room = scenario.capacities()[:, 1:].sum()
        for name, (_, measured) in ran.items():
            assert measured.reused.max() <= min(room, job.sizes.sum()), (name, scenario)


def test_nopfs_is_no_slower_than_nothing(runs: list[Any]) -> None:
    for scenario, _, ran in runs:
        naive = ran["naive"][1].epoch_end[-1]
        assert ran["nopfs"][1].epoch_end[-1] <= naive * ROUNDING, scenario


def test_what_has_an_owner_is_read_once(runs: list[Any]) -> None:
    """A file without an owner is read from the file system at every use. Every other file is read
    from the file system at most once."""
    for scenario, job, ran in runs:
        uses = job.frequencies.sum(axis=0)
        for name in ("hash", "planned"):
            if name not in ran:
                continue
            decision, measured = ran[name]
            assert decision.owner is not None
            reads = np.where(decision.owner == PFS, uses, 1)
            assert measured.pfs_bytes.sum() <= int(reads @ job.sizes), (name, scenario)


def test_belady_hits_most_of_all_that_evict(runs: list[Any]) -> None:
    compared = 0
    for scenario, _, ran in runs:
        if scenario.dataset.distribution is None or scenario.dataset.distribution.std:
            continue  # only files of one size
        for best, others in EVICTING.items():
            for other in others:
                hits = [ran[name][1].reused.sum() for name in (best, other)]
                assert hits[0] >= hits[1], (other, scenario)
                compared += 1
    assert compared
