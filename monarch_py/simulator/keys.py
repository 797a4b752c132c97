"""Reads a scenario from its YAML file, and checks that its parts fit together.

If a scenario cannot be simulated, the error message is one sentence, which names the file, the line
and the key.
"""

import os
from collections.abc import Collection
from dataclasses import replace
from importlib import resources
from pathlib import Path

import yaml

from monarch_py.errors import ConfigError
from monarch_py.simulator.scenario import (
    Dataset,
    Scenario,
    SizeDistribution,
    least_share,
    scanned_sizes,
)
from monarch_py.util.spelling import hint
from monarch_py.yaml_files.keys import declared, missing, read_as
from monarch_py.yaml_files.nodes import Spot, load_document

# At least this share of the sizes that are drawn from a distribution must lie between min and max.
# With a smaller share, redrawing would take too long.
LEAST_SHARE = 1e-3
# Keys that only the daemon's configuration has. If a scenario's file contains one of these keys,
# the user has passed a configuration by mistake.
CONFIGURATION_KEYS = {"hierarchy", "sources", "data_plane"}


def load_scenario(
    path: str | os.PathLike[str], policies: Collection[str] | None = None
) -> Scenario:
    """Reads and checks the scenario at `path`.

    policies : the names that the key `policies` may contain; None to accept all names

    Raises ConfigError if the scenario is invalid. The message is one sentence of the form
    ``FILE:LINE: key: what is wrong; the hint``.
    """
    file = Path(path)
    root, top = load_document(file, "scenario", "nodes, epochs, dataset, rates, pfs and classes")
    _refuse_configuration(root, file)
    scenario = read_as(root, top, Scenario, name=file.stem)
    scenario = replace(
        scenario,
        ranks_per_node=_ranks_per_node(scenario, top),
        ranks_written=None,
        dataset=_dataset(scenario.dataset, top.of("dataset")),
    )
    _check_classes(scenario, top.of("classes"))
    _check_policies(scenario, top.of("policies"), policies)
    _check_overrides(scenario, top.of("overrides"))
    return _with_batch(scenario, top)


def _refuse_configuration(root: yaml.Node, file: Path) -> None:
    if not isinstance(root, yaml.MappingNode):
        return
    keys = {key.value for key, _ in root.value if isinstance(key, yaml.ScalarNode)}
    if keys & CONFIGURATION_KEYS and not keys & set(declared(Scenario)):
        raise ConfigError(
            f"{file} is a configuration, not a scenario; `monarch calibrate -c {file} -o"
            " scenario.yaml` measures its machine and writes one"
        )


def shipped_scenarios() -> dict[str, Path]:
    """Returns the scenarios that come with Monarch, by name."""
    folder = Path(str(resources.files("monarch_py.simulator"))) / "scenarios"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def _ranks_per_node(scenario: Scenario, top: Spot) -> int:
    world, nodes = scenario.ranks_written, scenario.nodes
    if world is None:
        return scenario.ranks_per_node
    spot = top.of("world_size")
    if "ranks_per_node" in top:
        raise spot.error("cannot be given together with ranks_per_node", "keep one of the two")
    if world % nodes:
        raise spot.error(
            f"{world} ranks cannot be divided evenly among {nodes} nodes",
            f"write a multiple of {nodes}, or set the ranks of single nodes in 'overrides'",
        )
    return world // nodes


def _with_batch(scenario: Scenario, top: Spot) -> Scenario:
    """Returns the scenario with `batch_per_rank` set. If the user wrote `batch`, `batch_per_rank`
    is `batch` divided by the number of ranks on all nodes."""
    world, batch = scenario.world_size, scenario.batch_written
    spot = top.of("batch_per_rank" if batch is None else "batch")
    if (batch is None) == (scenario.batch_per_rank == 0):
        problem = "is missing" if batch is None else "cannot be given together with batch_per_rank"
        raise spot.error(problem, "write one of batch_per_rank and batch")
    if batch is not None and batch % world:
        raise spot.error(
            f"{batch} samples cannot be divided evenly among {world} ranks",
            f"write a multiple of {world}, or batch_per_rank",
        )
    per_rank = scenario.batch_per_rank if batch is None else batch // world
    scenario = replace(scenario, batch_per_rank=per_rank, batch_written=None)
    if scenario.batches_per_epoch == 0:
        raise spot.error(
            f"{scenario.dataset.files} files do not fill one batch of {scenario.global_batch}",
            "lower the batch, or write 'drop_last: false'",
        )
    return scenario


def _dataset(dataset: Dataset, spot: Spot) -> Dataset:
    if dataset.scan is None:
        for name in ("files", "size"):
            if name not in spot:
                raise missing(spot, Dataset, name)
        assert dataset.distribution is not None
        _check_sizes(dataset.distribution, spot.of("size"))
        return dataset
    for name in ("files", "size"):
        if name in spot:
            raise spot.of(name).error("cannot be given together with scan", "keep one of the two")
    try:
        return replace(dataset, files=len(scanned_sizes(dataset.scan)))
    except ConfigError as error:
        problem = str(error).partition("; ")[0]
        raise spot.of("scan").error(problem, "give another path") from None


def _check_sizes(sizes: SizeDistribution, spot: Spot) -> None:
    if sizes.min > sizes.max:
        raise spot.of("min").error("is larger than max", "swap the two")
    if sizes.constant is None and least_share(sizes) < LEAST_SHARE:
        raise spot.error(
            "hardly any size of this distribution lies between min and max",
            "move min or max towards the mean",
        )
    if sizes.constant is not None and not sizes.min <= sizes.constant <= sizes.max:
        raise spot.of("mean").error("does not lie between min and max", "change one of the three")
    if sizes.constant == 0:
        raise spot.of("mean").error("files of 0 bytes need no storage", "write a size")


def _check_classes(scenario: Scenario, spot: Spot) -> None:
    names = [storage.name for storage in scenario.classes]
    for at, name in enumerate(names):
        if name in names[:at]:
            here = spot.of(at).of("name")
            raise here.error(f"another class is called {name!r}", "give each its own name")
    if not names:
        raise spot.error("is empty", "write at least the staging buffer, '- {name: staging, ...}'")


def _check_overrides(scenario: Scenario, spot: Spot) -> None:
    names = [storage.name for storage in scenario.classes]
    seen: set[int] = set()
    for at, override in enumerate(scenario.overrides):
        here = spot.of(at).of("nodes")
        for node in override.nodes:
            if node >= scenario.nodes:
                raise here.error(f"there is no node {node}", f"use 0 to {scenario.nodes - 1}")
            if node in seen:
                raise here.error(f"node {node} is given twice", "write one override for it")
            seen.add(node)
        for name in override.capacity_bytes:
            if name not in names:
                here = spot.of(at).of("capacity")
                raise here.error(f"there is no class {name!r}", "use one of " + ", ".join(names))


def _check_policies(scenario: Scenario, spot: Spot, known: Collection[str] | None) -> None:
    for at, name in enumerate(scenario.policies):
        if known is not None and name not in known:
            use = hint(name, known, "use " + ", ".join(sorted(known)))
            raise spot.error(f"there is no policy {name!r}", use)
        if name in scenario.policies[:at]:
            raise spot.error(f"{name!r} is given twice", "keep one")
