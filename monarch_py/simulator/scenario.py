"""What is simulated: nodes, their storage, the PFS, the dataset and the training loop.

All sizes are bytes and all rates bytes per second. keys.py reads a scenario from its YAML file;
made by hand, it is not checked again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from monarch_py.errors import ConfigError
from monarch_py.simulator.rates import Curve

__all__ = [
    "LINKS",
    "Checkpoint",
    "Dataset",
    "NodeOverride",
    "Rates",
    "Scenario",
    "SizeLaw",
    "StorageClass",
    "least_share",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# How the transfers of a link share it: one is served after the other, or all at the same time,
# max-min fairly.
LINKS = ("in_order", "fair")


@dataclass(frozen=True, slots=True)
class SizeLaw:
    """Sizes of files [bytes]: normal, and drawn again outside [min, max] (NoPFS, section 6.1).

    With min equal to max, or a std of 0, every file has that size.
    """

    mean: float
    std: float = 0.0
    min: float = 0.0
    max: float = math.inf

    @property
    def constant(self) -> float | None:
        """The size [bytes] of every file, if they are all of one."""
        if self.min == self.max:
            return self.min
        return self.mean if self.std == 0 else None

    def draw(self, random: np.random.RandomState, files: int) -> Floats:
        """(files,) sizes [bytes], with fractions of a byte.

        They are the numbers that the authors' simulator of NoPFS draws through scipy's
        ``norm.rvs`` from the same state: all at once, then one by one for each that does not fit.
        A constant law draws nothing.
        """
        if self.constant is not None:
            return np.full(files, self.constant, np.float64)
        sizes = random.standard_normal(files) * self.std + self.mean
        outside = np.flatnonzero((sizes < self.min) | (sizes > self.max))
        while len(outside):
            # As many as are missing: what fits goes to the first in need, so that neither the
            # result nor the number of draws differs from drawing one at a time.
            fresh = random.standard_normal(len(outside)) * self.std + self.mean
            fresh = fresh[(fresh >= self.min) & (fresh <= self.max)]
            sizes[outside[: len(fresh)]] = fresh
            outside = outside[len(fresh) :]
        return np.asarray(sizes, np.float64)


def least_share(law: SizeLaw) -> float:
    """The share of the law's draws that lie in [min, max], from 0 to 1."""
    if law.constant is not None:
        return 1.0
    below, above = (
        0.5 * (1 + math.erf((edge - law.mean) / (law.std * math.sqrt(2))))
        for edge in (law.min, law.max)
    )
    return above - below


@dataclass(frozen=True, slots=True)
class Dataset:
    """The files that training reads: so many of a law, or those that stand somewhere.

    scan : a directory, whose files are counted in the order of their paths, or a ``.npy`` file
    with their sizes
    """

    files: int
    law: SizeLaw | None = None
    scan: Path | None = None

    def sizes(self, seed: int) -> Ints:
        """(files,) sizes [bytes], whole and at least 1, the same for the same seed."""
        if self.law is None:
            assert self.scan is not None
            return scanned_sizes(self.scan)
        drawn = self.law.draw(np.random.RandomState(seed), self.files)
        return np.maximum(np.rint(drawn), 1).astype(np.int64)


def scanned_sizes(scan: Path) -> Ints:
    """(files,) sizes [bytes] of what is at `scan`, see Dataset; ConfigError if there is nothing."""
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
class Rates:
    """Rates [bytes/s] of one rank (compute c and preprocess beta) and of one node's links.

    network : to other nodes (b_c of NoPFS, section 4);  pfs_link : to the PFS (b_fs)
    """

    compute: float
    preprocess: float
    network: float
    pfs_link: float


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A kind of storage that every node has. The first class of a scenario is the staging buffer.

    threads : how many prefetch into it;  read, write : aggregate rates by the number of threads
    """

    name: str
    capacity_bytes: int
    threads: int
    read: Curve
    write: Curve

    @property
    def read_rate(self) -> float:
        """The rate [bytes/s] of all its threads together."""
        return float(self.read.total(self.threads))

    @property
    def write_rate(self) -> float:
        """The rate [bytes/s] of all its threads together."""
        return float(self.write.total(self.threads))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A write of `size_bytes` by every rank after each `every` batches, at the PFS."""

    every: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NodeOverride:
    """What some nodes have otherwise; None or an absent class is as everywhere."""

    nodes: tuple[int, ...]
    ranks: int | None = None
    capacity_bytes: dict[str, int] = field(default_factory=dict)
    compute: float | None = None
    preprocess: float | None = None
    network: float | None = None
    pfs_link: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a simulation must know, but the policy.

    policies : names to compare, () for the simulator's choice
    assumptions : a sentence for each number that the scenario's source does not give
    links : one of LINKS, how transfers between nodes share their links
    """

    name: str
    nodes: int
    ranks_per_node: int
    epochs: int
    batch_per_rank: int
    drop_last: bool
    seed: int
    dataset: Dataset
    rates: Rates
    pfs: Curve
    classes: tuple[StorageClass, ...]
    overrides: tuple[NodeOverride, ...] = ()
    checkpoint: Checkpoint | None = None
    policies: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    links: str = LINKS[0]

    @property
    def staging(self) -> StorageClass:
        """The staging buffer, from which training takes every sample."""
        return self.classes[0]

    @property
    def caches(self) -> tuple[StorageClass, ...]:
        """The classes that keep files from one epoch to the next."""
        return self.classes[1:]

    @property
    def world_size(self) -> int:
        """The ranks of all nodes."""
        return int(self.ranks().sum())

    @property
    def global_batch(self) -> int:
        """The samples of one batch of all ranks."""
        return self.world_size * self.batch_per_rank

    @property
    def batches_per_epoch(self) -> int:
        """The batches of an epoch: full ones, and a last one of the rest without drop_last."""
        whole, rest = divmod(self.dataset.files, self.global_batch)
        return whole + bool(rest and not self.drop_last)

    def sizes(self) -> Ints:
        """(files,) sizes [bytes], of the scenario's own seed."""
        return self.dataset.sizes(self.seed)

    def ranks(self) -> Ints:
        """(nodes,) ranks of every node."""
        ranks = np.full(self.nodes, self.ranks_per_node, np.int64)
        for override in self.overrides:
            if override.ranks is not None:
                ranks[list(override.nodes)] = override.ranks
        return ranks

    def capacities(self) -> Ints:
        """(nodes, classes) capacities [bytes], staging buffer first."""
        everywhere = [storage.capacity_bytes for storage in self.classes]
        capacities = np.tile(np.array(everywhere, np.int64), (self.nodes, 1))
        for override in self.overrides:
            for at, storage in enumerate(self.classes):
                if storage.name in override.capacity_bytes:
                    rows = list(override.nodes)
                    capacities[rows, at] = override.capacity_bytes[storage.name]
        return capacities

    def rates_of_nodes(self) -> dict[str, Floats]:
        """The fields of `rates` as (nodes,) arrays [bytes/s], with the overrides."""
        rates = {}
        for name in Rates.__slots__:
            rates[name] = np.full(self.nodes, getattr(self.rates, name), np.float64)
            for override in self.overrides:
                if (other := getattr(override, name)) is not None:
                    rates[name][list(override.nodes)] = other
        return rates
