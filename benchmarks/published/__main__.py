"""``python -m benchmarks.published SCENARIO``: simulates a scenario as NoPFS's authors do.

SCENARIO is a YAML file, or the name of a scenario that is part of Monarch. ``--without NAME``
corrects one deviation of the authors' simulator from their paper (behaviours.py). ``-p NAME``
simulates only the policy NAME. Both options may be repeated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.published import AS_PUBLISHED, POLICIES, Behaviour, simulate
from monarch_py.errors import MonarchError
from monarch_py.policies.named import NAMES
from monarch_py.simulator.keys import load_scenario, shipped_scenarios
from monarch_py.simulator.result import to_document


def main() -> None:
    switches = {behaviour.name.lower().replace("_", "-"): behaviour for behaviour in Behaviour}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__)
    parser.add_argument("scenario")
    parser.add_argument("-p", "--policy", action="append", choices=list(POLICIES))
    parser.add_argument("--without", action="append", default=[], choices=list(switches))
    given = parser.parse_args()
    file = shipped_scenarios().get(given.scenario, Path(given.scenario))
    behaviours = frozenset(AS_PUBLISHED) - {switches[name] for name in given.without}
    try:
        scenario = load_scenario(file, NAMES)
        own = [name for name in scenario.policies or POLICIES if name in POLICIES]
        results = {name: simulate(scenario, name, behaviours) for name in given.policy or own}
    except MonarchError as error:
        parser.error(str(error))
    print(json.dumps(to_document(scenario.name, scenario.assumptions, results), indent=2))


if __name__ == "__main__":
    main()
