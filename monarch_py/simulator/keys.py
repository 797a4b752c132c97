"""Reading a scenario from its YAML file.

The tables say what may be written; load_scenario checks what the parts must be to one another.
Whatever cannot be simulated is refused here, in one sentence that names file, line and key.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from monarch_py.document import (
    Key,
    Parser,
    Section,
    Spot,
    Table,
    list_of,
    load_document,
    read_mapping,
    values,
)
from monarch_py.errors import ConfigError
from monarch_py.simulator.rates import Curve
from monarch_py.simulator.scenario import (
    LINKS,
    Checkpoint,
    Dataset,
    NodeOverride,
    Rates,
    Scenario,
    SizeLaw,
    StorageClass,
    least_share,
    scanned_sizes,
)
from monarch_py.util.spelling import mend

__all__ = ["SCENARIO", "load_scenario", "shipped_scenarios"]

MAX_NODES = 1 << 20
MAX_THREADS = 1 << 16
# Files, epochs, steps: what the simulation counts in 32 bits.
MAX_NUMBER = (1 << 31) - 1
MAX_EPOCHS = 1_000_000
MAX_BATCH = 1 << 24
# Below this share of draws that fit, drawing again would take for ever.
LEAST_SHARE = 1e-3
# What a configuration of the daemon has, and a scenario never.
CONFIGURATION_KEYS = {"hierarchy", "sources", "data_plane"}
_POSITIVE = values.integer(1, MAX_NUMBER)
_BATCH = values.integer(1, MAX_BATCH)


def _mapping(table: Table) -> Parser:
    def parse(node: yaml.Node, spot: Spot) -> Section:
        return read_mapping(node, spot, table)

    return parse


def curve(node: yaml.Node, spot: Spot) -> Curve:
    """An aggregate rate by number, see rates.Curve: ``{1: 330MiB/s, 2: 730MiB/s}``."""
    mend = "write rates by number, such as {1: 330MiB/s, 2: 730MiB/s}"
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise spot.wrong_type(node, "a mapping", mend)
    number = values.integer(1, MAX_NODES)
    points: dict[int, float] = {}
    for key, value in node.value:
        here = spot.at_key(key, str(key.value))
        at = number(key, here)
        if at in points:
            raise here.error("is given twice", f"keep one {at}")
        points[at] = values.rate(value, here)
    return Curve.of(points)


def _capacity(node: yaml.Node, spot: Spot) -> int:
    n_bytes = values.size(node, spot)
    if n_bytes == 0:
        raise spot.error("nothing fits into a capacity of 0", "write a size or remove the class")
    return n_bytes


def _word(node: yaml.Node, spot: Spot) -> str:
    mend = "write lower-case letters, digits, - and _, beginning with a letter"
    text = values.scalar(node, spot, "a name", mend)
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,63}", text):
        raise spot.error(f"{text!r} is not a name", mend)
    return text


def _sentence(node: yaml.Node, spot: Spot) -> str:
    return values.scalar(node, spot, "a sentence", "write one in quotes")


def _capacities(node: yaml.Node, spot: Spot) -> dict[str, int]:
    if not isinstance(node, yaml.MappingNode):
        raise spot.wrong_type(node, "a mapping", "write sizes by class, such as {ram: 64GiB}")
    return {
        _word(key, spot.at_key(key, str(key.value))): _capacity(
            value, spot.at_key(key, str(key.value))
        )
        for key, value in node.value
    }


SIZE = Table(
    keys={
        "mean": Key(values.amount, "size", "the mean of the normal law", required=True),
        "std": Key(values.amount, "size", "its standard deviation", 0.0, default_text="0"),
        "min": Key(values.amount, "size", "smaller ones are drawn again", 0.0, default_text="0"),
        "max": Key(values.amount, "size", "larger ones are drawn again", math.inf),
    }
)
DATASET = Table(
    keys={
        "files": Key(_POSITIVE, "number", "how many files there are"),
        "size": Key(_mapping(SIZE), "mapping", "the law of their sizes"),
        "scan": Key(
            values.path, "path", "instead of both: a directory, or a .npy file with the sizes"
        ),
    }
)
_LINKS = {
    "network": Key(values.rate, "rate", "a node's link to other nodes"),
    "pfs_link": Key(values.rate, "rate", "a node's link to the PFS", default_text="`network`"),
}
_WORK = {
    "compute": Key(values.rate, "rate", "what one rank trains on"),
    "preprocess": Key(values.rate, "rate", "what one staging thread decodes and augments"),
}
RATES = Table(
    keys={name: replace(key, required=name != "pfs_link") for name, key in (_WORK | _LINKS).items()}
)
CLASS = Table(
    keys={
        "name": Key(_word, "name", "what reports call it", required=True),
        "capacity": Key(_capacity, "size", "its room on a node", required=True),
        "threads": Key(
            values.integer(1, MAX_THREADS), "number", "prefetchers into it", required=True
        ),
        "read": Key(curve, "rates by threads", "of all threads together", required=True),
        "write": Key(curve, "rates by threads", "of all threads", default_text="`read`"),
    }
)
CHECKPOINT = Table(
    keys={
        "every": Key(_POSITIVE, "batches", "how often one is written", required=True),
        "size": Key(values.size, "size", "what each rank writes", required=True),
    }
)
OVERRIDE = Table(
    keys={
        "nodes": Key(
            list_of(values.integer(0, MAX_NODES), "write numbers from 0 on, such as [0, 3]"),
            "list",
            "the nodes that are different",
            required=True,
        ),
        "ranks": Key(_POSITIVE, "number", "their ranks"),
        "capacity": Key(_capacities, "sizes by class", "their room", {}),
        **_WORK,
        **_LINKS,
    }
)
SCENARIO = Table(
    keys={
        "name": Key(_sentence, "text", "what it is called", default_text="the file's name"),
        "nodes": Key(values.integer(1, MAX_NODES), "number", "nodes", required=True),
        "ranks_per_node": Key(
            values.integer(1, MAX_THREADS), "number", "ranks of each", 1, default_text="1"
        ),
        "world_size": Key(_POSITIVE, "number", "instead: the ranks of all nodes together"),
        "epochs": Key(
            values.integer(1, MAX_EPOCHS), "number", "passes over the dataset", required=True
        ),
        "batch_per_rank": Key(_BATCH, "samples", "a rank's part of a batch"),
        "batch": Key(_POSITIVE, "samples", "instead: the batch of all ranks together"),
        "drop_last": Key(
            values.flag,
            "`true` or `false`",
            "leave out a short last batch",
            True,
            default_text="`true`",
        ),
        "seed": Key(
            values.integer(0, 2**32 - 1), "number", "of sizes and shuffles", 0, default_text="0"
        ),
        "dataset": Key(_mapping(DATASET), "mapping", "the files", required=True),
        "rates": Key(_mapping(RATES), "mapping", "of ranks and links", required=True),
        "links": Key(
            values.choice({mode: mode for mode in LINKS}),
            " or ".join(f"`{mode}`" for mode in LINKS),
            "whether a link serves one transfer after the other, or all at the same time",
            LINKS[0],
            default_text=f"`{LINKS[0]}`",
        ),
        "pfs": Key(curve, "rates by clients", "of all clients together", required=True),
        "classes": Key(
            list_of(_mapping(CLASS), "write '- {name: staging, capacity: 5GiB, ...}' below it"),
            "list",
            "the storage of a node; the first is the staging buffer",
            required=True,
        ),
        "overrides": Key(
            list_of(_mapping(OVERRIDE), "write '- {nodes: [0], network: 1GiB/s}' below it"),
            "list",
            "nodes that differ",
            [],
        ),
        "checkpoint": Key(_mapping(CHECKPOINT), "mapping", "a regular write of every rank"),
        "policies": Key(
            list_of(_word, "write names, such as [naive, nopfs]"), "list", "what to compare", []
        ),
        "assumptions": Key(
            list_of(_sentence, "write a sentence for each"),
            "list",
            "what its source leaves out",
            [],
        ),
    }
)


def load_scenario(
    path: str | os.PathLike[str], policies: Collection[str] | None = None
) -> Scenario:
    """Read and check the scenario at `path`; SCENARIO is the table of its keys.

    policies : the names that `policies` may hold, None for any

    Raises ConfigError, one sentence of the form ``FILE:LINE: key: what is wrong; the mend``.
    """
    file = Path(path)
    root, spot = load_document(file, "scenario", "nodes, epochs, dataset, rates, pfs and classes")
    _refuse_configuration(root, file)
    section = read_mapping(root, spot, SCENARIO)
    overrides = [_override(part) for part in section["overrides"]]
    scenario = Scenario(
        name=section["name"] or file.stem,
        nodes=section["nodes"],
        ranks_per_node=_ranks_per_node(section),
        epochs=section["epochs"],
        batch_per_rank=1,
        drop_last=section["drop_last"],
        seed=section["seed"],
        dataset=_dataset(section["dataset"]),
        rates=_rates(section["rates"]),
        pfs=section["pfs"],
        classes=_classes(section),
        overrides=tuple(overrides),
        checkpoint=_checkpoint(section["checkpoint"]),
        policies=_policies(section, policies),
        assumptions=tuple(section["assumptions"]),
        links=section["links"],
    )
    _check_overrides(section, scenario)
    return _with_batch(section, scenario)


def _refuse_configuration(root: yaml.Node, file: Path) -> None:
    if not isinstance(root, yaml.MappingNode):
        return
    keys = {key.value for key, _ in root.value if isinstance(key, yaml.ScalarNode)}
    if keys & CONFIGURATION_KEYS and not keys & set(SCENARIO.keys):
        raise ConfigError(
            f"{file} is a configuration, not a scenario; `monarch calibrate -c {file} -o"
            " scenario.yaml` measures its machine and writes one"
        )


def shipped_scenarios() -> dict[str, Path]:
    """The scenarios that come with Monarch, by name."""
    folder = Path(str(resources.files("monarch_py.simulator"))) / "scenarios"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def _ranks_per_node(section: Section) -> int:
    if "world_size" not in section:
        return int(section["ranks_per_node"])
    if "ranks_per_node" in section:
        raise section.spot_of("world_size").error(
            "is given beside ranks_per_node", "keep one of the two"
        )
    world, nodes = section["world_size"], section["nodes"]
    if world % nodes:
        raise section.spot_of("world_size").error(
            f"{world} ranks do not divide over {nodes} nodes",
            f"write a multiple of {nodes}, or ranks for single nodes in 'overrides'",
        )
    return int(world // nodes)


def _with_batch(section: Section, scenario: Scenario) -> Scenario:
    """The scenario with its batches, which need the ranks of all nodes."""
    world = scenario.world_size
    if ("batch" in section) == ("batch_per_rank" in section):
        key = "batch" if "batch" in section else "batch_per_rank"
        problem = "is given beside batch_per_rank" if "batch" in section else "is missing"
        raise section.spot_of(key).error(problem, "write one of batch_per_rank and batch")
    key = "batch" if "batch" in section else "batch_per_rank"
    per_rank, rest = (section[key], 0) if key != "batch" else divmod(section[key], world)
    if rest:
        raise section.spot_of(key).error(
            f"{section[key]} samples do not divide over {world} ranks",
            f"write a multiple of {world}, or batch_per_rank",
        )
    scenario = replace(scenario, batch_per_rank=per_rank)
    if scenario.batches_per_epoch == 0:
        raise section.spot_of(key).error(
            f"{scenario.dataset.files} files are no full batch of {scenario.global_batch}",
            "lower it, or write 'drop_last: false'",
        )
    return scenario


def _dataset(section: Section) -> Dataset:
    if "scan" in section:
        for other in ("files", "size"):
            if other in section:
                raise section.spot_of(other).error("is given beside scan", "keep one of the two")
        try:
            return Dataset(files=len(scanned_sizes(section["scan"])), scan=section["scan"])
        except ConfigError as error:
            problem = str(error).partition("; ")[0]
            raise section.spot_of("scan").error(problem, "give another path") from None
    section.require("files")
    section.require("size")
    return Dataset(files=section["files"], law=_law(section["size"]))


def _law(section: Section) -> SizeLaw:
    law = SizeLaw(section["mean"], section["std"], section["min"], section["max"])
    if law.min > law.max:
        raise section.spot_of("min").error("is larger than max", "exchange the two")
    if law.constant is None and least_share(law) < LEAST_SHARE:
        raise section.spot.error(
            "hardly any size of this law lies between min and max", "move min or max to the mean"
        )
    if law.constant is not None and not law.min <= law.constant <= law.max:
        raise section.spot_of("mean").error("does not lie between min and max", "correct one")
    if law.constant == 0:
        raise section.spot_of("mean").error("files of 0 bytes need no storage", "write a size")
    return law


def _rates(section: Section) -> Rates:
    link = section["pfs_link"] if "pfs_link" in section else section["network"]
    return Rates(section["compute"], section["preprocess"], section["network"], link)


def _classes(section: Section) -> tuple[StorageClass, ...]:
    classes: list[StorageClass] = []
    for part in section["classes"]:
        if any(part["name"] == other.name for other in classes):
            raise part.spot_of("name").error(
                f"another class is called {part['name']!r}", "give each its own name"
            )
        write = part["write"] if "write" in part else part["read"]
        classes.append(
            StorageClass(part["name"], part["capacity"], part["threads"], part["read"], write)
        )
    if not classes:
        raise section.spot_of("classes").error(
            "is empty", "write at least the staging buffer, '- {name: staging, ...}'"
        )
    return tuple(classes)


def _override(section: Section) -> NodeOverride:
    return NodeOverride(
        nodes=tuple(section["nodes"]),
        ranks=section["ranks"],
        capacity_bytes=section["capacity"],
        **{name: section[name] for name in Rates.__slots__},
    )


def _check_overrides(section: Section, scenario: Scenario) -> None:
    names = [storage.name for storage in scenario.classes]
    seen: set[int] = set()
    for part in section["overrides"]:
        spot = part.spot_of("nodes")
        for node in part["nodes"]:
            if node >= scenario.nodes:
                raise spot.error(f"there is no node {node}", f"use 0 to {scenario.nodes - 1}")
            if node in seen:
                raise spot.error(f"node {node} is given twice", "write one override for it")
            seen.add(node)
        for name in part["capacity"]:
            if name not in names:
                raise part.spot_of("capacity").error(
                    f"there is no class {name!r}", "use one of " + ", ".join(names)
                )


def _checkpoint(section: Section | None) -> Checkpoint | None:
    return None if section is None else Checkpoint(section["every"], section["size"])


def _policies(section: Section, known: Collection[str] | None) -> tuple[str, ...]:
    names: list[Any] = section["policies"]
    spot = section.spot_of("policies")
    for at, name in enumerate(names):
        if known is not None and name not in known:
            use = mend(str(name), known, "use " + ", ".join(sorted(known)))
            raise spot.error(f"there is no policy {name!r}", use)
        if name in names[:at]:
            raise spot.error(f"{name!r} is given twice", "keep one")
    return tuple(names)
