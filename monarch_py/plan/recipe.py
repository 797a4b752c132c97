"""Reads plan.yaml, the description from which a plan is made. docs/plan.md lists its keys."""

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import yaml
from msgspec import Meta

from monarch_py.errors import ConfigError
from monarch_py.plan.index import GRAINS, Index
from monarch_py.plan.loader import SPLITS, Loader
from monarch_py.plan.plan import DEFAULT_RANGE_BYTES, Plan, PlanPart
from monarch_py.plan.samplers import MAX_SAMPLES, SAMPLERS, Sampler, read_indices
from monarch_py.plan.samplers._dali import READERS
from monarch_py.plan.samplers._pytorch import LOADER_DRAWS
from monarch_py.plan.schedule import MOST_CAP
from monarch_py.plan.timeline import MAX_EPOCHS, MAX_NODES
from monarch_py.yaml_files.keys import Key, Keys, declared, missing, read_as
from monarch_py.yaml_files.nodes import Spot, load_document
from monarch_py.yaml_files.values import (
    MOST_NUMBER,
    NUMBER,
    TEXT,
    Kind,
    Size,
    choice,
    integer,
    path,
    words,
)

T = TypeVar("T")

# For each split that depends on the samples' holders: the additional keys that a part with this
# split may have.
OF_SPLITS = {"local_first": ("quota",), "solar": ("quota", "cap", "least")}

Seed = Annotated[int, Meta(ge=-MOST_NUMBER)]
Samples = Annotated[int, Meta(ge=1, le=MAX_SAMPLES)]
Number = Annotated[int, Meta(ge=1)]
File = Annotated[Path, Kind(path, "file", TEXT)]


def _name(text: str) -> str:
    if not re.fullmatch(r"[\w.-]{1,64}", text):
        raise ValueError
    return text


def _dataset(node: yaml.Node, spot: Spot) -> int | Path:
    """Parses the value of a part's key `dataset`: a number of samples, or the path of an index."""
    if isinstance(node, yaml.ScalarNode) and str(node.value).isdecimal():
        return int(integer(Samples).parse(node, spot))
    return path(node, spot)


def _cap(text: str) -> float:
    cap = float(text)
    if not 1 <= cap <= MOST_CAP:
        raise ValueError
    return cap


