"""Simulates the measured nodes with the same policy classes that the daemons use.

The simulated ranks read as reader.c does: the threads of a rank take the rank's files in order, and
do not compute. The ranks wait for each other only at the end of an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from benchmarks.nodes.testbed import Dataset, Layout
from monarch_py.daemon.nodes.nodes import UNIT
from monarch_py.daemon.nodes.remote_copies import PEER_THREADS
from monarch_py.daemon.plans.fetch_ahead import WINDOW_LEAVES
from monarch_py.policies.caches import hashed
from monarch_py.policies.nopfs.policy import planned
from monarch_py.policies.placement import slack_of
from monarch_py.policies.rendezvous import Keys
from monarch_py.policies.view import NO_FILE, PFS, STAGING, Decision, Ints, Job, Served, When
from monarch_py.simulator.engine import Measured, measure
from monarch_py.simulator.jobs import cluster_of
from monarch_py.simulator.result import PLACES
from monarch_py.simulator.scenario import Curve, NodeOverride, Scenario, StorageClass
from monarch_py.simulator.scenario import Dataset as Files
from monarch_py.simulator.scenario import Rates as SimulatedRates

# A rate that is so high that it is no limit [bytes/s].
FAST = 1e12
# For each rank, the files that it reads in one epoch.
Orders = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Rates:
    """Rates [bytes/s].

    source : the rate at which all nodes together read the source
    link : the rate of one node's link, in each direction
    tier : the rate at which all readers of a node together read its tier
    """

    source: float
    link: float
    tier: float = FAST


class Simulated(NamedTuple):
    """The time and bytes of one or several epochs, simulated or real.

    source : the number of bytes that the source has sent
    peers : the number of bytes that other nodes have sent
    """

    seconds: float
    source: float
    peers: float


@dataclass(frozen=True)
class Run:
    """A run on several nodes with one rank each.

    orders : for each epoch, the files that each rank reads
    hashes : for each file, the hash that determines the file's owner (the node that reads the file
        from the source for all others); None for arbitrary hashes
    gone : the nodes that have no daemon
    """

    dataset: Dataset
    layout: Layout
    orders: Sequence[Orders]
    rates: Rates
    hashes: Keys | None = None
    gone: tuple[int, ...] = ()

    def by_hash(self) -> list[Simulated]:
        """Simulates daemons that determine the owners of files by hash. These daemons do not know
        which files the ranks will read next. So nothing is prefetched before an epoch, and a
        reading thread requests its next file only when it has finished the previous one."""
        # The simulated staging buffer is as large as the dataset. So no thread ever waits for space
        # in the buffer.
        scenario = self._scenario(self.dataset.bytes, self.layout.threads)
        found = []
        for number, order in enumerate(self.orders):
            job = self._job(scenario, [order])
            decision = self._decided(job)
            if number:
                decision = replace(decision, when=When.BEFORE)
            found += _epochs(measure(replace(scenario, epochs=1), job, decision))
        return found

    def _decided(self, job: Job) -> Decision:
        decision = hashed(job, self.hashes)
        return self._without(job, decision) if self.gone else decision

    def _without(self, job: Job, decision: Decision) -> Decision:
        """Returns `decision`, changed for the nodes that have no daemon (`gone`). Files that these
        nodes would hold are read from the source by all nodes. The ranks on these nodes read every
        file from the source."""
        home = np.full(job.files, PFS, np.int32)
        home[decision.copies.file] = decision.copies.node
        home[np.isin(home, self.gone)] = PFS

        def served(_: int, order: Ints) -> Served:
            holder = np.where(order == NO_FILE, PFS, home[order]).reshape(job.cluster.nodes, -1)
            holder[list(self.gone)] = PFS
            tier, unwritten = (
                np.full(holder.shape, level, np.int8) for level in (STAGING + 1, STAGING)
            )
            return Served(holder.astype(np.int32), tier, into=unwritten, down=unwritten)

        return replace(decision, served=served)

    def by_plan(self) -> list[Simulated]:
        """Simulates daemons that follow a plan. The daemons fetch all files in the order in which
        the ranks use the files, and do not stop at the end of an epoch.

        A daemon's staging area holds only files that the node does not keep in its tier. In the
        simulator, all files pass through the staging buffer. So the simulated buffer must be larger
        than the staging area. The size of the buffer is the size of the staging area, divided by
        the share of the bytes that pass through the staging area (`_foreign`).
        """
        area = self.layout.staging - self.layout.staging // WINDOW_LEAVES
        scenario = self._scenario(area, PEER_THREADS)
        decision = planned(self._job(scenario, self.orders))
        through = min(self.dataset.bytes, area / max(1e-9, self._foreign(decision)))
        scenario = self._scenario(int(through), PEER_THREADS)
        return _epochs(measure(scenario, self._job(scenario, self.orders), decision))

    def _foreign(self, decision: Decision) -> float:
        """Returns for which share of all bytes read the reading rank's own node does not keep the
        file."""
        sizes = self.dataset.sizes
        kept = np.zeros((len(self.layout.tiers), len(sizes)), bool)
        kept[decision.copies.node, decision.copies.file] = True
        used, foreign = 0, 0
        for order in self.orders:
            for node, files in enumerate(order):
                used += int(sizes[files].sum())
                foreign += int(sizes[files][~kept[node, files]].sum())
        return foreign / used

    def _scenario(self, buffer: int, threads: int) -> Scenario:
        """Returns the scenario of this run for the simulator.

        buffer : size of each node's staging buffer [bytes]
        threads : number of threads on each node that fetch files
        """
        # A file uses up more of a tier's quota than its size: its size is rounded up to complete
        # blocks, and its name needs room too.
        counted = UNIT.rounded(self.dataset.sizes.astype(np.uint64)).sum()
        share = self.dataset.bytes / float(counted)
        tiers = [int(share * (quota - slack_of(quota))) for quota in self.layout.tiers]
        fast = Curve({threads: FAST})
        tier = Curve({threads: self.rates.tier})
        return Scenario(
            name="nodes",
            nodes=len(tiers),
            ranks_per_node=1,
            epochs=len(self.orders),
            batch_per_rank=1,
            drop_last=True,
            seed=0,
            dataset=Files(len(self.dataset.sizes)),
            rates=SimulatedRates(FAST, FAST, network=self.rates.link, pfs_link=FAST),
            pfs=Curve({1: self.rates.source}),
            classes=(
                StorageClass("staging", buffer, threads, fast, fast),
                StorageClass("tier", tiers[0], threads, tier, fast),
            ),
            overrides=tuple(
                NodeOverride((node,), capacity_bytes={"tier": room})
                for node, room in enumerate(tiers)
            ),
            links="fair",  # transfers share a link equally, similar to TCP
        )

    def _job(self, scenario: Scenario, orders: Sequence[Orders]) -> Job:
        """Returns a job in which the ranks read `orders`. Each epoch of the job is a single step,
        because the ranks wait for each other only at the end of an epoch."""
        width = max(len(files) for order in self.orders for files in order)
        made = np.full((len(orders), scenario.nodes, 1, width), NO_FILE, np.int32)
        for epoch, order in enumerate(orders):
            for node, files in enumerate(order):
                made[epoch, node, 0, : len(files)] = files
        return Job(
            sizes=self.dataset.sizes,
            cluster=cluster_of(scenario),
            epochs=len(orders),
            batch=width,
            orders=lambda epoch: made[epoch],
        )


def _epochs(run: Measured) -> list[Simulated]:
    """Returns the time and bytes of each epoch of a simulation. Does not count the bytes that
    filled the staging buffers before the first step."""
    ends = [run.first_step, *run.epoch_end.tolist()]
    peers = run.bytes[:, PLACES.index("remote")].tolist()
    source = run.pfs_bytes.tolist()
    if run.first_step:
        source = run.bytes[:, PLACES.index("pfs")].tolist()
    return [
        Simulated(end - begin, given, came)
        for (begin, end), given, came in zip(pairwise(ends), source, peers, strict=True)
    ]


def later_epochs(
    dataset: Dataset, layout: Layout, rates: Rates, epochs: int
) -> tuple[float, float]:
    """Returns two times [s]: with owners by hash, and with daemons that follow a plan. Each time is
    the total time of all epochs except the first one."""
    orders = [dataset.shares(len(layout.tiers), number) for number in range(epochs)]
    run = Run(dataset, layout, orders, rates)
    hashed, planned = (
        sum(e.seconds for e in found[1:]) for found in (run.by_hash(), run.by_plan())
    )
    return hashed, planned


def killed_epoch(dataset: Dataset, layout: Layout, rates: Rates) -> float:
    """Returns the time [s] of an epoch in which the last node has no daemon."""
    nodes = len(layout.tiers)
    orders = [dataset.shares(nodes, number) for number in range(3)]
    return Run(dataset, layout, orders, rates, gone=(nodes - 1,)).by_hash()[-1].seconds
