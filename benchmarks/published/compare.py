"""Compares simulations with recorded outputs of the authors' simulator.

A recorded run is a JSON object. It has a ``policy`` (the name in the authors' script), ``inputs``,
and the outputs ``run_time_s``, ``epoch_end_s``, ``share_bytes_by_source``, ``stall_s_mean_node``.
In the inputs, sizes are in MiB and rates in MiB/s, although the names of the fields contain "MB".
tests/simulator/reference/README.md describes the origin of the recorded runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.published.behaviours import AS_PUBLISHED, Behaviour
from benchmarks.published.run import simulate
from monarch_py.simulator.result import Result
from monarch_py.simulator.scenario import (
    Curve,
    Dataset,
    Rates,
    Scenario,
    SizeDistribution,
    StorageClass,
)
from monarch_py.util.units import MIB

__all__ = ["NAMES", "Difference", "compare", "load_records", "scenario_of"]

# The authors' name of each policy -> the policy's name in POLICIES (run.py).
NAMES = {
    "Lower Bound": "perfect",
    "Naive": "naive",
    "Staging Buffer": "staging-buffer",
    "DeepIO (Ord.)": "deepio-ordered",
    "DeepIO (Opp.)": "deepio-opportunistic",
    "Parallel Staging": "parallel-staging",
    "LBANN (Dynamic)": "lbann-dynamic",
    "LBANN (Preloading)": "lbann-preloading",
    "Locality-Aware": "locality-aware",
    "HDMLP": "nopfs",
}
_PLACES = {"none/perfect": "staging", "local": "local", "remote": "remote", "pfs": "pfs"}
_CLASSES = ("staging", "ram", "ssd")


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between a simulated run and the recorded run.

    run : the name of the run
    total : relative difference of the total time
    epochs : the largest relative difference of the time of one epoch
    shares : the largest absolute difference of a share of the bytes; there is one share for each
        place from which bytes come
    stall : absolute difference of the mean time that a node waits [s]
    seconds : the simulated total time, and the recorded total time [s]
    was_supported : whether the recorded run has a total time
    is_supported : whether the policy could run in this simulation
    """

    run: str
    total: float
    epochs: float
    shares: float
    stall: float
    seconds: tuple[float, float]
    was_supported: bool
    is_supported: bool


def load_records(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the recorded runs of a file. The file stores equal inputs only one time, in a list.
    A run in the file contains the index of its inputs in this list."""
    document = json.loads(Path(path).read_text())
    return [{**run, "inputs": document["inputs"][run["inputs"]]} for run in document["runs"]]


def scenario_of(record: Mapping[str, Any]) -> Scenario:
    """Returns the scenario of a recorded run."""
    inputs = record["inputs"]
    classes = tuple(
        StorageClass(name, int(inputs["capacity_MB"][key] * MIB), threads, curve, curve)
        for name, (key, threads) in zip(_CLASSES, inputs["prefetch_threads"].items(), strict=True)
        for curve in [_curve(inputs["storage_classes_read_MBps"][key])]
    )
    distribution = SizeDistribution(
        inputs["mu_MB"] * MIB, inputs["sigma_MB"] * MIB, inputs["min_MB"] * MIB
    )
    rates = (inputs[name] * MIB for name in ("c", "beta", "b_c", "b_fs"))
    return Scenario(
        name=f"{record['dataset']}/{record['params']}/{inputs['E']} epochs",
        nodes=inputs["N"],
        ranks_per_node=1,
        epochs=inputs["E"],
        batch_per_rank=inputs["batch_per_worker"],
        drop_last=inputs["drop_last"],
        seed=inputs["seed"],
        dataset=Dataset(inputs["F"], distribution),
        rates=Rates(*rates),
        pfs=_curve(inputs["pfs_t"]),
        classes=classes,
    )


def _curve(points: Mapping[str, float]) -> Curve:
    return Curve({int(number): rate * MIB for number, rate in points.items()})


def compare(
    records: Sequence[Mapping[str, Any]], on: Collection[Behaviour] = AS_PUBLISHED
) -> list[Difference]:
    """Simulates every recorded run. Returns the differences between the results and the records.

    on : the deviations of the published simulator that the simulation reproduces
    """
    return [_difference(record, on) for record in records]


def _difference(record: Mapping[str, Any], on: Collection[Behaviour]) -> Difference:
    scenario, policy = scenario_of(record), NAMES[record["policy"]]
    name = f"{scenario.name}/{policy}"
    result = simulate(scenario, policy, on)
    recorded = record.get("run_time_s")
    if recorded is None or not isinstance(result, Result):
        seconds = result.total_seconds if isinstance(result, Result) else 0.0
        is_here = isinstance(result, Result)
        return Difference(
            name, 0, 0, 0, 0, (seconds, recorded or 0.0), recorded is not None, is_here
        )
    ends = [0.0, *record["epoch_end_s"]]
    epochs = [
        abs(here / (end - begin) - 1)
        for here, begin, end in zip(result.epoch_seconds, ends[:-1], ends[1:], strict=True)
    ]
    shares = [
        abs(result.share[place] - record["share_bytes_by_source"][theirs])
        for theirs, place in _PLACES.items()
    ]
    total = abs(result.total_seconds / recorded - 1)
    stall = abs(result.stall_seconds - record["stall_s_mean_node"])
    seconds_both = (result.total_seconds, recorded)
    return Difference(name, total, max(epochs), max(shares), stall, seconds_both, True, True)