_CAP_HINT = f"write a number from 1 to {MOST_CAP:g}"
Cap = Annotated[float, words("number", _CAP_HINT, _cap, schema=NUMBER, show="{:g}".format)]
_NAME_HINT = "write letters, digits, '-', '_' and '.'"
Name = Annotated[str, words("word", _NAME_HINT, _name, show="`{}`".format)]
SamplerKind = Annotated[str, replace(choice(*SAMPLERS), value="name")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerKeys(Keys):
    """The keys of all kinds of samplers. A kind of sampler has only the keys that are fields of
    its class in SAMPLERS.

    kind : the kind of sampler
    seed : the seed of the sampler's generator
    shuffle : DistributedSampler's argument
    drop_last : what happens to samples that do not divide evenly among the ranks: with `true`, the
        last ones are dropped; with `false`, the first ones are repeated
    set_epoch : whether the training calls `set_epoch`
    replacement : whether a sample may be drawn several times
    num_samples : samples drawn in an epoch
    loader_draws : when a DataLoader draws from the sampler's own generator
    loader : whether a DataLoader uses the sampler, and draws from the global generator first
    state : the bytes of `torch.get_rng_state()`
    indices : sample numbers: `.npy`, or text with one number a line
    weights : a weight for each sample: `.npy`, or text with one weight a line
    generator : NumPy's generator, with which the orders are drawn
    method : whether each epoch draws a new permutation, or shuffles the last order again
    reseed : whether the generator is seeded in each epoch, with seed + epoch
    buffer_size : argument of tf.data's shuffle
    global_seed : argument of `tf.random.set_seed`
    reader : DALI's reader: for a list of files, or for records with an index
    random_shuffle : DALI's argument
    stick_to_shard : DALI's argument
    delivered : with `true`, the order in which DALI delivers samples; with `false`, the order in
        which it reads them
    seed_step : difference between the seeds of consecutive ranks
    initial_fill : DALI's argument: the size of its buffer
    reshuffle : argument `reshuffle_each_iteration` of tf.data's shuffle
    group : samples in a group of GroupShuffle
    """

    kind: SamplerKind
    seed: Seed | None = None
    shuffle: bool | None = None
    drop_last: bool | None = None
    set_epoch: bool | None = None
    replacement: bool | None = None
    num_samples: Samples | None = None
    loader_draws: Annotated[str, choice(*LOADER_DRAWS)] | None = None
    loader: bool | None = None
    state: File | None = None
    indices: File | None = None
    weights: File | None = None
    generator: Literal["RandomState", "default_rng"] | None = None
    method: Literal["permutation", "shuffle"] | None = None
    reseed: bool | None = None
    buffer_size: Samples | None = None
    global_seed: Seed | None = None
    reader: Annotated[str, choice(*READERS)] | None = None
    random_shuffle: bool | None = None
    stick_to_shard: bool | None = None
    delivered: bool | None = None
    seed_step: Seed | None = None
    initial_fill: Samples | None = None
    reshuffle: bool | None = None
    group: Samples | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartKeys(Keys):
    """A loop of an epoch.

    name : the loop's name in reports
    dataset : an index (`monarch plan index`), or the number of files if each file is one sample
    file_size : the mean size of a file, if `dataset` is a number
    sampler : the order of an epoch
    batch_size : how many samples a rank takes in one step
    drop_last : whether a rank's last batch is left out if it is not full
    split : how the order is distributed over the ranks
    workers : how many DataLoader workers a rank has; 0 if the training process reads the files
    prefetch_factor : how many batches each worker prepares ahead
    every : 1 if the loop runs in every epoch, 2 if it runs in every second epoch, and so on
    quota : how much each node holds, for the splits `local_first` and `solar`
    cap : for `solar`: the most samples of a rank in a step, as a multiple of `batch_size`
    least : for `solar`: the fewest samples of a rank in a step
    """

    name: Name = "training"
    dataset: Annotated[int | Path, Kind(_dataset, "file or number", NUMBER)]
    file_size: Annotated[Size, Key(default="unknown")] = 0
    sampler: SamplerKeys
    batch_size: Samples
    drop_last: bool = False
    split: Annotated[str, choice(*SPLITS)] = "strided"
    workers: Annotated[int | None, Meta(ge=0), Key(default="unknown")] = None
    prefetch_factor: Number = 2
    every: Annotated[int, Meta(ge=1, title="epochs")] = 1
    quota: Annotated[Size | None, Key(default="none")] = None
    cap: Cap = 1.5
    least: Annotated[int, Meta(ge=0)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanKeys(Keys):
    """A plan.

    epochs : epochs of the training
    nodes : nodes of the job
    ranks_per_node : training processes on each node
    grain : the unit in which accesses are counted
    range_size : the block size of `ranges`
    parts : the loops of an epoch, in the order in which they run
    version : the version of this format
    """

    epochs: Annotated[int, Meta(ge=1, le=MAX_EPOCHS)]
    nodes: Annotated[int, Meta(ge=1, le=MAX_NODES)] = 1
    ranks_per_node: Number = 1
    grain: Annotated[str, choice(*GRAINS)] = "files"
    range_size: Size = DEFAULT_RANGE_BYTES
    parts: tuple[PartKeys, ...]
    version: Literal["1"] = "1"


def read_plan(path: Path) -> Plan:
    """Returns the plan in a file: in a description, whose name ends in .yaml or .yml, or in a file
    that `Plan.save` wrote. Raises ConfigError if there is no valid plan; the message names the
    file."""
    is_recipe = path.suffix in (".yaml", ".yml")
    return plan_of(*read_recipe(path)) if is_recipe else Plan.load(path)


def read_recipe(path: Path) -> tuple[PlanKeys, Spot]:
    """Returns the keys of a plan.yaml, and its root as a Spot (a place in a YAML file). Reads no
    other file. Raises ConfigError if a key or a value does not fit; the message names file, line
    and key."""
    if path.suffix == ".npz":
        raise ConfigError(f"{path}: this is a plan or an index; name its description (plan.yaml)")
    node, top = load_document(path, "plan's description", "'epochs' and 'parts'")
    return read_as(node, top, PlanKeys), top


def plan_of(keys: PlanKeys, top: Spot) -> Plan:
    """Makes the plan that the result of `read_recipe` describes. Raises ConfigError if the plan
    would not be valid; the message names file, line and key."""
    at = top.of("parts")
    if not keys.parts:
        raise at.error("is empty", "describe at least the training")
    ranks = keys.nodes * keys.ranks_per_node
    known: dict[int | Path, int] = {}
    datasets: list[Index] = []
    parts = []
    for position, part in enumerate(keys.parts):
        spot = at.of(position)
        # Parts that name the same index share one dataset. If `dataset` is a number of samples, the
        # part has a dataset of its own.
        key = part.dataset if isinstance(part.dataset, Path) else position
        number = known.setdefault(key, len(datasets))
        if number == len(datasets):
            datasets.append(_dataset_of(part, spot))
        parts.append(_plan_part(part, spot, number, datasets[number], (keys.nodes, ranks)))
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise at.error("two parts have the same name", "give each its 'name'")
    numbers = (keys.epochs, keys.nodes, keys.grain, keys.range_size)
    plan = _placed(top, PlanKeys, partial(Plan, tuple(datasets), tuple(parts), *numbers))
    _placed(top, PlanKeys, plan.timeline)
    return plan


def _dataset_of(part: PartKeys, spot: Spot) -> Index:
    if isinstance(part.dataset, int):
        return Index.unnamed(part.dataset, part.file_size)
    if "file_size" in spot:
        raise spot.of("file_size").error("the index knows all sizes", "remove the key")
    return _placed(spot, PartKeys, partial(Index.load, part.dataset), "dataset")


def _plan_part(
    part: PartKeys, spot: Spot, number: int, index: Index, where: tuple[int, int]
) -> PlanPart:
    nodes, ranks = where
    own = OF_SPLITS.get(part.split, ())
    for name in OF_SPLITS["solar"]:
        if name in spot and name not in own:
            raise spot.of(name).error(f"the split {part.split!r} has no such key", "remove it")
    if own and part.quota is None:
        raise missing(spot, PartKeys, "quota")
    sampler = _sampler(part.sampler, spot.of("sampler"), index.samples, ranks)
    batches = part.batch_size, part.drop_last, part.split, part.workers, part.prefetch_factor
    held: dict[str, Any] = {name: getattr(part, name) for name in own}
    if own:
        held["nodes"] = nodes
    loader = partial(Loader, sampler, ranks, *batches, **held)
    return PlanPart(part.name, number, _placed(spot, PartKeys, loader), part.every)


def _sampler(keys: SamplerKeys, spot: Spot, samples: int, ranks: int) -> Sampler:
    """Returns the sampler that the keys describe."""
    kind, names = SAMPLERS[keys.kind], [name for name in declared(SamplerKeys) if name != "kind"]
    known = {each.name: each for each in fields(kind) if each.init and each.name in names}
    given = {name: getattr(keys, name) for name in names if name in spot}
    for name in given:
        if name not in known:
            use = f"use {', '.join(known) or 'none'}"
            raise spot.of(name).error(f"{keys.kind} has no such key", use)
    for name, each in known.items():
        if each.default is MISSING and name not in given:
            raise missing(spot, SamplerKeys, name)
    if kind.ranks_field is not None:
        given[kind.ranks_field] = ranks
    readers: dict[str, Callable[[Path], Any]] = {
        "indices": read_indices,
        "weights": _read_weights,
        "state": _read_bytes,
    }
    for name, read in readers.items():
        if name in given:
            given[name] = _placed(spot, SamplerKeys, partial(read, given[name]), name)
    sampler: Sampler = _placed(spot, SamplerKeys, partial(kind, samples, **given))
    return sampler


def _read_weights(path: Path) -> Any:
    try:
        if path.suffix != ".npy":
            return np.loadtxt(path, dtype=np.float64, ndmin=1)
        weights = np.load(path, allow_pickle=False)
        if not isinstance(weights, np.ndarray) or weights.dtype.kind not in "fiu":
            raise ValueError("it is not an array of numbers")
        return weights
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a file of weights") from None
    except (EOFError, MemoryError, OverflowError, ValueError) as error:
        raise ConfigError(f"{path}: not numbers ({error}); write one weight per line") from None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a file with torch's state") from None


def _placed(spot: Spot, keys: type[Keys], make: Callable[[], T], key: str = "") -> T:
    """Returns the result of `make`. Adds the file and the line to the text of a ConfigError.

    The line is the first of these that exists: the line of `key`, the line of the key with which
    the error's text begins, and the line of `spot`.
    """
    try:
        return make()
    except ConfigError as error:
        named, _, rest = str(error).partition(": ")
        if not key and named in declared(keys):
            raise ConfigError(f"{spot.of(named)}: {rest}") from None
        raise ConfigError(f"{spot.of(key) if key else spot}: {error}") from None
