"""Puts each fault into each distinct system call, one fault per run. Prints the broken promises.

    PYTHONPATH=tests python -m faults [--role ROLE] [--shard I/N] [--results FILE] [--most N]

For each run, the command appends a line of JSON to FILE. It skips faults that already have a line
in FILE. So if an interrupted command is repeated, it continues where it stopped. The status is 1 if
a promise was broken."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path

from trials.reading import build_reader

from faults.calls import LATE_DAEMON_MS, LATE_READER_MS, Fault, faults_of
from faults.classes import CallClass
from faults.pair import PairSite
from faults.planned import PlannedSite
from faults.run import RunSite
from faults.scenario import Outcome, Site, build_faulter, is_ours
from monarch_py import _native
from monarch_py.native import LIBRARY

# Maps each role to the class that implements it. The role determines which process gets the faults.
# `daemon`: a daemon; `reader`: a program that reads; `node`: the daemon of one of two nodes;
# `planned`: a daemon that follows a plan; `run`: `monarch run` and all processes that it starts.
SITES: dict[str, type[Site]] = {
    "daemon": Site,
    "reader": Site,
    "node": PairSite,
    "planned": PlannedSite,
    "run": RunSite,
}
# In every role, the threads of a program under the library have these names.
READERS = ("reader", "monarch-maps")
MODULES = {"libmonarch": Path(LIBRARY), "_native": Path(_native.__file__)}


def plan(
    role: str, classes: list[CallClass], elsewhere: Collection[CallClass] = ()
) -> Iterator[tuple[str, CallClass, Fault]]:
    """Yields each run: its name in the results, the class of calls, and the fault that a call of
    the class gets. The names contain no offsets in modules, because the offsets differ between
    builds. If several runs would have the same name, the second and later ones get a number.

    elsewhere : classes of calls that are left out, because they get their faults in another role
    """
    known = {call.key for call in elsewhere}
    named: Counter[str] = Counter()
    for turn, call in enumerate(classes):
        bearer = "reader" if call.thread in READERS else role
        if call.key in known or not is_ours(bearer, call):
            continue
        what = call.describe(MODULES)
        named[what] += 1
        what += f" ({named[what]})" if named[what] > 1 else ""
        late_ms = LATE_READER_MS if bearer == "reader" else LATE_DAEMON_MS
        for fault in faults_of(call.call, call.target, turn, late_ms):
            if fault.action == "kill" and bearer != role:
                continue  # the call is a reader's, but "kill" would kill the role's process
            yield f"{role}: {fault.name} in {what}", call, fault


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=SITES, action="append")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--results", type=Path, default=Path("faults.jsonl"))
    parser.add_argument("--most", type=int, default=1 << 30)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    part, parts = map(int, options.shard.split("/"))
    said = options.results.read_text().splitlines() if options.results.exists() else []
    known = {json.loads(line)["name"] for line in said}
    runs: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="monarch-faults-programs-") as directory:
        faulter, reader = build_faulter(Path(directory)), build_reader(Path(directory))
        elsewhere: list[CallClass] = []
        for role in options.role or SITES:
            with SITES[role](faulter, reader) as site:
                classes = site.classes(role)
                for name, call, fault in plan(role, classes, elsewhere):
                    is_another_shards = zlib.crc32(name.encode()) % parts != part
                    if is_another_shards or name in known or len(runs) == options.most:
                        continue
                    outcome = site.fault(role, call, fault.action)
                    runs.append(outcome)
                    with options.results.open("a") as file:
                        print(json.dumps({"name": name, **asdict(outcome)}), file=file)
                    if outcome.broken:
                        print(name, *outcome.broken, sep="\n    ", flush=True)
                elsewhere += classes
    broken = sum(bool(outcome.broken) for outcome in runs)
    hit = sum(outcome.hit for outcome in runs)
    print(f"{len(runs)} runs: the fault took place in {hit}, and a promise was broken in {broken}")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
