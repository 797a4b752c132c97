"""``python -m benchmarks.nodes.scale``: the memory and time that large numbers of nodes need.

The benchmark measures the memory and the CPU time per file. It then simulates epochs on 1 to 4096
nodes, with the policy classes that the daemons use. The size of the dataset is proportional to the
number of nodes. The results are drawn in a picture in docs/img.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from benchmarks.numbers import Result, describe_machine, report
from monarch_py.config.load import load_config
from monarch_py.native import lib
from monarch_py.plan import Loader, Plan, PlanPart, analyse
from monarch_py.plan.index import Index
from monarch_py.plan.samplers import DistributedSampler
from monarch_py.policies.named import POLICIES
from monarch_py.policies.rendezvous import file_keys, owners
from monarch_py.policies.view import When
from monarch_py.scan.record import record_sources
from monarch_py.simulator.engine import Measured, measure
from monarch_py.simulator.jobs import job_of
from monarch_py.simulator.result import PLACES
from monarch_py.simulator.scenario import (
    Curve,
    Dataset,
    Rates,
    Scenario,
    SizeDistribution,
    StorageClass,
)

PICTURE = Path("docs/img/scale.png")
NODES = (1, 4, 16, 64, 256, 1024, 4096)
MIB = 1 << 20
# FILES is the number of files that a node reads in an epoch, SIZE is the size of a file [bytes],
# and BATCH is the number of files in a node's batch.
FILES, SIZE, BATCH = 8, 32 * MIB, 4
# Rates [bytes/s]: of a node's training, of a node's link, of the file system for one client, and of
# the file system for all clients together.
COMPUTE, LINK, ONE_CLIENT, ALL_CLIENTS = 1e9, 3e9, 2e9, 50e9
LABELS = {"hash": "hash", "plan": "plan, 5 epochs"}
COMPARED = {"source only": "staging-buffer", "hash": "hash", "plan": "planned"}


# --- constants ----------------------------------------------------------------------------------


def constants(files: int, nodes: int) -> list[Result]:
    """Measures the memory and CPU time per file. There are `files` files, 1,000 in each directory,
    and `nodes` nodes."""
    names = [f"train/n{number // 1000:08d}/{number:08d}.JPEG" for number in range(files)]
    pool = sum(len(name) + 1 for name in names)
    catalog = lib.monarch_catalog_bytes(files, pool) / files
    sizes = np.full(files, 110_000, np.int64)
    began = time.process_time()
    owners(file_keys(files), sizes, np.full(nodes, files * 120_000 // nodes, np.int64))
    owning = (time.process_time() - began) / files / nodes
    sampler = DistributedSampler(files, nodes, seed=1)
    index = Index.of("files", Path("/dataset"), names, sizes)
    plan = Plan((index,), (PlanPart("training", 0, Loader(sampler, nodes, 32)),), 90, nodes)
    with tempfile.TemporaryDirectory() as place:
        plan.save(Path(place, "plan.npz"))
        plan_bytes = Path(place, "plan.npz").stat().st_size / files
    began = time.process_time()
    analyse(plan.timeline(), 0)
    analysing = (time.process_time() - began) / files / 90
    return [
        Result("catalog", "size of the catalog in shared memory", "B/file", catalog, None),
        Result("told", "what a scan sends to each node", "B/file", told(files // 10), None),
        Result(
            "owners", "CPU time to find owners by hash, per file and node", "ns", owning * 1e9, None
        ),
        Result("plan", "size of the plan's file", "B/file", plan_bytes, None),
        Result(
            "drawn",
            "CPU time to analyse a node's accesses, per file and epoch",
            "ns",
            analysing * 1e9,
            None,
        ),
    ]


def told(files: int) -> float:
    """Returns how many bytes per file the scanning node sends to each other node."""
    with tempfile.TemporaryDirectory() as place:
        source, tier = Path(place, "source"), Path(place, "tier")
        tier.mkdir()
        for number in range(files):
            path = source / f"train/n{number // 1000:08d}/{number:08d}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * (number * 2654435761 % 4096))
        hierarchy = [{"mount_point": str(tier), "max_storage_quota": MIB}]
        config = Path(place, "tiers.yaml")
        config.write_text(yaml.safe_dump({"sources": [str(source)], "hierarchy": hierarchy}))
        return len(record_sources(load_config(config))) / files


# --- curves -------------------------------------------------------------------------------------


def scenario(nodes: int, epochs: int) -> Scenario:
    fast = Curve({4: 1e11})
    clients = {1: ONE_CLIENT, max(2, int(ALL_CLIENTS / ONE_CLIENT)): ALL_CLIENTS}
    room = int(FILES * SIZE * 1.05)
    return Scenario(
        name=f"{nodes} nodes",
        nodes=nodes,
        ranks_per_node=1,
        epochs=epochs,
        batch_per_rank=BATCH,
        drop_last=True,
        seed=1,
        dataset=Dataset(FILES * nodes, SizeDistribution(SIZE)),
        rates=Rates(compute=COMPUTE, preprocess=1e12, network=LINK, pfs_link=LINK),
        pfs=Curve(clients),
        classes=(
            StorageClass("staging", 2 * BATCH * SIZE, 4, fast, fast),
            StorageClass("tier", room, 4, fast, fast),
        ),
    )


def simulated(nodes: int, epochs: int, name: str, *, held: bool) -> Measured:
    """Simulates a job.

    name : the policy, a key of COMPARED
    held : whether the copies exist before the first step, so that no epoch has to make them
    """
    made = scenario(nodes, epochs)
    job = job_of(made)
    decision = POLICIES[COMPARED[name]](job)
    if held and len(decision.copies.node):
        decision = replace(decision, when=When.BEFORE)
    return measure(made, job, decision)


def curves() -> dict[str, dict[str, list[float]]]:
    """Returns two dictionaries, each with a list for each policy. In `seconds`, a value is the mean
    time of an epoch after the first one [s]. In `local`, a value is the share of the bytes that
    come from the node's own copies. A list has one value for each number of nodes in NODES. Some
    lists end earlier, because jobs with more nodes would take too long to simulate."""
    seconds: dict[str, list[float]] = {name: [] for name in COMPARED}
    local: dict[str, list[float]] = {label: [] for label in LABELS.values()}
    for nodes in NODES:
        for name, times in seconds.items():
            began = time.monotonic()
            run = simulated(nodes, 5, name, held=True)
            times.append(float(run.epoch_end[-1] - run.epoch_end[0]) / 4)
            if name != "source only":
                local[LABELS[name]].append(share(run))
            took = time.monotonic() - began
            print(
                f"  {nodes} nodes, {name}: epoch of {times[-1]:.2f} s, simulated in {took:.1f} s",
                file=sys.stderr,
            )
        for epochs in (20, 90):
            # Leave out larger jobs, because their simulation would take minutes.
            if nodes * epochs <= 24_000:
                run = simulated(nodes, epochs, "plan", held=True)
                local.setdefault(f"plan, {epochs} epochs", []).append(share(run))
    return {"seconds": seconds, "local": local}


def share(run: Measured) -> float:
    """Returns the share of the bytes that come from the nodes' own copies in all epochs except the
    first one."""
    later = run.bytes[1:].sum(axis=0)
    return float(later[PLACES.index("local")] / later.sum())


def draw(found: dict[str, dict[str, list[float]]], to: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, values in found["seconds"].items():
        left.plot(NODES[: len(values)], values, marker="o", label=name)
    left.axhline(FILES * SIZE / COMPUTE, color="0.6", linestyle=":", label="compute alone")
    left.set(xscale="log", yscale="log", xlabel="nodes", ylabel="time of a later epoch [s]")
    for name, values in found["local"].items():
        right.plot(NODES[: len(values)], values, marker="o", label=name)
    right.set(
        xscale="log", xlabel="nodes", ylabel="bytes from own copies / all bytes", ylim=(0, 1.02)
    )
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(to, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes.scale", description=__doc__)
    parser.add_argument("--files", type=int, default=100_000, help="for the constants")
    parser.add_argument("--plot", type=Path, default=PICTURE)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = constants(args.files, 64)
    found = curves()
    draw(found, args.plot)
    for kind, by_name in found.items():
        for name, values in by_name.items():
            unit, what = "", "bytes from a node's own copies / all bytes"
            if kind == "seconds":
                unit, what = "s", "time of a later epoch"
            for nodes, value in zip(NODES, values, strict=False):
                results.append(
                    Result(
                        f"{kind}_{name}_{nodes}",
                        f"{name}, {nodes} nodes: {what}",
                        unit,
                        value,
                        None,
                    )
                )
    report({"benchmark": "scale", "machine": describe_machine()}, results, args.json)


if __name__ == "__main__":
    main()
