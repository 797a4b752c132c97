"""What the simulator says of the same nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.nodes.testbed import Dataset
from monarch_py.policies.named import make_policy
from monarch_py.policies.view import PFS, STAGING, Ints, Served, When
from monarch_py.simulator import Curve, NodeOverride, Rates, Scenario, SizeLaw, StorageClass
from monarch_py.simulator import Dataset as Files
from monarch_py.simulator.engine import measure
from monarch_py.simulator.jobs import job_of

# No limit [bytes/s].
FAST = 1e12
NODES, BATCH = 4, 4


def _scenario(
    dataset: Dataset, source: float, link: float, epochs: int, *overrides: NodeOverride
) -> Scenario:
    files = len(dataset.sizes)
    tier = int(dataset.bytes * 1.02 / NODES)
    fast = Curve.of({4: FAST})
    return Scenario(
        name="nodes",
        nodes=NODES,
        ranks_per_node=1,
        epochs=epochs,
        batch_per_rank=BATCH,
        drop_last=True,
        seed=1,
        dataset=Files(files, SizeLaw(dataset.bytes // files)),
        rates=Rates(compute=FAST, preprocess=FAST, network=link, pfs_link=FAST),
        pfs=Curve.of({1: source}),
        classes=(
            StorageClass("staging", dataset.bytes // 25, 4, fast, fast),
            StorageClass("tier", tier, 4, fast, fast),
        ),
        overrides=overrides,
    )


def later_epochs(dataset: Dataset, source: float, link: float, epochs: int) -> tuple[float, float]:
    """Seconds of all epochs but the first, by hash and by plan.  source, link : [bytes/s]"""
    scenario = _scenario(dataset, source, link, epochs)
    job = job_of(scenario)
    found = []
    for policy in (make_policy("hash"), make_policy("planned")):
        decision = replace(policy.decide(job), when=When.BEFORE)
        ends = measure(scenario, job, decision).epoch_end
        found.append(float(ends[-1] - ends[0]))
    return found[0], found[1]


def killed_epoch(dataset: Dataset, source: float, link: float) -> float:
    """Seconds of an epoch when one of the nodes has no daemon: what it held is read from the source
    by all, and everything by its own ranks."""
    gone = NodeOverride(nodes=(NODES - 1,), capacity_bytes={"tier": 0})
    scenario = _scenario(dataset, source, link, 5, gone)
    job = job_of(scenario)
    held = replace(make_policy("hash").decide(job), when=When.BEFORE)
    home = np.full(job.files, PFS, np.int32)
    home[held.copies.file] = held.copies.node

    def served(_: int, order: Ints) -> Served:
        holder = home[order.reshape(NODES, -1)]
        holder[-1] = PFS
        tier, unwritten = (
            np.full(holder.shape, level, np.int8) for level in (STAGING + 1, STAGING)
        )
        return Served(holder, tier, into=unwritten, down=unwritten)

    ends = measure(scenario, job, replace(held, served=served)).epoch_end
    return float(ends[-1] - ends[0]) / (len(ends) - 1)
