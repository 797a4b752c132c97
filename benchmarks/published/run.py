"""Simulates a policy: nodes request samples batch by batch, with a barrier after each batch."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.published import fills, orders
from benchmarks.published.behaviours import AS_PUBLISHED, Behaviour
from benchmarks.published.clients import ClientLog
from benchmarks.published.fills import CannotRunError
from benchmarks.published.holders import Holders
from benchmarks.published.inputs import LOCAL, PFS, REMOTE, Inputs, make_inputs
from benchmarks.published.nopfs import ClassPrefetchers
from benchmarks.published.staging import Staging
from monarch_py.errors import ConfigError
from monarch_py.simulator.result import IMBALANCE, Result
from monarch_py.simulator.scenario import Scenario

__all__ = ["POLICIES", "simulate"]

Fill = Callable[[Inputs, Holders, ClientLog], list[float]]
Order = Callable[[Inputs, Holders], None]

# How the rank got a sample that it requested. READY: the sample was in the staging buffer. WAITED:
# the rank waited until the sample was in the buffer. DIRECT: the sample was fetched without the
# buffer.
READY, WAITED, DIRECT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Policy:
    """The parts of a published policy.

    fill : a function that fills the caches. It returns, for each node, the time that passes before
        training can start, (nodes,) [s]
    order : a function that changes which samples the nodes read
    from_peers : whether samples may be prefetched into the staging buffer from other nodes
    from_pfs : whether samples may be prefetched into the staging buffer from the PFS
    is_staged : whether samples are prefetched into the staging buffer at all. Prefetching from the
        node's own caches is then always allowed
    is_perfect : whether every sample is available without any delay
    has_class_prefetchers : whether ClassPrefetchers (nopfs.py) fill the caches during training
    """

    fill: Fill | None = None
    order: Order | None = None
    from_peers: bool = False
    from_pfs: bool = False
    is_staged: bool = True
    is_perfect: bool = False
    has_class_prefetchers: bool = False


POLICIES = {
    "perfect": Policy(is_staged=False, is_perfect=True),
    "naive": Policy(is_staged=False),
    "staging-buffer": Policy(from_pfs=True),
    "deepio-ordered": Policy(fills.fill_deepio, from_peers=True),
    "deepio-opportunistic": Policy(fills.fill_deepio, orders.draw_deepio, from_peers=True),
    "parallel-staging": Policy(fills.fill_staged, orders.draw_staged),
    "lbann-dynamic": Policy(fills.fill_lbann_dynamic, from_peers=True),
    "lbann-preloading": Policy(fills.fill_lbann_preloading, from_peers=True),
    "locality-aware": Policy(fills.fill_shards, orders.exchange, from_peers=True, from_pfs=True),
    "nopfs": Policy(from_pfs=True, has_class_prefetchers=True),
}


def simulate(
    scenario: Scenario, policy: str, on: Collection[Behaviour] = AS_PUBLISHED
) -> Result | str:
    """Simulates a policy of POLICIES as the published simulator does.

    on : the deviations from the paper that the simulation reproduces. All other deviations of the
        published simulator are corrected

    Returns the result, or, if the policy cannot run in the scenario, a sentence that says why.
    Raises ConfigError for an unknown policy, and for a scenario with a feature that the published
    simulator lacks.
    """
    if policy not in POLICIES:
        raise ConfigError(
            f"policies: {policy!r} is not among the published ones; use " + ", ".join(POLICIES)
        )
    try:
        return Run(make_inputs(scenario, on), POLICIES[policy]).result()
    except CannotRunError as error:
        return str(error)


class Run:
    """One run of one policy, from the first fill to the last batch."""

    def __init__(self, inputs: Inputs, policy: Policy) -> None:
        self.inputs = inputs
        self.policy = policy
        self.speeds = inputs.speeds
        self.log = ClientLog(inputs.nodes, inputs.on)
        self.holders = Holders(inputs.nodes, inputs.files, inputs.speeds.remote, inputs.on)
        self.prefetchers: ClassPrefetchers | None = None
        stalls = [0.0] * inputs.nodes
        if policy.fill is not None:
            stalls = policy.fill(inputs, self.holders, self.log)
        if policy.order is not None:
            policy.order(inputs, self.holders)
        is_last = Behaviour.LAST_NODES_FIRST_FILL in inputs.on
        self.first_fill = stalls[-1] if is_last else max(stalls)
        without_peers = Behaviour.NOPFS_WITHOUT_PEERS in inputs.on
        from_peers = policy.has_class_prefetchers and not without_peers
        self.staging = Staging(
            inputs, self.holders, self.log, policy.from_peers or from_peers, policy.from_pfs
        )
        self.kinds = [bytearray(len(order)) for order in inputs.orders]
        self.stall = [0.0] * inputs.nodes
        self.is_freed_late = Behaviour.BATCH_FREED_LATE in inputs.on
        self.batch_begins = [0] * inputs.nodes
        self.sizes = self.staging.sizes
        self._begin()

    def _begin(self) -> None:
        """Simulates the prefetching that happens before the first request."""
        during = Behaviour.STAGING_DURING_FIRST_FILL in self.inputs.on
        now = 0.0 if during else self.first_fill
        if self.policy.has_class_prefetchers:
            self.prefetchers = ClassPrefetchers(self.inputs, self.holders, self.log)
        for node in range(self.inputs.nodes):
            if self.prefetchers is not None:
                self.prefetchers.fill(node)
            if self.policy.is_staged:
                self.staging.fill(node, now)
        if self.policy.is_perfect:
            for buffer in self.staging.buffers:
                buffer.ready = array("d", bytes(8 * len(buffer.order)))

    def result(self) -> Result:
        """Simulates all batches. Returns the result."""
        nodes, per_epoch = self.inputs.nodes, self.inputs.scenario.batches_per_epoch
        now, epoch_ends, imbalanced = self.first_fill, [], 0
        batches = len(self.inputs.starts[0]) - 1
        serve = self._in_turn if Behaviour.NODES_IN_TURN in self.inputs.on else self._by_time
        for batch in range(batches):
            begins = [starts[batch] for starts in self.inputs.starts]
            ends = [starts[batch + 1] for starts in self.inputs.starts]
            self.batch_begins = begins
            times = serve(begins, ends, now)
            slowest = max(times)
            busy = [times[n] - now for n in range(nodes) if ends[n] > begins[n]]
            imbalanced += max(busy) > IMBALANCE * min(busy)
            now = slowest
            if (batch + 1) % per_epoch == 0:
                epoch_ends.append(now)
        return self._summary(epoch_ends, imbalanced / batches)

    def _in_turn(self, begins: list[int], ends: list[int], now: float) -> list[float]:
        return [
            self._serve(node, begins[node], ends[node], now) for node in range(self.inputs.nodes)
        ]

    def _by_time(self, begins: list[int], ends: list[int], now: float) -> list[float]:
        times, places = [now] * self.inputs.nodes, list(begins)
        waiting = [(now, node) for node in range(self.inputs.nodes) if ends[node] > begins[node]]
        while waiting:
            time, node = heapq.heappop(waiting)
            times[node] = self._serve(node, places[node], places[node] + 1, time)
            places[node] += 1
            if places[node] < ends[node]:
                heapq.heappush(waiting, (times[node], node))
        return times

    def _serve(self, node: int, begin: int, end: int, now: float) -> float:
        """Simulates the requests of `node` for the samples [begin, end) in the node's order of
        reading. Returns the time [s] at which the node has processed these samples.

        now : the time of the first request [s]
        """
        buffer, sizes, compute = self.staging.buffers[node], self.sizes, self.speeds.compute
        order, ready, source = buffer.order, buffer.ready, buffer.source
        limit, log = self.batch_begins[node], self.log
        for place in range(begin, end):
            file = order[place]
            response = now
            if ready[place] > now:
                response = self._late(node, place, file, now)
            elif source[place] == PFS:
                log.read(node, now)
            buffer.asked = place + 1
            if not self.is_freed_late:
                limit = place + 1
            if buffer.freed < limit or self.prefetchers is not None:
                self._prefetch(node, limit, response)
            now = response + sizes[file] / compute
        return now

    def _prefetch(self, node: int, limit: int, now: float) -> None:
        """Simulates the prefetching that a request triggers. This prefetching fills the storage
        classes, and fills the room that the request frees in the staging buffer.

        limit : samples before this index are removed from the staging buffer
        """
        if self.prefetchers is not None and self.prefetchers.is_open[node]:
            self.prefetchers.fill(node)
        if self.staging.buffers[node].freed < limit:
            self.staging.free(node, limit)
            if self.policy.is_staged:
                self.staging.fill(node, now)

    def _late(self, node: int, place: int, file: int, now: float) -> float:
        """Returns the time [s] at which the node gets a sample that is not in the staging buffer at
        the time `now`. The node waits for the buffer, or fetches the sample directly, whichever is
        faster."""
        buffer, size = self.staging.buffers[node], self.sizes[file]
        speeds, holders = self.speeds, self.holders
        source, fetch = PFS, size / speeds.pfs[self.log.clients(now, node)]
        level = holders.level[node][file]
        if level and holders.since[node][file] <= now and size / speeds.local[level] < fetch:
            source, fetch = LOCAL, size / speeds.local[level]
        other = holders.elsewhere_now(node, file, now)
        if other >= 0:
            remote = size / speeds.remote[holders.level[other][file]]
            if remote < fetch:
                source, fetch = REMOTE, remote
        response = now + fetch + size / speeds.write
        staged = buffer.ready[place]
        if response < staged:
            buffer.source[place] = source
            self.kinds[node][place] = DIRECT
            if source == PFS:
                self.log.read(node, now)
        else:
            response = staged
            self.kinds[node][place] = WAITED
            if buffer.source[place] == PFS:
                self.log.read(node, staged)
        self.stall[node] += response - now
        return response

    def _summary(self, epoch_ends: list[float], imbalanced: float) -> Result:
        inputs, staging = self.inputs, self.staging
        sources = np.concatenate([np.frombuffer(b.source, np.uint8) for b in staging.buffers])
        kinds = np.concatenate([np.frombuffer(kind, np.uint8) for kind in self.kinds])
        sizes = inputs.sizes[np.concatenate(inputs.orders)]
        by_source = np.bincount(sources, sizes, minlength=4)
        by_kind = np.bincount(kinds, sizes, minlength=3) / sizes.sum()
        near = (kinds == READY) | ((kinds == DIRECT) & (sources == LOCAL))
        return Result(
            epoch_seconds=tuple(np.diff([0.0, *epoch_ends]).tolist()),
            stall_seconds=sum(self.stall) / inputs.nodes,
            bytes={
                "staging": round(by_source[0]),
                "local": round(by_source[LOCAL]),
                "remote": round(by_source[REMOTE]),
                "pfs": round(by_source[PFS]),
            },
            reuse_hit_ratio=float(np.mean((sources == LOCAL) & self._is_reuse())),
            ready_ratio=float(np.mean(near)),
            imbalanced_iterations=imbalanced,
            initial_seconds=self.first_fill,
            details={
                "ready": float(by_kind[READY]),
                "waited": float(by_kind[WAITED]),
                "direct": float(by_kind[DIRECT]),
                "samples": len(sources),
            },
        )

    def _is_reuse(self) -> npt.NDArray[np.bool_]:
        """Returns, for each read of each node, whether the node had read the same sample before.
        The reads of node 0 come first, then those of node 1, and so on."""
        reuses = []
        for order in self.inputs.orders:
            is_reuse = np.ones(len(order), bool)
            is_reuse[np.unique(order, return_index=True)[1]] = False
            reuses.append(is_reuse)
        return np.concatenate(reuses)
