"""Computes which nodes hold each sample. Daemons compute the same holders, so ranks need not ask
them."""

import hashlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import Int32s, Ints, Uints
from monarch_py.config.layers import default_file
from monarch_py.config.load import load_config
from monarch_py.config.patterns import PathFilter
from monarch_py.config.schema import Config, SourceConfig
from monarch_py.errors import ConfigError
from monarch_py.loaders.memory.sizes import n_bytes
from monarch_py.loaders.samplers.agreement import once
from monarch_py.native import lib
from monarch_py.plan.index import Index
from monarch_py.plan.samplers import NONE
from monarch_py.policies.holding import held_by_hash
from monarch_py.policies.placement import UNIT, slack_of
from monarch_py.policies.rendezvous import file_keys

log = logging.getLogger("monarch.loaders")

# STAT_THREADS: the number of threads that call stat(2) on files. AT_ONCE: for how many files a
# thread calls it in one task.
STAT_THREADS, AT_ONCE = 16, 256

Quota = str | int | Sequence[str | int]


class Files:
    """The files of a dataset and their samples.

    paths : (files,) absolute paths; None if only sizes are known
    sizes : (files,) int64 [bytes]
    sample_file : (samples,) the file of each sample; None if each file is a sample
    sample_sizes : (samples,) int64 [bytes]
    """

    def __init__(self, given: Any) -> None:
        self.paths: list[str] | None = None
        self.sample_file: Int32s | None = None
        if isinstance(given, Index):
            self._of_index(given)
        elif hasattr(given, "sizes"):
            self.sizes = np.asarray(given.sizes, dtype=np.int64)
            self.sample_sizes = self.sizes
        elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
            self.paths = _absolute(given)
            self.sizes = _sizes(self.paths)
            self.sample_sizes = self.sizes
        else:
            raise ConfigError(
                "files: give the paths of the files in the order of the samples, an index, or a"
                " dataset with sizes"
            )

    def _of_index(self, index: Index) -> None:
        if index.kind != "unnamed":
            root = os.path.abspath(index.root)
            self.paths = [os.path.join(root, name) for name in index.names()]
        self.sizes = index.sizes.astype(np.int64)
        self.sample_file = index.sample_file
        each = index.sample_length
        self.sample_sizes = self.sizes if each is None else each

    @property
    def samples(self) -> int:
        return len(self.sample_sizes)


def _absolute(paths: Sequence[Any]) -> list[str]:
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"files: {path!r} is not a path; give only the files' paths")
    return [os.path.abspath(path) for path in paths]


def _sizes(paths: Sequence[str]) -> Ints:
    """Returns the sizes of the files [bytes]. One rank asks the file system, and all ranks with the
    same paths share the result. The rank uses several threads, because a parallel file system
    answers many requests at a time."""

    def ask(part: Sequence[str]) -> list[int]:
        return [os.stat(path).st_size for path in part]

    def ask_all() -> bytes:
        parts = [paths[low : low + AT_ONCE] for low in range(0, len(paths), AT_ONCE)]
        with ThreadPoolExecutor(STAT_THREADS) as pool:
            sizes = [size for part in pool.map(ask, parts) for size in part]
        return np.array(sizes, dtype=np.int64).tobytes()

    named = hashlib.sha256("\0".join(paths).encode("utf-8", "surrogateescape")).hexdigest()
    try:
        return np.frombuffer(once(f"sizes/{named}", ask_all), dtype=np.int64)
    except OSError as error:
        raise ConfigError(
            f"files: {error.filename}: {error.strerror}; name existing files that you may read"
        ) from None


def quotas_of(quota: Quota, nodes: int) -> Ints:
    """Returns how much each node keeps, (nodes,) int64 [bytes]. A single quota applies to every
    node."""
    if isinstance(quota, str) or not isinstance(quota, Sequence | np.ndarray):
        quota = [quota] * nodes
    each = list(quota)
    if len(each) != nodes:
        raise ConfigError(f"quota: got {len(each)} quotas for {nodes} nodes; give one per node")
    return np.array([n_bytes("quota", size, least=0) for size in each], dtype=np.int64)


def given_holders(holders: Any, samples: int) -> Int32s:
    """Returns the holders that a user has given, as an array with one row for each sample. Raises
    ConfigError if `holders` has another number of rows."""
    found = np.asarray(holders, dtype=np.int32)
    if len(found) != samples:
        raise ConfigError(
            f"holders: got {len(found)} rows for {samples} samples; give one row per sample"
        )
    return found.reshape(samples, -1)


def kept_here(files: Files, nodes: int, quota: Quota) -> Int32s:
    """Returns the nodes that hold each sample if there are no daemons, and ranks keep samples in
    memory. The result has a row of holders for each sample.

    quota : how much memory each node has for samples
    """
    keys = file_keys(files.samples)
    return held_by_hash(keys, files.sample_sizes, quotas_of(quota, nodes), extra=False)


