"""Simulates one scenario under several policies, which are chosen by their names."""

from collections.abc import Callable, Collection

from monarch_py.errors import ConfigError, MonarchError, PolicyError
from monarch_py.policies.named import NAMES, POLICIES
from monarch_py.simulator.engine import simulate
from monarch_py.simulator.jobs import job_of
from monarch_py.simulator.result import Result
from monarch_py.simulator.scenario import Scenario
from monarch_py.util.spelling import hint


def compare(
    scenario: Scenario,
    policies: Collection[str] = (),
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Result | str]:
    """Simulates a scenario under these policies, or under all policies if none is named. Returns
    the result of each policy by name, in the order of the simulations. If a policy cannot run in
    the scenario, the reason is returned instead of a result.

    tell : a function that is called with each policy's name before the policy is simulated, and
        with "" at the end

    Raises ConfigError for an unknown name, and MonarchError if there is too little memory.
    """
    for name in policies:
        if name not in NAMES:
            use = hint(name, NAMES, f"use {', '.join(NAMES)}")
            raise ConfigError(f"there is no policy {name!r}; {use}")
    results: dict[str, Result | str] = {}
    try:
        job = job_of(scenario)
        for name in policies or NAMES:
            tell(name)
            try:
                results[name] = simulate(scenario, POLICIES[name], job)
            except PolicyError as error:
                results[name] = str(error)
    except MemoryError:
        raise MonarchError(
            f"{scenario.name}: dataset.files: {scenario.dataset.files} files do not fit into the "
            "memory of this machine; use fewer files"
        ) from None
    finally:
        tell("")
    return results
