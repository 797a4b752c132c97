"""Several policies on one scenario, by the names of the command line."""

from __future__ import annotations

from collections.abc import Collection

from monarch_py.errors import ConfigError, PolicyError
from monarch_py.policies.named import NAMES, make_policy
from monarch_py.simulator import published
from monarch_py.simulator.engine import simulate
from monarch_py.simulator.jobs import job_of
from monarch_py.simulator.result import Result, Unsupported
from monarch_py.simulator.scenario import Scenario

__all__ = ["compare", "names"]


def names(*, as_published: bool) -> tuple[str, ...]:
    """The policies that there are; those of the published simulator are fewer."""
    return tuple(published.POLICIES) if as_published else NAMES


def compare(
    scenario: Scenario,
    policies: Collection[str] = (),
    *,
    as_published: bool = False,
    without: Collection[str] = (),
) -> dict[str, Result | Unsupported]:
    """What policies (all, if none is named) make of a scenario, in the order of the names given.

    as_published : in the re-created simulator of NoPFS's authors;  without : names of its
    behaviours (published.Behaviour) that are put right. ConfigError for a name that is none.
    """
    known = names(as_published=as_published)
    for name in policies:
        if name not in known:
            raise ConfigError(f"there is no policy {name!r}; use {', '.join(known)}")
    chosen = tuple(policies) or known
    if as_published:
        behaviours = _behaviours(without)
        return {name: published.simulate(scenario, name, behaviours) for name in chosen}
    if without:
        raise ConfigError("--without puts behaviours of --as-published right; give both")
    job = job_of(scenario)
    results: dict[str, Result | Unsupported] = {}
    for name in chosen:
        try:
            results[name] = simulate(scenario, make_policy(name), job)
        except PolicyError as error:
            results[name] = Unsupported(str(error))
    return results


def _behaviours(without: Collection[str]) -> frozenset[published.Behaviour]:
    by_name = {
        behaviour.name.lower().replace("_", "-"): behaviour for behaviour in published.Behaviour
    }
    for name in without:
        if name not in by_name:
            raise ConfigError(f"there is no behaviour {name!r}; use {', '.join(by_name)}")
    return frozenset(published.AS_PUBLISHED) - {by_name[name] for name in without}
