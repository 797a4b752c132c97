"""``python -m benchmarks.simulator.differences``: our simulator, compared with the published one.

The inputs are recorded runs of the simulator that the authors of NoPFS published. Monarch's
simulator and a re-creation of the authors' simulator (benchmarks/published) simulate each of these
runs. The authors' simulator deviates from its paper in some behaviours. In the re-creation, each of
these behaviours can be switched off. The re-creation runs with all behaviours on, and with all
behaviours off. For two sets of runs, it also runs with each single behaviour off.

If Monarch's simulator and the re-creation with all behaviours off give different results, the two
performance models differ. The benchmark measures the effects of the two largest differences between
the models, by removing one difference at a time. It writes the tables into docs/simulator.md. It
takes about eight minutes on one core; with --only stressS3, it takes half a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.numbers import describe_machine
from benchmarks.published import AS_PUBLISHED, POLICIES, Behaviour, simulate
from benchmarks.published.compare import NAMES, load_records, scenario_of
from benchmarks.simulator.figures import PAGE
from benchmarks.simulator.published import RECORDS
from benchmarks.simulator.tables import put_tables, table
from monarch_py.simulator.comparison import compare
from monarch_py.simulator.result import PLACES, Result
from monarch_py.simulator.scenario import Scenario

# For the runs of these sets, the re-creation also runs with one switch off at a time. There is one
# small set for each dataset.
SWITCHED = ("imagenet1k/stressS3", "mnist/paper")
# A switch is listed for a run in two cases. First, without the switch, the total time of the run
# changes by more than the fraction LEAST_TIME. Second, the share of the bytes from one place
# changes by more than LEAST_SHARE.
LEAST_TIME, LEAST_SHARE = 1e-3, 0.01


def numbers(result: Result | str) -> dict[str, Any] | None:
    """Returns the total time [s] of a run, the share of the bytes that came from each place, and
    the time before the first batch [s]. Returns None if the policy could not run."""
    if isinstance(result, str):
        return None
    return {
        "seconds": result.total_seconds,
        "share": result.share,
        "initial": result.initial_seconds,
    }


def published(scenario: Scenario, policy: str, off: Collection[Behaviour]) -> dict[str, Any] | None:
    return numbers(simulate(scenario, policy, frozenset(AS_PUBLISHED) - frozenset(off)))


def measure(record: dict[str, Any]) -> dict[str, Any]:
    """Simulates one recorded run in three ways: in the re-creation, in Monarch's simulator, and in
    the re-creation with all switches off. If the run belongs to a set in SWITCHED, the re-creation
    also simulates it with one switch off at a time."""
    scenario, policy = scenario_of(record), NAMES[record["policy"]]
    there, here = published(scenario, policy, ()), numbers(compare(scenario, [policy])[policy])
    run: dict[str, Any] = {"set": scenario.name, "policy": policy, "there": there, "here": here}
    if there is None:
        return run
    run["all_off"] = published(scenario, policy, AS_PUBLISHED)
    run["causes"] = []
    if scenario.name.startswith(SWITCHED):
        for each in Behaviour:
            other = published(scenario, policy, (each,))
            if other is not None and matters(there, other):
                change = other["seconds"] / there["seconds"] - 1
                run["causes"].append({"behaviour": each.name, "change": change, **other})
    return run


def single(scenario: Scenario) -> Scenario:
    """Returns the scenario with one thread for each storage class, so that threads share no rate.
    The rate of the class is then its rate for one thread."""
    classes = tuple(replace(each, threads=1) for each in scenario.classes)
    return replace(scenario, classes=classes)


@contextmanager
def staged_from_pfs(policy: str) -> Iterator[None]:
    """Inside the `with` block, the re-creation allows the policy to prefetch from the file system
    too, as Monarch's simulator does."""
    kept = POLICIES[policy]
    POLICIES[policy] = replace(kept, from_pfs=True)
    try:
        yield
    finally:
        POLICIES[policy] = kept


