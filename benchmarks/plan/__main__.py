"""``python -m benchmarks.plan``: the time and memory that an access plan takes.

There are two training runs with torch's DistributedSampler: ImageNet-1k (1,281,167 files, 90
epochs, 16 nodes), and 14.2 million files on 1,024 nodes. For each run, the benchmark computes the
plan of one node (how often and when first the node uses each file, and the next use after every
access). It also computes which node should hold each file. In addition, it reproduces Fig. 3 of
NoPFS, for which the paper gives numbers. Each measurement runs in its own process. The memory of
the imports is not counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.numbers import Result, describe_machine, report
from monarch_py.plan import NEVER, Loader, Timeline, analyse, find_holders, next_uses
from monarch_py.plan.binomial import distribution
from monarch_py.plan.samplers import DistributedSampler, NumpySampler

MIB = 1 << 20


@dataclass(frozen=True)
class Training:
    """A training run, and the limits on its measurements.

    limits : the limits on the time to compute the plan of one node, and on the time to find the
        holders of all files [s]
    memory_limit : the limit on the memory of each measurement [bytes]
    """

    what: str
    files: int
    nodes: int
    limits: tuple[float, float]
    memory_limit: int
    epochs: int = 90
    batch: int = 256

    def timeline(self) -> Timeline:
        sampler = DistributedSampler(self.files, self.nodes, seed=20221)
        return Timeline.of(Loader(sampler, self.nodes, self.batch), self.epochs, self.nodes)


LARGE_FILES = 14_200_000
TRAININGS = {
    "imagenet": Training("ImageNet-1k, 16 nodes", 1_281_167, 16, (5, 15), 1 << 30),
    "large": Training(
        "14.2 M files, 1,024 nodes", LARGE_FILES, 1024, (120, 480), 8 * LARGE_FILES * 8
    ),
}


def own_plan(training: Training) -> dict[str, Any]:
    timeline = training.timeline()
    found = analyse(timeline, 0)
    again = sum(int(np.count_nonzero(next_ != NEVER)) for _, next_ in next_uses(timeline, 0))
    # Every access except the last one of each file has a next access.
    accesses, used = int(found.frequency.sum()), int(np.count_nonzero(found.frequency))
    assert again == accesses - used, "next uses are lost"
    return {"accesses": accesses, "files": used}


def holders(training: Training) -> dict[str, Any]:
    found = find_holders(training.timeline())
    share = np.bincount(found.nodes[:, 0], minlength=training.nodes)
    return {
        "files_a_node": [int(share.min()), int(share.max())],
        "mean_frequency_of_holders": float(found.counts.mean()),
    }


def expected_above(samples: int, epochs: int, nodes: int, delta: float) -> float:
    """Returns the expected number of samples that a node accesses more often than
    (1 + delta) * epochs / nodes times (NoPFS, section 3.1 and Fig. 3)."""
    threshold = floor((1 + delta) * epochs / nodes)
    return samples * float(distribution(epochs, nodes)[max(0, threshold + 1) :].sum())


def figure_3(training: Training) -> dict[str, Any]:
    sampler = NumpySampler(training.files, 42, method="shuffle")
    timeline = Timeline.of(Loader(sampler, training.nodes, 32), training.epochs, training.nodes)
    frequency = analyse(timeline, 0).frequency
    expected = expected_above(training.files, training.epochs, training.nodes, 0.8)
    seen = np.count_nonzero(frequency > 1.8 * training.epochs / training.nodes)
    return {"expected": round(expected), "seen": int(seen)}


MEASURED: dict[str, Callable[[Training], dict[str, Any]]] = {
    "own_plan": own_plan,
    "holders": holders,
    "figure_3": figure_3,
}


def memory(name: str) -> int:
    """Returns a size of this process's memory [bytes]. `name` is a field of /proc/self/status:
    VmRSS (the resident size) or VmHWM (its largest value so far)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def measure(what: str, training: Training) -> dict[str, Any]:
    before, started, used = memory("VmRSS"), time.perf_counter(), time.process_time()
    found = MEASURED[what](training)
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - used,
        "bytes": memory("VmHWM") - before,
        **found,
    }


def in_a_process(what: str, name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.plan", "--one", what, name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def results_of(what: str, training: Training, found: dict[str, Any]) -> list[Result]:
    if what == "figure_3":
        return [
            Result("expected", "NoPFS Fig. 3, expected samples", "", found["expected"], None),
            Result(
                "expected_off",
                "  difference from 31,635 (paper)",
                "",
                abs(found["expected"] - 31_635),
                0,
            ),
            Result("seen", "NoPFS Fig. 3, drawn samples", "", found["seen"], None),
            Result(
                "seen_off", "  difference from 31,863 (paper)", "", abs(found["seen"] - 31_863), 0
            ),
        ]
    limit = training.limits[what == "holders"]
    label = "time to find every file's holder" if what == "holders" else "time of a node's plan"
    return [
        Result(what, f"{training.what}: {label}", "s", found["seconds"], limit),
        Result(
            f"{what}_memory",
            "  memory beyond the imports",
            "MiB",
            found["bytes"] / MIB,
            training.memory_limit / MIB,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--only", choices=list(TRAININGS), help="measure only this training run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="default: standard output")
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "TRAINING"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], TRAININGS[args.one[1]])))
        return 0
    document: dict[str, Any] = {"benchmark": "plan", "machine": describe_machine(), "measured": {}}
    results: list[Result] = []
    for name in [args.only] if args.only else list(TRAININGS):
        for what in ["own_plan", "holders"] + ["figure_3"] * (name == "imagenet"):
            found = in_a_process(what, name)
            document["measured"][f"{name}_{what}"] = found
            results += results_of(what, TRAININGS[name], found)
    return 0 if report(document, results, args.json) else 1


if __name__ == "__main__":
    sys.exit(main())
