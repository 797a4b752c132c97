"""The scenario of a simulation: nodes, their storage, the PFS, the dataset, the training loop.

All sizes are in bytes, and all rates in bytes per second. The fields of the classes also define the
keys of a scenario's YAML file, by the rules of yaml_files/keys.py. simulator/keys.py reads and
checks the file. A scenario that is constructed in Python is not checked.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from monarch_py.arrays import Floats, Ints
from monarch_py.errors import ConfigError
from monarch_py.util.units import parse_size
from monarch_py.yaml_files.keys import Key, Keys, kind_of
from monarch_py.yaml_files.values import (
    NUMBER,
    SIZE_HINT,
    TEXT,
    Amount,
    Kind,
    Rate,
    Size,
    choice,
    path,
    words,
)

MAX_NODES = 1 << 20
# How a link serves several transfers. `in_order`: one after the other. `fair`: all at the same
# time, each with a max-min fair share of the link's rate.
LINKS = ("in_order", "fair")

# The type of counts that the simulation keeps in 32 bits: files, epochs and steps.
Number = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
Threads = Annotated[int, Meta(ge=1, le=1 << 16)]


@dataclass(frozen=True, slots=True)
class Curve:
    """A total rate as a function of the number of threads or clients that share it (NoPFS, Dryden
    et al., SC'21, section 4). In the paper, the p_j threads of storage class j together read at the
    rate r_j(p_j), and the PFS serves its g clients together at the rate t(g). Each of n threads or
    clients gets 1/n of the total.

    points : number of threads or clients, 1 or more -> total rate [bytes/s], above 0

    Between two points the total is interpolated linearly. Below the first point the total is
    proportional to the number of threads or clients, so each of them has a constant rate. Above the
    last point the total is constant, so more threads or clients each get less. The paper does not
    define the rate outside the points.
    """

    points: Mapping[int, float]

    def __post_init__(self) -> None:
        """Raises ValueError for points that do not form a curve."""
        if not self.points or min(self.points) < 1:
            raise ValueError(
                f"a curve needs rates for 1 or more threads or clients: {list(self.points)}"
            )
        if not all(0 < rate < float("inf") for rate in self.points.values()):
            raise ValueError("the rates of a curve must be above 0 and finite")

    def total(self, numbers: npt.ArrayLike) -> Floats:
        """Returns the total rate [bytes/s], in an array of the same shape as `numbers`.

        numbers : how many threads or clients share the rate, 0 or more
        """
        known, rates = zip((0, 0.0), *sorted(self.points.items()), strict=True)
        # For numbers above the last point, np.interp returns the last rate. Below the first point,
        # the added point (0, 0) makes the rate proportional to the number.
        return np.asarray(np.interp(np.asarray(numbers, np.float64), known, rates), np.float64)


def _capacity(text: str) -> int:
    n_bytes = parse_size(text)
    if n_bytes == 0:
        raise ValueError("nothing fits into a capacity of 0", "write a size or remove the class")
    return n_bytes


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,63}", text):
        raise ValueError(f"{text!r} is not a name")
    return text


def _curve(points: Kind) -> Kind:
    return replace(points, parse=lambda *at: Curve(points.parse(*at)), schema={"type": "object"})


# The largest number of clients or threads for which a scenario may give a rate.
MOST_CLIENTS = 1 << 20
_NAME_HINT = "write lower-case letters, digits, - and _, beginning with a letter"
Capacity = Annotated[int, words("size", SIZE_HINT, _capacity, schema=NUMBER)]
Name = Annotated[str, words("name", _NAME_HINT, _name, example="naive, nopfs")]
Sentence = Annotated[str, words("sentence", "write one in quotes", str)]
ByClients = Annotated[
    Curve, _curve(kind_of(dict[Annotated[int, Meta(ge=1, le=MOST_CLIENTS, title="clients")], Rate]))
]
ByThreads = Annotated[
    Curve, _curve(kind_of(dict[Annotated[int, Meta(ge=1, le=MOST_CLIENTS, title="threads")], Rate]))
]


@dataclass(frozen=True, slots=True)
class SizeDistribution(Keys):
    """The distribution of file sizes [bytes]: a normal distribution. A size outside [min, max] is
    drawn again (NoPFS, section 6.1).

    mean : the mean of the normal distribution
    std : its standard deviation
    min : the smallest size; smaller sizes are redrawn
    max : the largest size; larger sizes are redrawn

    If min equals max, every file has that size. If std is 0, every file has the size `mean`.
    """

    mean: Amount
    std: Amount = 0.0
    min: Amount = 0.0
    max: Annotated[Amount, Key(default="none")] = math.inf

    @property
    def constant(self) -> float | None:
        """The size of every file [bytes], if all have the same size; otherwise None."""
        if self.min == self.max:
            return self.min
        return self.mean if self.std == 0 else None

    def draw(self, random: np.random.RandomState, files: int) -> Floats:
        """Returns the sizes of `files` files, (files,) [bytes], with fractions of a byte.

        All sizes are drawn at once. Then each size outside [min, max] is drawn again. If all files
        have the same size, nothing is drawn. The simulator of the NoPFS authors produces the same
        sizes: it calls scipy's ``norm.rvs``, which draws the same numbers from the same state of
        the random generator.
        """
        if self.constant is not None:
            return np.full(files, self.constant, np.float64)
        sizes = random.standard_normal(files) * self.std + self.mean
        outside = np.flatnonzero((sizes < self.min) | (sizes > self.max))
        while len(outside):
            # Each round draws as many new sizes as there are sizes outside the bounds. Those new
            # sizes that lie within the bounds replace sizes outside, from the first on. Later
            # rounds replace the rest. The result and the number of draws are the same as if a loop
            # over the sizes redrew each size until it lies within the bounds.
            fresh = random.standard_normal(len(outside)) * self.std + self.mean
            fresh = fresh[(fresh >= self.min) & (fresh <= self.max)]
            sizes[outside[: len(fresh)]] = fresh
            outside = outside[len(fresh) :]
        return np.asarray(sizes, np.float64)


def least_share(sizes: SizeDistribution) -> float:
    """Returns the probability, from 0 to 1, that a size drawn from the normal distribution lies in
    [min, max]."""
    if sizes.constant is not None:
        return 1.0
    below, above = (
        0.5 * (1 + math.erf((edge - sizes.mean) / (sizes.std * math.sqrt(2))))
        for edge in (sizes.min, sizes.max)
    )
    return above - below


@dataclass(frozen=True, slots=True)
class Dataset(Keys):
    """The files that training reads: either files whose sizes are drawn from a distribution, or
    existing files.

    files : the number of files
    size : the distribution of their sizes
    scan : in place of files and size: the directory of the dataset, or a `.npy` file with the
        sizes. The files of a directory are numbered in the order of their paths
    """

    files: Annotated[Number, Key(default="none")] = 0
    distribution: Annotated[SizeDistribution | None, Key("size")] = None
    scan: Annotated[Path, Kind(path, "path", TEXT)] | None = None

    def sizes(self, seed: int) -> Ints:
        """Returns the sizes of all files, (files,) integers [bytes]. Sizes from a distribution
        depend only on the seed, and are at least 1."""
        if self.distribution is None:
            assert self.scan is not None
            return scanned_sizes(self.scan)
        drawn = self.distribution.draw(np.random.RandomState(seed), self.files)
        return np.maximum(np.rint(drawn), 1).astype(np.int64)


def scanned_sizes(scan: Path) -> Ints:
    """Returns the sizes of the files that `scan` contains or lists (see Dataset), (files,) [bytes].
    Raises ConfigError if `scan` cannot be read or has no sizes."""
    try:
        if scan.is_dir():
            found = sorted(path for path in scan.rglob("*") if path.is_file())
            sizes = np.array([path.stat().st_size for path in found], np.int64)
        else:
            sizes = np.asarray(np.load(scan, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{scan}: no sizes can be read ({error}); check dataset.scan") from None
    if sizes.ndim != 1 or not len(sizes) or sizes.dtype.kind not in "iu" or sizes.min() < 0:
        raise ConfigError(f"{scan}: holds no list of sizes; check dataset.scan")
    return sizes.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Rates(Keys):
    """Rates [bytes/s] of one rank and of one node's links. Section 4 of the NoPFS paper calls them
    c, beta, b_c and b_fs.

    compute : the rate at which one rank uses samples for training
    preprocess : the rate at which one thread of the staging buffer decodes and augments samples
    network : the rate of a node's link to other nodes
    pfs_link : the rate of a node's link to the PFS
    """

    compute: Rate
    preprocess: Rate
    network: Rate
    pfs_link: Annotated[Rate, Key(like="network")]


RATES = ("compute", "preprocess", "network", "pfs_link")


@dataclass(frozen=True, slots=True)
class StorageClass(Keys):
    """A kind of storage that every node has. The first class of a scenario is the staging buffer.

    name : the name in reports
    capacity : its size on each node
    threads : how many threads prefetch into it
    read : the read rate of all threads together
    write : the write rate of all threads together
    """

    name: Name
    capacity_bytes: Annotated[Capacity, Key("capacity")]
    threads: Threads
    read: ByThreads
    write: Annotated[ByThreads, Key(like="read")]


@dataclass(frozen=True, slots=True)
class Checkpoint(Keys):
    """A periodic write of all ranks to the PFS.

    every : the number of batches between two writes
    size : the amount that each rank writes
    """

    every: Number
    size_bytes: Annotated[Size, Key("size")]


@dataclass(frozen=True, slots=True)
class NodeOverride(Keys):
    """Values for nodes that differ from the other nodes. Where a field is None, the value that the
    scenario gives for all nodes applies. Where `capacity` has no entry for a storage class, the
    capacity that the scenario gives for all nodes applies.

    nodes : the numbers of the nodes that differ, counted from 0
    ranks : the number of ranks on each of these nodes
    capacity : the capacities of their storage classes
    compute : the rate at which one rank uses samples for training
    preprocess : the rate at which one thread of the staging buffer decodes and augments samples
    network : the rate of a node's link to other nodes
    pfs_link : the rate of a node's link to the PFS
    """

    nodes: tuple[Annotated[int, Meta(ge=0, title="number")], ...]
    ranks: Number | None = None
    capacity_bytes: Annotated[dict[Name, Capacity], Key("capacity")] = field(default_factory=dict)
    compute: Rate | None = None
    preprocess: Rate | None = None
    network: Rate | None = None
    pfs_link: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(Keys):
    """The complete input of a simulation, except the policy.

    name : the scenario's name
    nodes : the number of nodes
    ranks_per_node : the number of ranks on each node
    world_size : in place of ranks_per_node: the number of ranks on all nodes together
    epochs : the number of passes over the dataset
    batch_per_rank : how many samples of each batch a rank uses
    batch : in place of batch_per_rank: how many samples all ranks together use in a batch
    drop_last : whether the last batch of an epoch is left out if it is not full
    seed : the seed of sizes and shuffles
    dataset : the files
    rates : rates of ranks and links
    links : how a link serves several transfers: one after the other, or all at the same time with
        max-min fair shares
    pfs : the rate of the PFS for all clients together
    classes : the storage of a node; the first is the staging buffer
    overrides : values for nodes that differ from the others
    checkpoint : a periodic write of all ranks to the PFS
    policies : the policies to compare; all policies if none is named
    assumptions : a sentence for each number that the scenario's source does not give
    """

    name: Annotated[Sentence, Key(default="the file's name")]
    nodes: Annotated[int, Meta(ge=1, le=MAX_NODES)]
    ranks_per_node: Threads = 1
    # The values of the keys `world_size` and `batch` as the user wrote them. If they are given,
    # ranks_per_node and batch_per_rank are computed from them.
    ranks_written: Annotated[Number | None, Key("world_size")] = None
    epochs: Annotated[int, Meta(ge=1, le=1_000_000)]
    batch_per_rank: Annotated[int, Meta(ge=1, le=1 << 24), Key(default="none")] = 0
    batch_written: Annotated[Number | None, Key("batch")] = None
    drop_last: bool = True
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    dataset: Dataset
    rates: Rates
    links: Annotated[str, choice(*LINKS)] = LINKS[0]
    pfs: ByClients
    classes: tuple[StorageClass, ...]
    overrides: tuple[NodeOverride, ...] = ()
    checkpoint: Checkpoint | None = None
    policies: tuple[Name, ...] = ()
    assumptions: tuple[Sentence, ...] = ()

    @property
    def staging(self) -> StorageClass:
        """The staging buffer, from which training takes every sample."""
        return self.classes[0]

    @property
    def world_size(self) -> int:
        """The number of ranks on all nodes."""
        return int(self.ranks().sum())

    @property
    def global_batch(self) -> int:
        """The number of samples in one batch of all ranks."""
        return self.world_size * self.batch_per_rank

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in an epoch. If samples remain after the full batches, they form
        one more batch, unless drop_last is set."""
        whole, rest = divmod(self.dataset.files, self.global_batch)
        return whole + bool(rest and not self.drop_last)

    def sizes(self) -> Ints:
        """Returns the sizes of all files, (files,) [bytes], drawn with the scenario's seed."""
        return self.dataset.sizes(self.seed)

    def ranks(self) -> Ints:
        """Returns the number of ranks on each node, (nodes,)."""
        return self._by_node("ranks", self.ranks_per_node).astype(np.int64)

    def capacities(self) -> Ints:
        """Returns the capacities of each node's storage, (nodes, classes) [bytes]. The first class
        is the staging buffer."""
        everywhere = [storage.capacity_bytes for storage in self.classes]
        capacities = np.tile(np.array(everywhere, np.int64), (self.nodes, 1))
        for override in self.overrides:
            for at, storage in enumerate(self.classes):
                if storage.name in override.capacity_bytes:
                    rows = list(override.nodes)
                    capacities[rows, at] = override.capacity_bytes[storage.name]
        return capacities

    def rates_of_nodes(self) -> dict[str, Floats]:
        """Returns each field of `rates` by name, as an array of the rate of each node, (nodes,)
        [bytes/s]. The overrides are applied."""
        return {name: self._by_node(name, getattr(self.rates, name)) for name in RATES}

    def _by_node(self, name: str, value: float) -> Floats:
        """Returns the value of each node, (nodes,): the value of the node's override if there is
        one, otherwise `value`."""
        values = np.full(self.nodes, value, np.float64)
        for override in self.overrides:
            if (other := getattr(override, name)) is not None:
                values[list(override.nodes)] = other
        return values
