"""Simulates the order in which the workers of a training job open files, each at its own pace."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from monarch_py.plan.timeline import Timeline

Units = npt.NDArray[np.int32]


class Ranks:
    """Simulates the DataLoader workers of the first node's ranks. When a rank takes a batch, one of
    its workers gets a new batch. With `in_order`, this is the next worker in rotation; otherwise it
    is the worker with the least work. Workers advance at random, each at its own speed; some are
    much slower than others.

    skip : how many batches of each rank are left out at the beginning
    """

    def __init__(
        self,
        timeline: Timeline,
        epoch: int,
        rng: random.Random,
        in_order: bool,
        *,
        skip: int = 0,
    ) -> None:
        self.rng, self.in_order = rng, in_order
        loader = timeline.parts[0].loader
        self.loader = loader
        self.batches = [
            [batch[batch >= 0].tolist() for batch in rank[skip:]]
            for rank in loader.batches(epoch)[: timeline.ranks_per_node]
        ]
        self.steps = loader.steps - skip
        self.given = [0] * len(self.batches)
        workers = max(1, loader.workers or 0)
        self.queues: list[list[list[tuple[int, int]]]] = [
            [[] for _ in range(workers)] for _ in self.batches
        ]
        self.speeds = [[rng.choice([0.02, 1, 1, 3]) for _ in range(workers)] for _ in self.batches]
        self.ready: list[set[int]] = [set() for _ in self.batches]
        self.taken = [0] * len(self.batches)
        for rank in range(len(self.batches)):
            for _ in range(max(1, loader.ahead)):
                self._give(rank)

    def _give(self, rank: int) -> None:
        number, queues = self.given[rank], self.queues[rank]
        if number >= self.steps:
            return
        self.given[rank] += 1
        worker = number % len(queues)
        if not self.in_order:
            worker = min(range(len(queues)), key=lambda w: len({n for n, _ in queues[w]}))
        queues[worker] += [(number, sample) for sample in self.batches[rank][number]]

    def __iter__(self) -> Iterator[int]:
        """Yields samples in the order in which they are opened."""
        left = sum(len(batch) for rank in self.batches for batch in rank)
        while left:
            rank = self.rng.randrange(len(self.batches))
            queues = self.queues[rank]
            busy = [w for w in range(len(queues)) if queues[w]]
            if busy:
                worker = self.rng.choices(busy, [self.speeds[rank][w] for w in busy])[0]
                number, sample = queues[worker].pop(0)
                left -= 1
                yield sample
                if not queues[worker] or queues[worker][0][0] != number:
                    self.ready[rank].add(number)
            self._train()

    def _train(self) -> None:
        """Makes each rank take a batch, if every rank has a batch that it can take now."""
        able = [r for r, ready in enumerate(self.ready) if self._next(r) is not None or not ready]
        if len(able) < len(self.batches) or any(self._next(r) is None for r in able):
            return
        for rank in able:
            number = self._next(rank)
            assert number is not None
            self.ready[rank].discard(number)
            self.taken[rank] += 1
            self._give(rank)

    def _next(self, rank: int) -> int | None:
        ready = self.ready[rank]
        if self.in_order:
            return self.taken[rank] if self.taken[rank] in ready else None
        return min(ready, default=None)


def in_turns(samples: Iterator[int], rng: random.Random, most: int) -> Iterator[Units]:
    turn: set[int] = set()
    size = rng.randint(1, most)
    for sample in samples:
        turn.add(sample)
        if len(turn) >= size:
            yield np.array(sorted(turn), dtype=np.int32)
            turn, size = set(), rng.randint(1, most)
    if turn:
        yield np.array(sorted(turn), dtype=np.int32)
