"""Fills the nodes' caches for the policies to which NoPFS is compared (NoPFS, section 6.1).

nopfs.py fills the caches for NoPFS itself. Each function ``fill_...`` returns how long training
must wait for the fill on each node, (nodes,) [s].
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.published.behaviours import Behaviour
from benchmarks.published.clients import ClientLog
from benchmarks.published.holders import Holders
from benchmarks.published.inputs import Inputs

__all__ = [
    "CannotRunError",
    "fill_deepio",
    "fill_lbann_dynamic",
    "fill_lbann_preloading",
    "fill_shards",
    "fill_staged",
    "thread_ends",
]

MEMORY, DISK = 1, 2

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int32]


class CannotRunError(Exception):
    """The policy cannot run in this scenario; the message is one sentence."""


def thread_ends(seconds: Floats, begins: Floats) -> Floats:
    """Returns the time at which each task ends, (tasks,) [s]. The threads process the tasks in
    rotation.

    seconds : (tasks,) the duration of each task [s]
    begins : (threads,) the time at which each thread is free for its first task [s]
    """
    ends = np.empty(len(seconds), np.float64)
    for thread, begin in enumerate(begins[: len(seconds)]):
        ends[thread :: len(begins)] = np.cumsum([begin, *seconds[thread :: len(begins)]])[1:]
    return ends


def _threads(inputs: Inputs, level: int) -> int:
    if level >= len(inputs.scenario.classes):
        raise CannotRunError(f"The policy fills class {level}, but the scenario has no such class.")
    return inputs.scenario.classes[level].threads


def _room(inputs: Inputs, level: int) -> float:
    return float(inputs.scenario.classes[level].capacity_bytes)


def _load(inputs: Inputs, log: ClientLog, node: int, files: Numbers, level: int) -> Floats:
    """Returns, for each file, the time at which `node` has copied the file from the PFS to storage
    class `level`, (files,) [s]. Assumes that all nodes read from the PFS at the same time."""
    threads = _threads(inputs, level)
    seconds = inputs.speeds.load_seconds(inputs.sizes[files], inputs.speeds.pfs[inputs.nodes])
    ends = thread_ends(seconds, np.zeros(threads))
    log.prefetch_many(node, ends.tolist())
    return ends


def _fitting(inputs: Inputs, first: int, end: int, level: int) -> Numbers:
    """Returns the files that fit into storage class `level`. Starts with file `first`, and stops
    before the first file that does not fit, or before file `end`."""
    fill = np.cumsum(inputs.sizes[first:end])
    return np.arange(first, first + np.searchsorted(fill, _room(inputs, level), "right"), dtype="i")


def _all(inputs: Inputs, first: int, end: int, level: int) -> Numbers:
    if inputs.sizes[first:end].sum() > _room(inputs, level):
        raise CannotRunError("A node's part of the dataset does not fit into its memory.")
    return np.arange(first, end, dtype="i")


def _last_end(ends: Floats) -> float:
    return float(ends.max()) if len(ends) else 0.0


def fill_deepio(inputs: Inputs, holders: Holders, log: ClientLog) -> list[float]:
    """Fills the memory of every node with an equal shard of the dataset. If the dataset is too
    large, fills one node after the other with as many files as fit."""
    _threads(inputs, MEMORY)
    nodes, part, begin = inputs.nodes, inputs.files // inputs.nodes, 0
    does_not_fit = inputs.sizes.sum() / nodes > _room(inputs, MEMORY)
    stalls = []
    for node in range(nodes):
        if does_not_fit:
            files = _fitting(inputs, begin, inputs.files, MEMORY)
        else:
            end = inputs.files if node == nodes - 1 else begin + part
            files = _all(inputs, begin, end, MEMORY)
        begin += len(files)
        stalls.append(_last_end(_load(inputs, log, node, files, MEMORY)))
        holders.hold(node, files, MEMORY, 0.0)
    return stalls


def fill_lbann_preloading(inputs: Inputs, holders: Holders, log: ClientLog) -> list[float]:
    """Fills each node's memory with an equal shard of the dataset. The dataset must fit into the
    memory of all nodes together."""
    _check_memory(inputs)
    stalls = []
    for node, (first, end) in enumerate(inputs.shards()):
        files = _all(inputs, first, end, MEMORY)
        stalls.append(_last_end(_load(inputs, log, node, files, MEMORY)))
        holders.hold(node, files, MEMORY, 0.0)
    return stalls


def fill_lbann_dynamic(inputs: Inputs, holders: Holders, log: ClientLog) -> list[float]:
    """Fills every node's memory during training. A node keeps the first n files that it reads,
    where n is the number of files in the node's shard. Training does not wait for the fill."""
    _check_memory(inputs)
    for node, (first, end) in enumerate(inputs.shards()):
        files = inputs.orders[node][: end - first]
        if len(files) < end - first:
            raise CannotRunError(
                "The epochs end before a node has read as many files as a shard has."
            )
        if inputs.sizes[np.unique(files)].sum() > _room(inputs, MEMORY):
            raise CannotRunError("A node's part of the dataset does not fit into its memory.")
        holders.hold(node, files, MEMORY, _load(inputs, log, node, files, MEMORY))
    return [0.0] * inputs.nodes


def _check_memory(inputs: Inputs) -> None:
    _threads(inputs, MEMORY)
    if inputs.sizes.sum() > _room(inputs, MEMORY) * inputs.nodes:
        raise CannotRunError("The dataset does not fit into the memory of all nodes.")


def fill_shards(inputs: Inputs, holders: Holders, log: ClientLog) -> list[float]:
    """Fills each node's disk with the first files of the node's shard, as many as fit."""
    _threads(inputs, DISK)
    stalls = []
    for node, (first, end) in enumerate(inputs.shards()):
        files = _fitting(inputs, first, end, DISK)
        stalls.append(_last_end(_load(inputs, log, node, files, DISK)))
        holders.hold(node, files, DISK, 0.0)
    return stalls


def fill_staged(inputs: Inputs, holders: Holders, log: ClientLog) -> list[float]:
    """Parallel data staging: fills each node's disk with the node's shard, and then with files of
    other shards."""
    stalls = fill_shards(inputs, holders, log)
    for node, (first, end) in enumerate(inputs.shards()):
        own = _fitting(inputs, first, end, DISK)
        others = np.arange(first, dtype="i")
        if Behaviour.STAGING_FROM_LOWER_SHARDS not in inputs.on:
            others = np.concatenate([others, np.arange(end, inputs.files, dtype="i")])
        used = np.cumsum([0.0, *inputs.sizes[own]])[-1]
        fill = np.cumsum([used, *inputs.sizes[others]])[1:]
        others = others[: np.searchsorted(fill, _room(inputs, DISK), "right")]
        seconds = inputs.speeds.load_seconds(inputs.sizes[others], inputs.speeds.remote[DISK])
        ends = thread_ends(seconds, np.full(_threads(inputs, DISK), stalls[node]))
        stalls[node] = max(stalls[node], _last_end(ends))
        holders.hold(node, others, DISK, 0.0)
    return stalls