def kept_by_daemons(
    files: Files, nodes: int, config: str | Path | None, others: Sequence[str] = (), *, extra: bool
) -> Int32s:
    """Returns the nodes that hold each sample: a node holds a sample if its daemon keeps a copy of
    the sample's file. The result has a row of holders for each sample.

    nodes : the number of nodes. All nodes must have the same quotas as this node. The number of a
        node must equal the rank of its daemon
    config : the daemons' configuration file; None for the file that MONARCH_CONFIG names
    others : further files that daemons keep; they may take room from the dataset
    extra : whether nodes with room left hold second copies
    """
    named = config or default_file()
    if not named:
        raise ConfigError(
            "quota: it is not known what a node holds; set MONARCH_CONFIG to the daemons'"
            " configuration, or give quota= to keep samples without daemons"
        )
    if files.paths is None:
        raise ConfigError("files: the paths decide which files daemons keep; give paths, or quota=")
    loaded = load_config(named)
    own = _within_sources(files.paths, loaded, named)
    further = _within_sources([os.path.abspath(path) for path in others], loaded, named)
    # A file that is named several times counts only once.
    number = {path: i for i, path in enumerate(dict.fromkeys([*own, *further]))}
    at, paths = np.array([number[path] for path in own], dtype=np.int64), list(number)
    sizes = np.empty(int(at.max(initial=-1)) + 1, dtype=np.int64)
    sizes[at] = files.sizes
    sizes = np.concatenate([sizes, _sizes(paths[len(sizes) :])])
    keys, is_known = _keys(paths, sizes, loaded)
    room = sum(tier.quota_bytes - slack_of(tier.quota_bytes) for tier in loaded.tiers)
    rooms = np.full(nodes, room, dtype=np.int64)
    known = np.flatnonzero(is_known)
    rounded = UNIT.rounded(sizes[known])
    found = held_by_hash(keys[known], rounded, rooms, extra=extra)
    held = np.full((len(paths), found.shape[1]), NONE, dtype=np.int32)
    held[known] = found
    of_file = held[at]
    return of_file if files.sample_file is None else of_file[files.sample_file]


def _within_sources(paths: Sequence[str], config: Config, named: str | Path) -> list[str]:
    """Returns the paths. If a path leads into a source through symbolic links, returns the path in
    the source instead. Warns if some paths are outside all sources, because daemons do not keep
    such files. Raises ConfigError if all paths are outside."""
    real = cache(os.path.realpath)
    found, outside = [], []
    for path in paths:
        linked = path
        if not _is_inside(path, config):
            linked = os.path.join(real(os.path.dirname(path)), os.path.basename(path))
            if not _is_inside(linked, config):
                outside.append(path)
        found.append(linked)
    if outside and len(outside) == len(paths):
        raise ConfigError(
            f"files: none is in a source of {named}, and daemons keep only files of sources; give"
            f" paths below these sources, not {outside[0]}"
        )
    if outside:
        log.warning(
            "%d of %d files are in no source of %s, so no node holds them; the first is %s",
            len(outside),
            len(paths),
            named,
            outside[0],
        )
    return found


def _is_inside(path: str, config: Config) -> bool:
    return any(_within(path, source) is not None for source in config.sources)


def _keys(paths: Sequence[str], sizes: Ints, config: Config) -> tuple[Uints, Any]:
    """Returns two arrays with an item for each path: the hash of the path in the daemons' catalog,
    and whether daemons may keep the file. They may keep it if it fits the patterns and size limits
    of a source. For other files the hash is 0."""
    keys = np.zeros(len(paths), dtype=np.uint64)
    is_known = np.zeros(len(paths), dtype=bool)
    for number, source in enumerate(config.sources):
        matches = PathFilter(source.include, source.exclude).matches
        for i, path in enumerate(paths):
            name = None if is_known[i] else _within(path, source)
            if name is None or not _fits(int(sizes[i]), source) or not matches(name):
                continue
            raw = os.fsencode(name)
            keys[i] = lib.monarch_path_hash(number, raw, len(raw))
            is_known[i] = True
    return keys, is_known


def _within(path: str, source: SourceConfig) -> str | None:
    """Returns the path relative to the source; None if the path lies outside the source."""
    for root in (str(source.path), str(source.real_path)):
        if path.startswith(root.rstrip("/") + "/"):
            return path[len(root.rstrip("/")) + 1 :]
    return None


def _fits(size: int, source: SourceConfig) -> bool:
    most = source.max_size_bytes
    return size >= source.min_size_bytes and (most is None or size <= most)
