"""Reads a dataset of files as a training program with DataLoaders does. All ranks are in this
process; in each step, each rank loads a batch.

    python train_planned.py ROOT SETTINGS

SETTINGS is a JSON object with the keys of DEFAULTS, among them

    first        the first epoch's number
    compute_s    how long each step computes [s]
    strays       the seed for reads outside the order; null for no such reads
    limit        the number of steps of an epoch; null for all
    torch        if false, a loader that reads like torch's is used instead of torch's

Prints a line of JSON for each epoch: the epoch's number, a digest of all content that was read, and
how many seconds the epoch took.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

# If `strays` is set, every STRAYS_EVERY-th step also reads a random file.
STRAYS_EVERY = 4

DEFAULTS = {
    "epochs": 3,
    "first": 0,
    "seed": 11,
    "ranks": 1,
    "batch": 8,
    "workers": 2,
    "prefetch_factor": 2,
    "in_order": True,
    "persistent": False,
    "compute_s": 0.0,
    "strays": None,
    "limit": None,
    "torch": False,
}
Batch = list[tuple[int, str]]


class Whole:
    def __init__(self, root: Path) -> None:
        self.paths = sorted(path for path in root.rglob("*") if path.is_file())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[int, str]:
        with open(self.paths[index], "rb") as file:
            return index, hashlib.sha256(file.read()).hexdigest()


def torchs(dataset: Whole, given: dict[str, Any]) -> Callable[[int], Iterator[tuple[Batch, ...]]]:
    """Returns a function that takes an epoch's number and yields the epoch's steps. A step is a
    tuple with one batch for each rank, loaded by torch's DataLoaders."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    torch.set_num_threads(1)
    samplers: list[DistributedSampler[int]] = [
        DistributedSampler(
            dataset,  # type: ignore[arg-type]  # torch's types ask for a subclass of Dataset
            num_replicas=given["ranks"],
            rank=rank,
            seed=given["seed"],
        )
        for rank in range(given["ranks"])
    ]
    workers = given["workers"]
    loaders: list[DataLoader[Any]] = [
        DataLoader(
            dataset,  # type: ignore[arg-type]
            batch_size=given["batch"],
            sampler=sampler,
            num_workers=workers,
            prefetch_factor=given["prefetch_factor"] if workers else None,
            persistent_workers=given["persistent"] and workers > 0,
            in_order=given["in_order"],
            collate_fn=list,
        )
        for sampler in samplers
    ]

    def steps(epoch: int) -> Iterator[tuple[Batch, ...]]:
        for sampler in samplers:
            sampler.set_epoch(epoch)
        return zip(*loaders, strict=True)

    return steps


def plain(dataset: Whole, given: dict[str, Any]) -> Callable[[int], Iterator[tuple[Batch, ...]]]:
    """A stand-in for the function `torchs`. This function does not use torch, which takes seconds
    to load. The sampler comes from monarch_py.plan; tests/plan compares it with torch's sampler.
    The workers get the batches in rotation."""
    from monarch_py.plan.samplers import DistributedSampler

    ranks = given["ranks"]
    sampler = DistributedSampler(len(dataset), ranks, given["seed"])

    def steps(epoch: int) -> Iterator[tuple[Batch, ...]]:
        order, size = sampler.epoch(epoch).tolist(), given["batch"]
        loaders = []
        for rank in range(ranks):
            mine = order[rank::ranks]
            batches = [mine[at : at + size] for at in range(0, len(mine), size)]
            loaders.append(loaded(dataset, batches, given))
        return zip(*loaders, strict=True)

    return steps


def loaded(dataset: Whole, batches: list[list[int]], given: dict[str, Any]) -> Iterator[Batch]:
    """Yields the batches in their order or, if `in_order` is false, in the order in which they are
    finished. At the start, each worker process gets `prefetch_factor` batches to load."""
    context, workers = get_context("fork"), given["workers"]
    tasks = [context.SimpleQueue() for _ in range(workers)]
    results: Any = context.SimpleQueue()

    def work(mine: Any) -> None:
        while (number := mine.get()) is not None:
            results.put((number, [dataset[index] for index in batches[number]]))

    processes = [context.Process(target=work, args=(mine,), daemon=True) for mine in tasks]
    for process in processes:
        process.start()
    given_out, come = count(), dict[int, Batch]()
    for _ in range(given["prefetch_factor"] * workers):
        give_out(tasks, next(given_out), len(batches))
    try:
        for number in range(len(batches)):
            while number not in come:
                done, batch = results.get()
                come[done if given["in_order"] else number] = batch
            give_out(tasks, next(given_out), len(batches))
            yield come.pop(number)
    finally:
        for process in processes:
            process.terminate()
            process.join()


def give_out(tasks: list[Any], number: int, end: int) -> None:
    if number < end:
        tasks[number % len(tasks)].put(number)


def main() -> None:
    given = {**DEFAULTS, **json.loads(sys.argv[2])}
    dataset = Whole(Path(sys.argv[1]))
    steps = (torchs if given["torch"] else plain)(dataset, given)
    others = random.Random(given["strays"])
    for epoch in range(given["first"], given["epochs"]):
        start, found = time.monotonic(), Batch()
        for number, batches in enumerate(steps(epoch)):
            if number == given["limit"]:
                break
            for batch in batches:
                found += batch
            if given["strays"] is not None and number % STRAYS_EVERY == 0:
                others.choice(dataset.paths).read_bytes()
            time.sleep(given["compute_s"])
        seconds = time.monotonic() - start
        whole = hashlib.sha256(repr(sorted(found)).encode()).hexdigest()
        print(json.dumps({"epoch": epoch, "digest": whole, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