def models(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Simulates one recorded run in Monarch's simulator, and in the re-creation with all switches
    off. Yields the results for several cases. The first case is the run as recorded. Each further
    case removes one difference between the two models."""
    scenario, policy = scenario_of(record), NAMES[record["policy"]]
    cases = [("as recorded", scenario), ("one thread per class", single(scenario))]
    if policy == "deepio-ordered":
        cases += [("prefetched from the PFS", scenario)]
    for name, changed in cases:
        if name.startswith("prefetched"):
            with staged_from_pfs(policy):
                there = published(changed, policy, AS_PUBLISHED)
        else:
            there = published(changed, policy, AS_PUBLISHED)
        here = numbers(compare(changed, [policy])[policy])
        if there is not None and here is not None:
            yield {"policy": policy, "case": name, "there": there, "here": here}


def model_rows(found: Sequence[dict[str, Any]]) -> list[str]:
    rows = [
        [
            f"`{each['policy']}`",
            each["case"],
            *(f"{each[side]['seconds']:.4g}" for side in ("there", "here")),
            f"{each['here']['seconds'] / each['there']['seconds'] - 1:+.1%}",
            *(f"{each[side]['initial']:.3g}" for side in ("there", "here")),
        ]
        for each in found
    ]
    head = [
        "policy",
        "case",
        "all off [s]",
        "ours [s]",
        "ours / all off",
        "first fill there [s]",
        "here [s]",
    ]
    return table(head, rows)


def matters(there: dict[str, Any], other: dict[str, Any]) -> bool:
    shares = max(abs(there["share"][place] - other["share"][place]) for place in PLACES)
    return bool(abs(other["seconds"] / there["seconds"] - 1) > LEAST_TIME or shares > LEAST_SHARE)


def shares(run: dict[str, Any]) -> str:
    return " / ".join(f"{run['share'][place]:.2f}" for place in PLACES[1:])


def total_rows(runs: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for run in runs:
        if run["there"] is None or run["here"] is None:
            said = ["runs" if run[side] else "refused" for side in ("there", "here")]
            rows.append([run["set"], f"`{run['policy']}`", said[0], "", said[1], "", "", ""])
            continue
        there, off, here = run["there"], run["all_off"], run["here"]
        rows.append(
            [
                run["set"],
                f"`{run['policy']}`",
                f"{there['seconds']:.5g}",
                "refused" if off is None else f"{off['seconds']:.5g}",
                f"{here['seconds']:.5g}",
                f"{here['seconds'] / there['seconds'] - 1:+.1%}",
                shares(there),
                shares(here),
            ]
        )
    head = [
        "set",
        "policy",
        "published [s]",
        "all off [s]",
        "ours [s]",
        "ours / published",
        "published",
        "ours",
    ]
    return table(head, rows)


def cause_rows(runs: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for run in runs:
        worst = sorted(run.get("causes", []), key=lambda cause: -abs(cause["change"]))
        for cause in worst:
            rows.append(
                [
                    run["set"],
                    f"`{run['policy']}`",
                    f"`{cause['behaviour']}`",
                    f"{cause['change']:+.1%}",
                    shares(run["there"]),
                    shares(cause),
                ]
            )
    return table(["set", "policy", "switched off", "total", "shares with it", "without"], rows)


def tables(
    runs: Sequence[dict[str, Any]], modelled: Sequence[dict[str, Any]]
) -> dict[str, list[str]]:
    """Returns the lines of each table in the page. The keys are the names of the tables."""
    return {
        "differences": total_rows(runs),
        "causes": cause_rows(runs),
        "models": model_rows(modelled),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator.differences")
    parser.add_argument("--only", default="", help="runs whose set or policy contains this text")
    parser.add_argument("--json", type=Path, help="write everything here as JSON")
    parser.add_argument(
        "--page",
        type=Path,
        help=f"write the tables into this page [default: {PAGE}; none with --only]",
    )
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = []
    modelled: list[dict[str, Any]] = []
    for record in load_records(RECORDS):
        name = f"{record['dataset']}/{record['params']}/{NAMES[record['policy']]}"
        if arguments.only in name:
            print(name, file=sys.stderr, flush=True)
            runs.append(measure(record))
            if record["params"] == "stressS3":
                modelled += models(record)
    # With --only, the tables have only some of the runs. So write the page only if the user has
    # named a page.
    if page := arguments.page or (None if arguments.only else PAGE):
        put_tables(page, tables(runs, modelled))
    document = {"machine": describe_machine(), "runs": runs, "models": modelled}
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
