"""``python -m benchmarks.simulator.published``: compares a re-creation with the original simulator.

The original is the simulator that the authors of NoPFS published. The benchmark simulates every
recorded run of the original with the re-creation, each run in a process of its own. It reports how
much total times, epoch times, shares of bytes and stalls differ from the record. It also reports
the CPU time of an access, and the memory, of both simulators.

The original deviates from its paper in some behaviours, which the re-creation reproduces
(benchmarks/published/behaviours.py). To show their effects, ``--switches`` also simulates every run
with each single behaviour switched off, and with all behaviours off. All runs take about three
minutes on one core; ``--only stressS3`` takes seconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.numbers import describe_machine
from benchmarks.published import AS_PUBLISHED, Behaviour
from benchmarks.published.compare import compare, load_records

RECORDS = Path("tests/simulator/reference/nopfs_simulator.json")
# How much a simulated run may differ from the recorded run: relative for times, absolute for
# shares.
TIME_LIMIT, SHARE_LIMIT = 0.02, 0.01


def measure(task: tuple[dict[str, Any], Collection[Behaviour]]) -> dict[str, Any]:
    """Simulates one recorded run. Returns the differences from the record, and the costs of the
    simulation. The memory [bytes] includes the interpreter and its imports.

    task : the recorded run, and the behaviours that are switched on
    """
    record, on = task
    begun = time.process_time()
    (difference,) = compare([record], on)
    cpu = time.process_time() - begun
    requests = record.get("requests")
    return {
        **asdict(difference),
        "met": difference.was_supported == difference.is_supported
        and max(difference.total, difference.epochs) <= TIME_LIMIT
        and difference.shares <= SHARE_LIMIT,
        "cpu_seconds_per_million": cpu / requests * 1e6 if requests else None,
        "recorded_cpu_seconds_per_million": record["sim_cpu_s"] / requests * 1e6
        if requests
        else None,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "recorded_peak_bytes": int(record.get("sim_maxrss_MB", 0) * 2**20),
    }


def rows(measured: list[dict[str, Any]]) -> list[str]:
    """Returns the lines of the table."""
    head = f"{'run':58} {'total':>8} {'epochs':>8} {'shares':>8} {'us/access':>17} {'MiB':>13}"
    lines = [head]
    for one in measured:
        if not one["was_supported"]:
            lines.append(f"{one['run']:58} refused there, {_refused(one)} here")
            continue
        cost = f"{one['cpu_seconds_per_million']:.2f}"
        was = f"{one['recorded_cpu_seconds_per_million']:.1f}"
        peaks = f"{one['peak_bytes'] >> 20} / {one['recorded_peak_bytes'] >> 20}"
        lines.append(
            f"{one['run']:58} {one['total']:8.1e} {one['epochs']:8.1e} {one['shares']:8.1e}"
            f" {cost + ' / ' + was:>17} {peaks:>13}{'' if one['met'] else '  NOT MET'}"
        )
    return lines


def _refused(one: dict[str, Any]) -> str:
    return "not refused" if one["is_supported"] else "refused"


def switch_rows(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Simulates all runs with each single behaviour of the published simulator switched off, and
    then with all behaviours off. Returns the differences from the records. Leaves out simulated
    runs that are equal to their records."""
    worth = []
    one_by_one = {behaviour.name: (behaviour.off, {behaviour}) for behaviour in Behaviour}
    every = {"every one": ("All of them at once.", set(Behaviour))}
    for name, (off, switched) in {**one_by_one, **every}.items():
        for difference in compare(records, AS_PUBLISHED - switched):
            if max(difference.total, difference.shares, difference.stall) > 1e-9:
                worth.append({"behaviour": name, "off": off, **asdict(difference)})
    return worth


def main() -> int:
    """Prints the table as text to standard error. Writes the JSON to standard output or a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="simulate only the runs whose name contains this text"
    )
    parser.add_argument("--json", type=Path, help="where the JSON goes")
    parser.add_argument("--switches", action="store_true", help="switch each behaviour off as well")
    arguments = parser.parse_args()
    records = [
        record
        for record in load_records(RECORDS)
        if arguments.only in f"{record['dataset']}/{record['params']}/{record['policy']}"
    ]
    tasks = [(record, AS_PUBLISHED) for record in records]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        measured = list(pool.imap(measure, tasks, chunksize=1))
    print("\n".join(rows(measured)), file=sys.stderr)
    document: dict[str, Any] = {"machine": describe_machine(), "runs": measured}
    if arguments.switches:
        document["switches"] = switch_rows(records)
        for one in document["switches"]:
            times = f"{one['seconds'][1]:10.4f} -> {one['seconds'][0]:10.4f} s"
            text = f"{one['behaviour']:30} {one['run']:58} {times} shares {one['shares']:8.1e}"
            print(text, file=sys.stderr)
    text = json.dumps(document, indent=1)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    else:
        print(text)
    return 0 if all(one["met"] for one in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
