"""The policies that change which samples a node reads: Locality-Aware, DeepIO, Parallel Staging.

Each function replaces inputs.orders with orders of the same lengths.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.published.behaviours import Behaviour
from benchmarks.published.fills import CannotRunError
from benchmarks.published.holders import Holders
from benchmarks.published.inputs import Inputs

__all__ = ["draw_deepio", "draw_staged", "exchange"]

Numbers = npt.NDArray[np.int32]


class RawDraws:
    """Draws single random integers. They are the same integers that numpy's RandomState.randint
    draws, but a draw is ten times faster.

    A draw takes 32 bits from the Mersenne Twister, and keeps only as many bits as the range needs.
    A value outside the range is rejected, and another value is drawn. If the range contains only
    one number, no bits are taken.
    """

    CHUNK = 1 << 14

    def __init__(self, random: np.random.RandomState) -> None:
        """Starts from the state of `random`. The draws do not change `random` itself."""
        state: Any = random.get_state(legacy=False)
        self._bits = np.random.MT19937()
        self._bits.state = state
        self._left: list[int] = []

    def between(self, low: int, high: int) -> int:
        """Returns a number from `low` to `high` - 1."""
        widest = high - low - 1
        if widest < 0:
            raise ValueError(f"there is no number from {low} to {high - 1}")
        if widest == 0:
            return low
        mask = (1 << widest.bit_length()) - 1
        while True:
            if not self._left:
                self._left = self._bits.random_raw(self.CHUNK)[::-1].tolist()
            number = self._left.pop() & mask
            if number <= widest:
                return low + number


class Stacks:
    """Draws random files of each node's part of the dataset, without replacement. After all files
    of a part were drawn, and at the beginning of each epoch, all files of the part can be drawn
    again."""

    def __init__(self, parts: list[Numbers], random: np.random.RandomState) -> None:
        self._parts = parts
        self._random = random
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Makes all files available again."""
        self._left: list[list[int]] = [[] for _ in self._parts]

    def draw(self, node: int) -> int:
        """Draws a file of a node's part."""
        if not self._left[node]:
            self._left[node] = self._random.permutation(self._parts[node]).tolist()
        return self._left[node].pop()


def _batches(inputs: Inputs) -> list[list[tuple[int, int]]]:
    """Returns, for every batch and every node, where the batch lies in the node's order of reading:
    a range (begin, end)."""
    ranges = [list(pairwise(starts)) for starts in inputs.starts]
    return [list(parts) for parts in zip(*ranges, strict=True)]


def _held(holders: Holders) -> list[Numbers]:
    """Returns, for every node, the files that it holds."""
    return [
        np.flatnonzero(np.frombuffer(levels, np.uint8)).astype(np.int32) for levels in holders.level
    ]


def _demand_some(parts: Sequence[Sized]) -> None:
    if not all(len(part) for part in parts):
        raise CannotRunError("A node that has room for no file has nothing to draw from.")


def draw_staged(inputs: Inputs, holders: Holders) -> None:
    """Parallel Staging: each node reads random files of its own shard."""
    random, batches = inputs.random, _batches(inputs)
    per_epoch = inputs.scenario.batches_per_epoch
    parts = [
        np.flatnonzero(np.frombuffer(levels, np.uint8)[first:end]) + first
        for levels, (first, end) in zip(holders.level, inputs.shards(), strict=True)
    ]
    again = Behaviour.STAGING_DRAWS_AGAIN in inputs.on
    _demand_some(parts)
    # `ends` are exclusive upper limits of the draws. As in the published simulator, the limit of a
    # node is the highest file number that the node holds. So this file is never drawn. It may lie
    # outside the node's own part.
    ends = [
        max(int(files[-1]), int(part[0]) + 1)
        for files, part in zip(_held(holders), parts, strict=True)
    ]
    stacks = Stacks([part.astype(np.int32) for part in parts], random)
    for number, batch in enumerate(batches):
        if number % per_epoch == 0:
            stacks.begin_epoch()
        for node, (begin, end) in enumerate(batch):
            order = inputs.orders[node]
            if again:
                first = int(parts[node][0])
                order[begin:end] = random.randint(first, ends[node], end - begin)
            else:
                order[begin:end] = [stacks.draw(node) for _ in range(begin, end)]


def draw_deepio(inputs: Inputs, holders: Holders) -> None:
    """Opportunistic DeepIO: each node reads random files that it or another node has in memory."""
    on, nodes = inputs.on, inputs.nodes
    held = _held(holders)
    _demand_some(held)
    draws = RawDraws(inputs.random)
    stacks = Stacks(held, np.random.RandomState(inputs.random.randint(1 << 31)))
    # The bounds of the draws. The upper bound is exclusive, so the last file of a part is never
    # drawn, as in the published simulator.
    bounds = [(int(files[0]), max(int(files[-1]), int(files[0]) + 1)) for files in held]
    chance = max(nodes - 1, 1) if Behaviour.DEEPIO_LOCAL_CHANCE in on else nodes
    again = Behaviour.DEEPIO_DRAWS_AGAIN in on
    is_beside = Behaviour.DEEPIO_ONE_NEIGHBOUR in on
    per_epoch = inputs.scenario.batches_per_epoch
    for number, batch in enumerate(_batches(inputs)):
        if number % per_epoch == 0:
            stacks.begin_epoch()
        for node, (begin, end) in enumerate(batch):
            is_local = node == 0 and Behaviour.DEEPIO_FIRST_NODE_LOCAL in on
            order = inputs.orders[node]
            for place in range(begin, end):
                # Like the published simulator, draw this number even if `is_local` makes it
                # unnecessary. Otherwise, all later random numbers would differ.
                is_near = draws.between(1, 1 + chance) == 1
                owner = node
                if not is_local and not is_near:
                    away = nodes - 1 if is_beside else draws.between(1, nodes)
                    owner = (node + away) % nodes
                if not again:
                    order[place] = stacks.draw(owner)
                    continue
                order[place] = draws.between(*bounds[owner])


def exchange(inputs: Inputs, holders: Holders) -> None:
    """Locality-Aware: nodes exchange samples of a batch to maximise the number of local samples."""
    if Behaviour.LOCALITY_WITHOUT_REORDERING in inputs.on:
        return
    owner = np.full(inputs.files, -1, np.int64)
    for node, levels in enumerate(holders.level):
        owner[np.flatnonzero(np.frombuffer(levels, np.uint8))] = node
    for batch in _batches(inputs):
        parts = [inputs.orders[node][begin:end] for node, (begin, end) in enumerate(batch)]
        dealt = _deal(np.concatenate(parts), owner, [len(part) for part in parts])
        for node, (begin, end) in enumerate(batch):
            inputs.orders[node][begin:end] = dealt[node]


def _deal(files: Numbers, owner: npt.NDArray[np.int64], counts: list[int]) -> list[Numbers]:
    """Assigns the samples of one batch to nodes. A sample goes to the node that holds its file. If
    this node's part of the batch is full, or if no node holds the file, the sample goes to any node
    that has room in its part.

    owner : for each file, the node that holds it; -1 for none
    counts : for each node, the number of samples in its part of the batch
    """
    owners = owner[files]
    own = [files[owners == node][:count] for node, count in enumerate(counts)]
    rest = np.concatenate(
        [files[owners < 0], *(files[owners == node][count:] for node, count in enumerate(counts))]
    )
    dealt, begin = [], 0
    for part, count in zip(own, counts, strict=True):
        end = begin + count - len(part)
        dealt.append(np.concatenate([part, rest[begin:end]]))
        begin = end
    return dealt
