"""``python -m benchmarks.simulator.figures``: the papers' figures, from the shipped scenarios.

Every scenario is simulated under all relevant policies. The results are drawn in the style of
figure 8 of NoPFS (docs/img/simulator_*.png), and written as tables into docs/simulator.md. For
datasets of many files, the benchmark divides the number of files and the capacities by a factor,
and multiplies the simulated times by the same factor. But the staging buffer always has room for at
least four batches. The benchmark takes about seven minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.numbers import describe_machine
from benchmarks.simulator.tables import put_tables, table
from monarch_py.policies.named import NAMES
from monarch_py.simulator.comparison import compare
from monarch_py.simulator.keys import load_scenario, shipped_scenarios
from monarch_py.simulator.plot import draw
from monarch_py.simulator.result import to_document
from monarch_py.simulator.scenario import Curve, Scenario, StorageClass
from monarch_py.util.units import GIB

IMAGES, PAGE = Path("docs/img"), Path("docs/simulator.md")
# A reduced staging buffer has room for at least this many batches of its node. With a smaller
# buffer, prefetching would stop.
BATCHES_STAGED = 4
# The policies to which Lobster and SOLAR are compared. NoPFS is compared to all policies.
CACHING = (
    "perfect",
    "naive",
    "staging-buffer",
    "first-fit",
    "hash",
    "lru",
    "lru-shared",
    "belady",
    "belady-shared",
    "nopfs",
    "nopfs-literal",
    "planned",
    "lobster",
    "solar",
    "solar-reordered",
)
# The policies of CACHING to which Lobster is compared. SOLAR's policies are left out, because they
# change which rank reads a sample, and Lobster does not.
FIXED = CACHING[:-2]
# The policies in the table for several nodes that share one source.
TOGETHER = ("staging-buffer", "first-fit", "hash", "nopfs", "planned")
# The sizes of each class and of the staging buffer in figure 9 of NoPFS [GiB].
RAM, SSD, STAGING = (0, 32, 64, 128, 256, 512), (0, 128, 256, 512, 1024, 2048), (1, 2, 4, 5)


@dataclass(frozen=True)
class Case:
    """A simulation for a table.

    scenario : the scenario's name
    group : the name of the table that contains the results
    part : the number of files and the capacities are divided by this number
    slower : the file system's rates are divided by this number
    epochs : the number of epochs; 0 for the number in the scenario
    """

    scenario: str
    group: str
    part: int = 1
    slower: int = 1
    policies: tuple[str, ...] = NAMES
    epochs: int = 0

    @property
    def name(self) -> str:
        slower = f"_pfs{self.slower}" if self.slower > 1 else ""
        return self.scenario + slower + (f"_{self.epochs}epochs" if self.epochs else "")


CASES = (
    Case("four_nodes", "nodes", policies=TOGETHER),
    Case("four_nodes", "nodes", policies=TOGETHER, epochs=90),
    Case("nopfs_fig8_1", "nopfs"),
    Case("nopfs_fig8_2", "nopfs", 10),
    Case("nopfs_fig8_3", "nopfs", 100),
    Case("nopfs_fig8_4", "nopfs"),
    Case("nopfs_fig9", "nopfs", 100),
    Case("nopfs_fig9", "nopfs", 100, 4),
    Case("lobster_5_3", "lobster", 20, policies=FIXED),
    Case("lobster_5_3", "lobster", 20, 4, FIXED),
    Case("lobster_5_5", "lobster", 100, policies=FIXED),
    Case("lobster_5_5", "lobster", 100, 4, FIXED),
    Case("solar_fig9_low", "solar", 40, policies=CACHING),
    Case("solar_fig9_low", "solar", 40, 8, CACHING),
    Case("solar_fig9_medium", "solar", 40, policies=CACHING),
    Case("solar_fig9_medium", "solar", 40, 8, CACHING),
    Case("solar_fig9_high", "solar", 40, policies=CACHING),
    Case("solar_fig9_high", "solar", 40, 8, CACHING),
    Case("solar_fig12", "solar-more", 80, policies=CACHING),
    Case("solar_fig12", "solar-more", 80, 8, CACHING),
    Case("solar_fig13", "solar-more", policies=CACHING),
    Case("solar_fig13", "solar-more", 1, 8, CACHING),
    Case("solar_fig16", "solar-more", 40, policies=CACHING),
    Case("solar_fig16", "solar-more", 40, 8, CACHING),
)


def divided(scenario: Scenario, part: int, slower: int = 1) -> Scenario:
    """Returns the scenario with the number of files and the capacities divided by `part`, and with
    the file system's rates divided by `slower`."""
    mean = float(scenario.sizes().mean()) if part > 1 else 0.0
    least = BATCHES_STAGED * scenario.batch_per_rank * scenario.ranks_per_node * mean
    classes = [
        replace(storage, capacity_bytes=max(1, storage.capacity_bytes // part))
        for storage in scenario.classes
    ]
    classes[0] = replace(classes[0], capacity_bytes=max(classes[0].capacity_bytes, int(least)))
    pfs = Curve({number: rate / slower for number, rate in scenario.pfs.points.items()})
    dataset = replace(scenario.dataset, files=scenario.dataset.files // part)
    return replace(scenario, dataset=dataset, classes=tuple(classes), pfs=pfs)


def scaled(document: dict[str, Any], part: int) -> dict[str, Any]:
    """Returns the document with its times multiplied by `part`."""
    for result in document["policies"].values():
        for key in ("total_seconds", "initial_seconds", "stall_seconds"):
            if key in result:
                result[key] *= part
        result["epoch_seconds"] = [part * each for each in result.get("epoch_seconds", [])]
    return document


def run(case: Case) -> dict[str, Any]:
    scenario = load_scenario(shipped_scenarios()[case.scenario])
    title = scenario.name
    if case.slower > 1:
        title += f"\nfile system at 1/{case.slower} of its rates"
    if case.part > 1:
        title += f"\n1/{case.part} of the files and capacities simulated; times scaled to all files"
    if case.epochs:
        scenario = replace(scenario, epochs=case.epochs)
    results = compare(divided(scenario, case.part, case.slower), case.policies)
    document = to_document(title, scenario.assumptions, results)
    return scaled(document, case.part) | {"part": case.part, "slower": case.slower}


def machines(scenario: Scenario) -> Iterator[tuple[str, tuple[StorageClass, ...]]]:
    """Yields the name and the storage classes of each machine in NoPFS's figure 9."""
    staging, ram, ssd = scenario.classes
    for r in RAM:
        for s in SSD:
            sized = ((ram, r), (ssd, s))
            kept = [replace(each, capacity_bytes=n * GIB) for each, n in sized if n]
            yield f"{r}/{s}", (staging, *kept)
    for n in STAGING:
        yield f"staging {n}", (replace(staging, capacity_bytes=n * GIB), ram, ssd)


def grid(part: int, slower: int) -> dict[str, Any]:
    """Simulates NoPFS on the machines of figure 9 in the NoPFS paper. In the returned document, the
    field `policies` maps the name of each machine to a result. In other documents, this field maps
    the name of each policy to a result."""
    scenario = load_scenario(shipped_scenarios()["nopfs_fig9"])
    results = {}
    for name, classes in machines(scenario):
        machine = divided(replace(scenario, classes=classes), part, slower)
        results[name] = compare(machine, ["nopfs"])["nopfs"]
    title = "NoPFS fig. 9: GiB of ram/ssd on each of 4 nodes, policy nopfs"
    if slower > 1:
        title += f"\nfile system at 1/{slower} of its rates"
    title += f"\n1/{part} of the files and capacities simulated; times scaled to all files"
    return scaled(to_document(title, (), results), part) | {"part": part, "slower": slower}


def times(cases: Sequence[tuple[str, dict[str, Any]]], policies: Sequence[str]) -> list[str]:
    """Returns a table of total times with a row for each policy and a column for each case. The row
    of the policy `perfect` shows seconds. The other rows show times relative to `perfect`."""

    def cell(document: dict[str, Any], policy: str) -> str:
        result = document["policies"].get(policy, {"unsupported": ""})
        if "unsupported" in result:
            return "-"
        seconds: float = result["total_seconds"]
        if policy == "perfect":
            return f"{seconds:,.0f} s" if seconds >= 1000 else f"{seconds:.4g} s"
        return f"{seconds / document['policies']['perfect']['total_seconds']:.2f}"

    rows = [[f"`{p}`", *(cell(document, p) for _, document in cases)] for p in policies]
    return table(["", *(name for name, _ in cases)], rows)


def loads(cases: Sequence[tuple[str, dict[str, Any]]], policies: Sequence[str]) -> list[str]:
    """Returns a table with a row for each policy and a column for each case. A cell shows a ratio
    for all epochs except the first one: the bytes read from the file system, divided by the bytes
    that the ranks use."""

    def cell(document: dict[str, Any], policy: str) -> str:
        result = document["policies"][policy]
        if "unsupported" in result:
            return "-"
        details = result["details"]
        used = sum(sum(each.values()) for each in details["epoch_bytes"][1:])
        return f"{sum(details['epoch_bytes_from_pfs'][1:]) / used:.3f}"

    rows = [[f"`{p}`", *(cell(document, p) for _, document in cases)] for p in policies]
    return table(["", *(name for name, _ in cases)], rows)


def together(cases: Sequence[tuple[str, dict[str, Any]]], policies: Sequence[str]) -> list[str]:
    """Returns a table with a row for each policy. Each case has these columns: the time [s] of the
    first epoch, the mean time [s] of a later epoch, the speed-up of later epochs relative to the
    policy in the first row, the share of bytes from other nodes, and the bytes from the source
    relative to the dataset."""
    rows = []
    for policy in policies:
        row = [f"`{policy}`"]
        for _, document in cases:
            result, base = (document["policies"][each] for each in (policy, policies[0]))
            later, slowest = (np.mean(each["epoch_seconds"][1:]) for each in (result, base))
            epoch = sum(result["bytes"].values()) / len(result["epoch_seconds"])
            row += [
                f"{result['epoch_seconds'][0]:.1f}",
                f"{later:.2f}",
                f"{slowest / later:.2f}",
                f"{result['share']['remote']:.3f}",
                f"{result['details']['bytes_from_pfs'] / epoch:.2f}",
            ]
        rows.append(row)
    head = [
        f"{name}: {what}"
        for name, document in cases
        for what in ("first epoch [s]", "later [s]", "times as fast", "remote", "source / dataset")
    ]
    return table(["", *head], rows)


def grid_rows(document: dict[str, Any]) -> list[str]:
    rows = [
        [
            f"{r} GiB",
            *(f"{document['policies'][f'{r}/{s}']['total_seconds']:,.5g}" for s in SSD),
        ]
        for r in RAM
    ]
    return table(["ram \\ ssd", *(f"{s} GiB" for s in SSD)], rows)


def tables(documents: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Returns a dictionary for `put_tables`. It maps the name of each table to the table's
    lines."""
    made = {}
    for group in dict.fromkeys(case.group for case in CASES):
        cases = [case for case in CASES if case.group == group and case.name in documents]
        if cases:
            columns = [(f"`{case.name}`", documents[case.name]) for case in cases]
            if group == "nodes":
                epochs = [
                    len(next(iter(d["policies"].values()))["epoch_seconds"]) for _, d in columns
                ]
                named = [f"{n} epochs" for n in epochs]
                made[group] = together(
                    list(zip(named, (d for _, d in columns), strict=True)), cases[0].policies
                )
                continue
            made[group] = times(columns, cases[0].policies)
            as_shipped = [
                column for case, column in zip(cases, columns, strict=True) if case.slower == 1
            ]
            made[f"{group}-loads"] = loads(as_shipped, cases[0].policies[1:])
    if (name := "nopfs_fig9_grid4") in documents:
        made[name] = grid_rows(documents[name])
    return made


def is_drawn(case: Case) -> bool:
    """Returns whether there is a picture of the case. Some cases exist twice, the second time with
    a slower file system. Then only the second one has a picture, because all bars of the first one
    would have the same height."""
    slower = any(c.scenario == case.scenario and c.slower > 1 for c in CASES)
    return not case.epochs and (case.slower > 1 or not slower)


def shown(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the document with only some of the machines of figure 9, because a picture has no
    room for all of them."""
    kept = {
        name: result
        for name, result in document["policies"].items()
        if name.partition("/")[2] in ("0", "512", "2048")
    }
    kept = dict(sorted(kept.items(), key=lambda item: int(item[0].partition("/")[2])))
    return document | {"policies": kept}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator.figures")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--json", type=Path, help="where everything goes as JSON")
    parser.add_argument(
        "--page",
        type=Path,
        help=f"write the tables into this page [default: {PAGE}; none with --only]",
    )
    parser.add_argument("--images", type=Path, default=IMAGES, help="where the pictures go")
    arguments = parser.parse_args()
    documents = {}
    for case in CASES:
        if arguments.only in case.name:
            print(case.name, file=sys.stderr, flush=True)
            documents[case.name] = run(case)
            if is_drawn(case):
                draw(documents[case.name], arguments.images / f"simulator_{case.name}.png")
    for slower in (1, 4):
        if arguments.only in (name := f"nopfs_fig9_grid{slower}"):
            print(name, file=sys.stderr, flush=True)
            documents[name] = grid(200, slower)
            if slower > 1:
                draw(shown(documents[name]), arguments.images / f"simulator_{name}.png")
    # With --only, the tables have only some of the cases. So write the page only if the user has
    # named a page.
    if page := arguments.page or (None if arguments.only else PAGE):
        put_tables(page, tables(documents))
    if arguments.json:
        document = {"machine": describe_machine(), "cases": documents}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
