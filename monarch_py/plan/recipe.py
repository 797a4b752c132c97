"""plan.yaml: what a plan is made from. docs/plan.md shows these tables row by row."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
from monarch_py.plan._stored import SAMPLERS
from monarch_py.plan.index import GRAINS, Index
from monarch_py.plan.loader import SPLITS, Loader
from monarch_py.plan.plan import DEFAULT_RANGE_BYTES, Plan, PlanPart
from monarch_py.plan.samplers import MAX_SAMPLES, Sampler, read_indices
from monarch_py.plan.samplers._dali import READERS
from monarch_py.plan.samplers._pytorch import LOADER_DRAWS
from monarch_py.plan.timeline import MAX_NODES

__all__ = ["DOCUMENT", "PART", "SAMPLER", "read_plan"]

# 18 digits are what a number of a configuration may have.
_SEED = values.integer(-(10**18) + 1)
_COUNT = values.integer(1, MAX_SAMPLES)


def _one_of(words: tuple[str, ...]) -> Parser:
    return values.choice({word: word for word in words})


def _name(node: yaml.Node, spot: Spot) -> str:
    if not isinstance(node, yaml.ScalarNode) or not re.fullmatch(r"[\w.-]{1,64}", str(node.value)):
        raise spot.wrong_type(node, "a word", "write letters, digits, '-', '_' and '.'")
    return str(node.value)


def _dataset(node: yaml.Node, spot: Spot) -> int | Path:
    """A number of samples, or the path of an index."""
    if isinstance(node, yaml.ScalarNode) and str(node.value).isdecimal():
        return int(_COUNT(node, spot))
    return values.path(node, spot)


# Of all kinds together; which of them a kind has is said by its class.
SAMPLER = Table(
    keys={
        "kind": Key(_one_of(tuple(SAMPLERS)), "name", "the sampler, see below", required=True),
        "seed": Key(_SEED, "number", "what its generator is seeded with"),
        "shuffle": Key(values.flag, "`true` or `false`", "as DistributedSampler has it"),
        "drop_last": Key(
            values.flag,
            "`true` or `false`",
            "DistributedSampler drops the tail, or repeats the head",
        ),
        "set_epoch": Key(values.flag, "`true` or `false`", "the training calls `set_epoch`"),
        "replacement": Key(values.flag, "`true` or `false`", "samples may be drawn again"),
        "num_samples": Key(_COUNT, "number", "samples drawn in an epoch"),
        "loader_draws": Key(
            _one_of(LOADER_DRAWS),
            " or ".join(f"`{word}`" for word in LOADER_DRAWS),
            "when a DataLoader draws from the sampler's own generator",
        ),
        "loader": Key(
            values.flag, "`true` or `false`", "a DataLoader draws from the global generator first"
        ),
        "state": Key(values.path, "file", "the bytes of `torch.get_rng_state()`"),
        "indices": Key(values.path, "file", "numbers of samples: `.npy`, or one a line"),
        "weights": Key(values.path, "file", "a weight for each sample: `.npy`, or one a line"),
        "generator": Key(
            _one_of(("RandomState", "default_rng")), "`RandomState` or `default_rng`", "NumPy's"
        ),
        "method": Key(
            _one_of(("permutation", "shuffle")),
            "`permutation` or `shuffle`",
            "a new order each epoch, or the last one shuffled again",
        ),
        "reseed": Key(values.flag, "`true` or `false`", "seeded each epoch with seed + epoch"),
        "buffer_size": Key(_COUNT, "number", "of tf.data's shuffle"),
        "global_seed": Key(_SEED, "number", "of `tf.random.set_seed`"),
        "reader": Key(
            _one_of(READERS), "`file` or `records`", "of DALI: of files, or with an index"
        ),
        "random_shuffle": Key(values.flag, "`true` or `false`", "as DALI has it"),
        "stick_to_shard": Key(values.flag, "`true` or `false`", "as DALI has it"),
        "delivered": Key(
            values.flag, "`true` or `false`", "the order that DALI delivers, not that it reads"
        ),
        "seed_step": Key(_SEED, "number", "added to `seed` from one rank to the next"),
        "initial_fill": Key(_COUNT, "number", "of DALI's buffer"),
        "reshuffle": Key(values.flag, "`true` or `false`", "`reshuffle_each_iteration`"),
    }
)


def _sampler(node: yaml.Node, spot: Spot) -> Section:
    section = read_mapping(node, spot, SAMPLER)
    kind = SAMPLERS[section["kind"]]
    known = {each.name: each for each in fields(kind) if each.init}
    for name, here in section.spots.items():
        if name not in ("kind", *known):
            has = ", ".join(each for each in known if each in SAMPLER.keys)
            raise here.error(f"{section['kind']} has no such key", f"use {has or 'none'}")
    for name, each in known.items():
        if each.default is MISSING and name in SAMPLER.keys:
            section.require(name)
    return section


PART = Table(
    keys={
        "name": Key(_name, "word", "what it is called", "training", "`training`"),
        "dataset": Key(
            _dataset,
            "file or number",
            "an index (`monarch plan index`), or how many files of one sample there are",
            required=True,
        ),
        "file_size": Key(
            values.size,
            "size",
            "of each file on average, where `dataset` is a number",
            0,
            "unknown",
        ),
        "sampler": Key(_sampler, "mapping", "the order of an epoch, see below", required=True),
        "batch_size": Key(_COUNT, "number", "samples that a rank takes in one step", required=True),
        "drop_last": Key(
            values.flag,
            "`true` or `false`",
            "a rank's last batch is left out if it is not full",
            False,
            "`false`",
        ),
        "split": Key(
            _one_of(SPLITS),
            " or ".join(f"`{word}`" for word in SPLITS),
            "how the order is dealt out to the ranks, see below",
            "strided",
            "`strided`",
        ),
        "workers": Key(values.integer(0), "number", "DataLoader workers of a rank", 0, "0"),
        "prefetch_factor": Key(
            values.integer(1), "number", "batches that each worker prepares", 2, "2"
        ),
        "every": Key(values.integer(1), "epochs", "runs in every n-th epoch", 1, "1"),
    }
)


def _part(node: yaml.Node, spot: Spot) -> Section:
    return read_mapping(node, spot, PART)


DOCUMENT = Table(
    keys={
        "epochs": Key(values.integer(1), "number", "of the training", required=True),
        "nodes": Key(values.integer(1, MAX_NODES), "number", "of the job", 1, "1"),
        "ranks_per_node": Key(values.integer(1), "number", "processes that train", 1, "1"),
        "grain": Key(
            _one_of(GRAINS),
            " or ".join(f"`{word}`" for word in GRAINS),
            "what accesses are counted of, see below",
            "files",
            "`files`",
        ),
        "range_size": Key(
            values.size, "size", "the block size of `ranges`", DEFAULT_RANGE_BYTES, "4MiB"
        ),
        "parts": Key(
            list_of(_part, "write '- name: training' below it"),
            "list",
            "the loops of an epoch, in the order in which they run",
            required=True,
        ),
        "version": Key(_one_of(("1",)), "`1`", "the version of this format", "1", "1"),
    }
)


def read_plan(path: Path) -> Plan:
    """The plan that a plan.yaml describes; ConfigError, naming file, line and key, for anything
    that cannot be."""
    node, spot = load_document(path, "plan's description", "'epochs' and 'parts'")
    section = read_mapping(node, spot, DOCUMENT)
    if not section["parts"]:
        raise section.spot_of("parts").error("is empty", "describe at least the training")
    ranks = section["nodes"] * section["ranks_per_node"]
    known: dict[Path, int] = {}
    datasets: list[Index] = []
    parts = []
    for part in section["parts"]:
        number = known.get(part["dataset"], len(datasets))
        if number == len(datasets):
            datasets.append(_dataset_of(part))
        if isinstance(part["dataset"], Path):  # two numbers are two datasets
            known[part["dataset"]] = number
        parts.append(_plan_part(part, number, datasets[number], ranks))
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise section.spot_of("parts").error("two parts have one name", "give each its 'name'")
    numbers = (section["epochs"], section["nodes"], section["grain"], section["range_size"])
    plan: Plan = _placed(section, partial(Plan, tuple(datasets), tuple(parts), *numbers))
    _placed(section, plan.timeline)
    return plan


def _dataset_of(part: Section) -> Index:
    dataset = part["dataset"]
    if isinstance(dataset, int):
        return Index.unnamed(dataset, part["file_size"])
    if "file_size" in part:
        raise part.spot_of("file_size").error("the index knows all sizes", "remove the key")
    return Index.load(dataset)


def _plan_part(part: Section, number: int, index: Index, ranks: int) -> PlanPart:
    sampler = _made(part["sampler"], index.samples, ranks)
    loader = _placed(
        part,
        partial(
            Loader,
            sampler,
            ranks,
            part["batch_size"],
            part["drop_last"],
            part["split"],
            part["workers"],
            part["prefetch_factor"],
        ),
    )
    return PlanPart(part["name"], number, loader, part["every"])


def _made(section: Section, samples: int, ranks: int) -> Sampler:
    """The sampler that a mapping describes."""
    given = {name: section[name] for name in section.spots if name != "kind"}
    kind = SAMPLERS[section["kind"]]
    if kind.ranks_field is not None:
        given[kind.ranks_field] = ranks
    readers = {"indices": read_indices, "weights": _read_weights, "state": _read_bytes}
    for name, read in readers.items():
        if name in given:
            given[name] = _placed(section, partial(read, given[name]), name)
    sampler: Sampler = _placed(section, partial(kind, samples, **given))
    return sampler


def _read_weights(path: Path) -> Any:
    try:
        if path.suffix != ".npy":
            return np.loadtxt(path, dtype=np.float64, ndmin=1)
        weights = np.load(path, allow_pickle=False)
        if not isinstance(weights, np.ndarray) or weights.dtype.kind not in "fiu":
            raise ValueError("it is no array of numbers")
        return weights
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a file of weights") from None
    except (EOFError, MemoryError, OverflowError, ValueError) as error:
        raise ConfigError(f"{path}: not numbers ({error}); write one weight a line") from None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name the file of a state") from None


def _placed(section: Section, make: Any, key: str = "") -> Any:
    """What `make` makes. Its ConfigError, which begins with a key, is told with file and line."""
    try:
        return make()
    except ConfigError as error:
        named, _, rest = str(error).partition(": ")
        if not key and named in section.table.keys:
            raise ConfigError(f"{section.spot_of(named)}: {rest}") from None
        raise ConfigError(f"{section.spot_of(key) if key else section.spot}: {error}") from None
