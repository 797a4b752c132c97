"""Several policies on one scenario, by the names of the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection

from monarch_py.errors import ConfigError, MonarchError, PolicyError
from monarch_py.policies.named import NAMES, make_policy
from monarch_py.simulator import published
from monarch_py.simulator.engine import simulate
from monarch_py.simulator.jobs import job_of
from monarch_py.simulator.result import Result, Unsupported
from monarch_py.simulator.scenario import Scenario
from monarch_py.util.spelling import mend

__all__ = ["compare", "names"]

# Simulates the policy of that name.
One = Callable[[str], Result | Unsupported]


def names(*, as_published: bool) -> tuple[str, ...]:
    """The policies that there are; those of the published simulator are fewer."""
    return tuple(published.POLICIES) if as_published else NAMES


def compare(
    scenario: Scenario,
    policies: Collection[str] = (),
    *,
    as_published: bool = False,
    without: Collection[str] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Result | Unsupported]:
    """What policies (all, if none is named) make of a scenario, in the order of the names given.

    as_published : in the re-created simulator of NoPFS's authors;  without : names of its
    behaviours (published.Behaviour) that are put right;  tell : is called with each policy before
    it is simulated, and with "" at the end. Raises ConfigError for a name that is none,
    MonarchError where there is too little memory.
    """
    known = names(as_published=as_published)
    for name in policies:
        if name not in known:
            has = "the published simulator has" if as_published else "there is"
            use = mend(name, known, f"use {', '.join(known)}")
            raise ConfigError(f"{has} no policy {name!r}; {use}")
    if without and not as_published:
        raise ConfigError("--without puts behaviours of --as-published right; give both")
    results: dict[str, Result | Unsupported] = {}
    try:
        one = _published(scenario, without) if as_published else _ours(scenario)
        for name in policies or known:
            tell(name)
            results[name] = one(name)
    except MemoryError:
        raise MonarchError(
            f"{scenario.name}: dataset.files: {scenario.dataset.files} files do not fit into the "
            "memory of this machine; use fewer"
        ) from None
    finally:
        tell("")
    return results


def _published(scenario: Scenario, without: Collection[str]) -> One:
    behaviours = _behaviours(without)
    return lambda name: published.simulate(scenario, name, behaviours)


def _ours(scenario: Scenario) -> One:
    job = job_of(scenario)

    def one(name: str) -> Result | Unsupported:
        try:
            return simulate(scenario, make_policy(name), job)
        except PolicyError as error:
            return Unsupported(str(error))

    return one


def _behaviours(without: Collection[str]) -> frozenset[published.Behaviour]:
    by_name = {
        behaviour.name.lower().replace("_", "-"): behaviour for behaviour in published.Behaviour
    }
    for name in without:
        if name not in by_name:
            use = mend(name, by_name, f"use {', '.join(by_name)}")
            raise ConfigError(f"there is no behaviour {name!r}; {use}")
    return frozenset(published.AS_PUBLISHED) - {by_name[name] for name in without}
