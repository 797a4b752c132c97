"""The long trials: daemons, peers and readers are killed and files are changed, as often as
requested.

    PYTHONPATH=tests python -m trials [--kills N] [--comparisons N] [--seed S] [--results FILE]

The trials have the seeds S, S + 1, ... If a run is divided into shards, each shard needs seeds and
a FILE of its own. The run appends a line of JSON to FILE for each trial. Results that are already
in FILE count, so a run that was interrupted continues where it stopped. The exit status is 1 if any
trial broke a promise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from support.signals import heed_signals
from support.slowsource import build_slowsource
from trials.killing import run
from trials.reading import build_reader
from trials.sites import SITES
from trials.turns import COMPARISONS, PLACES, grounds, take_turns

over = threading.Event()  # set when a signal ends the run
# The run ends when this many consecutive trials have ended with an exception.
BROKEN_AT_MOST = 5

# The numbers of interventions and of changes in one trial.
INTERVENTIONS, CHANGES = 100, 500

# (a directory for this trial, the directory of the programs, a seed) -> the results of the trial.
Work = Callable[[Path, Path, int], dict[str, Any]]


def kill(site: str, place: Path, programs: Path, seed: int) -> dict[str, Any]:
    with SITES[site](place, programs / "slowsource") as made:
        return vars(run(made, programs / "reader", seed, INTERVENTIONS))


def compare(where: str, place: Path, programs: Path, seed: int) -> dict[str, Any]:
    with grounds(place, where, programs / "slowsource") as session:
        take_turns(session, seed, CHANGES)
    return {"comparisons": {where: CHANGES * COMPARISONS}}


WORK: dict[str, dict[str, Work]] = {
    "kills": {site: partial(kill, site) for site in SITES},
    "comparisons": {where: partial(compare, where) for where in PLACES},
}


def trial(work: Work, programs: Path, seed: int) -> dict[str, Any]:
    """Returns the results of a trial. If the trial ends with an exception, returns the traceback
    and the end of the trial's log."""
    log = programs / "log"
    with tempfile.TemporaryDirectory(prefix="monarch-trials-") as place:
        try:
            with log.open("w") as out, contextlib.redirect_stdout(out):
                return work(Path(place), programs, seed)
        except Exception:
            # If a signal has ended the run, the exception means nothing: the signal may have killed
            # daemons that did not handle it yet.
            if over.is_set():
                raise SystemExit(1) from None
            return {"broken": traceback.format_exc() + log.read_text()[-300:]}


def end(number: int, _: object) -> None:
    """Ends the run at the first signal. Ignores further signals, because they would interrupt the
    code that ends daemons and unmounts file systems."""
    if not over.is_set():
        over.set()
        sys.exit(128 + number)


def stuck(results: list[dict[str, Any]]) -> bool:
    """Returns whether the last BROKEN_AT_MOST trials have all ended with exceptions, so that
    further trials would be of no use."""
    last = results[-BROKEN_AT_MOST:]
    return len(last) == BROKEN_AT_MOST and all("broken" in result for result in last)


def total(results: list[dict[str, Any]], goal: str) -> Counter[str]:
    return sum((Counter(result.get(goal, {})) for result in results), Counter())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--comparisons", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("trials.jsonl"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, end)
    heed_signals()
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    results = [json.loads(line) for line in lines]
    with tempfile.TemporaryDirectory(prefix="monarch-trials-programs-") as directory:
        programs = Path(directory)
        build_reader(programs)
        build_slowsource(programs)
        for goal, works in WORK.items():
            known = {(result["name"], result["seed"]) for result in results}
            seed = options.seed
            while not stuck(results) and total(results, goal).total() < getattr(options, goal):
                for name, work in works.items():
                    if (name, seed) not in known:
                        outcome = trial(work, programs, seed)
                        results.append({"name": name, "seed": seed, **outcome})
                        with options.results.open("a") as file:
                            print(json.dumps(results[-1]), file=file)
                seed += 1
    broken = [result for result in results if "broken" in result]
    for result in broken:
        print(result["name"], result["seed"], result["broken"], sep="\n")
    done = {goal: dict(total(results, goal)) for goal in WORK}
    print(f"done: {done}; {len(broken)} of {len(results)} trials broke a promise")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
