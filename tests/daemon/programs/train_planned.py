"""Reads a dataset of files as a training with DataLoaders does; all ranks are in this process, and
take a batch each in a step.

    python train_planned.py ROOT SETTINGS

SETTINGS (JSON): epochs, first (epoch), seed, ranks, batch, workers, prefetch_factor,
in_order, persistent, compute_s (of a batch), strays (seed of reads of other files beside it, or
null), limit (batches). Prints a line of JSON for each epoch: its number, a digest of all content
that was read, and how many seconds it took.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

# Steps between two reads of something else.
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
}


class Whole(Dataset[tuple[int, str]]):
    def __init__(self, root: Path) -> None:
        self.paths = sorted(path for path in root.rglob("*") if path.is_file())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[int, str]:
        with open(self.paths[index], "rb") as file:
            return index, hashlib.sha256(file.read()).hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    given = {**DEFAULTS, **json.loads(sys.argv[2])}
    dataset = Whole(Path(sys.argv[1]))
    samplers: list[DistributedSampler[int]] = [
        DistributedSampler(dataset, num_replicas=given["ranks"], rank=rank, seed=given["seed"])
        for rank in range(given["ranks"])
    ]
    workers = given["workers"]
    loaders = [
        DataLoader(
            dataset,
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
    others = random.Random(given["strays"])
    for epoch in range(given["first"], given["epochs"]):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        start, found = time.monotonic(), []
        for number, batches in enumerate(zip(*loaders, strict=True)):
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
