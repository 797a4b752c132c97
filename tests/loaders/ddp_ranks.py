"""Compares the gradients of a training run under DDP, on four gloo ranks, with the gradients of the
global batches.

For each way to deal samples, the program prints the largest relative difference, measured in two
ways: the norm of the difference divided by the norm of the gradients, and the largest element of
the difference divided by the largest element of the gradients. It also prints the results of
further checks of samplers on several ranks.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from monarch_py.errors import ConfigError
from monarch_py.loaders.samplers.collate import AllowEmpty
from monarch_py.loaders.samplers.local_first import LocalFirstSampler
from monarch_py.loaders.samplers.sampler import ScheduledSampler
from monarch_py.loaders.samplers.solar import SolarSampler

RANKS, LENGTH, FILES = 4, 4000, 50
# For each way to deal samples: the number of samples of a rank in a step.
BATCHES = {"equal": 4, "uneven": 4, "solar": 4, "empty": 2}


def sampler_of(way: str, files: Any) -> ScheduledSampler:
    # For "empty", the quota is so large that every sample has a holder. Samples without a holder
    # would be dealt evenly to all ranks, so no batch would be empty.
    where: dict[str, Any] = {"ranks_per_node": 1, "quota": LENGTH if way == "empty" else 700}
    if way in ("equal", "uneven"):
        made: ScheduledSampler = LocalFirstSampler(files, BATCHES[way], **where)
        if way == "uneven":
            # Three ranks have begun the epoch, and four ranks continue it.
            began = LocalFirstSampler(files, 5, rank=0, world_size=3, **where)
            made.load_state_dict(began.state_dict(3))
        return made
    where = {**where, "cap": 3.0, "least": int(way == "solar")}
    return SolarSampler(files, BATCHES[way], **where)


def train(way: str, steps: int) -> tuple[float, float, list[int]]:
    torch.manual_seed(1)
    data = TensorDataset(
        torch.randn(LENGTH, 12, dtype=torch.float64), torch.randn(LENGTH, 3, dtype=torch.float64)
    )
    sampler = sampler_of(way, SimpleNamespace(sizes=np.ones(LENGTH, dtype=np.int64)))
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=AllowEmpty(data[0]))
    whole = sampler.schedule(0)
    first = sampler.state_dict()["done"]
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 3)).double()
    ddp = DistributedDataParallel(model)
    summed = way == "empty"
    loss_of = nn.MSELoss(reduction="sum" if summed else "mean")
    worst, largest, sizes = 0.0, 0.0, []
    for step, (x, y) in zip(range(first, first + steps), loader, strict=False):
        model.zero_grad()
        scale = 1 / y.shape[1] if summed else 1.0
        (loss_of(ddp(x), y) * scale * sampler.weight(len(y), summed=summed)).backward()
        got = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        all_x, all_y = data[whole.step(step).tolist()]
        plain = torch.autograd.grad(nn.MSELoss()(model(all_x), all_y), list(model.parameters()))
        want = torch.cat([each.flatten() for each in plain])
        worst = max(worst, float((got - want).norm() / want.norm()))
        largest = max(largest, float((got - want).abs().max() / want.abs().max()))
        sizes += whole.sizes()[step].tolist()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.05 * parameter.grad)
    assert len(sizes) == steps * RANKS
    return worst, largest, sizes


class Counted:
    """A dataset whose samples are bytes, and which counts its reads."""

    sizes = np.full(200, 8, dtype=np.int64)
    read = 0

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, at: int) -> bytes:
        self.read += 1
        return at.to_bytes(8, "little")


def share() -> int:
    """Runs two epochs with two ranks on each of two nodes. The ranks of a node keep samples in the
    same shared memory. Returns how many samples this rank reads from the dataset in the second
    epoch."""
    sampler = LocalFirstSampler(Counted(), 5, ranks_per_node=2, quota="640")
    counted = Counted()
    kept = sampler.keep(counted)
    for epoch in range(2):
        counted.read = 0
        sampler.set_epoch(epoch)
        for batch in sampler:
            assert [int.from_bytes(kept[at], "little") for at in batch] == batch
        torch.distributed.barrier()
    kept.close()
    return counted.read


def refused(sampler: ScheduledSampler, message: str) -> int:
    """Returns 1 if the sampler raises a ConfigError with this message instead of yielding a batch,
    otherwise 0."""
    try:
        next(iter(sampler))
    except ConfigError as error:
        return int(message in str(error))
    return 0


def disagree(rank: int) -> int:
    """Gives the ranks different quotas. Returns 1 if this rank's sampler is refused, otherwise
    0."""
    sampler = LocalFirstSampler(Counted(), 5, ranks_per_node=2, quota=640 + 80 * (rank % 2))
    found = refused(
        sampler, "this rank and another rank compute their batches from different inputs"
    )
    torch.distributed.barrier()
    return found


def ask(folder: Path) -> tuple[int, int]:
    """Makes a sampler for all files, and then one for a list with a missing file. Returns two
    numbers: how often this rank calls stat on files for the two samplers; and 1 if the second
    sampler is refused with an error that names the missing file, otherwise 0."""
    paths = [folder / f"{number}" for number in range(FILES)]
    asked, stat = [], os.stat

    def counted(path: Any, **how: Any) -> Any:
        asked.append(path)
        return stat(path, **how)

    os.stat = counted
    try:
        sampler = LocalFirstSampler(paths, 5, ranks_per_node=2, quota=640)
    finally:
        os.stat = stat
    assert sampler._sizes is not None and sampler._sizes.tolist() == list(range(FILES))
    try:
        LocalFirstSampler([*paths, folder / "absent"], 5, ranks_per_node=2, quota=640)
    except ConfigError as error:
        return len(asked), int("absent: No such file" in str(error))
    return len(asked), 0


def run(rank: int, store: str, steps: int, ways: list[str], results: Any) -> None:
    torch.set_num_threads(1)
    early = LocalFirstSampler(Counted(), 5, quota=640)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS
    )
    found: dict[str, Any] = {way: train(way, steps) for way in ways}
    found["share"] = share()
    found["asked"], found["missing"] = ask(Path(f"{store}_files"))
    found["disagree"] = disagree(rank)
    found["early"] = refused(early, f"made for rank 0 of 1, but this is rank {rank} of {RANKS}")
    torch.distributed.destroy_process_group()
    results.put(found)


def main() -> None:
    store, steps, *ways = sys.argv[1:]
    Path(store).unlink(missing_ok=True)
    files = Path(f"{store}_files")
    files.mkdir(exist_ok=True)
    for number in range(FILES):
        (files / f"{number}").write_bytes(bytes(number))
    # The ranks are forked, so that torch is imported once. The first optimizer imports half of
    # torch, so this process creates one before it forks.
    torch.optim.SGD([torch.zeros(1)], lr=1.0)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    each = [
        context.Process(target=run, args=(rank, store, int(steps), ways, results))
        for rank in range(RANKS)
    ]
    for process in each:
        process.start()
    found = [results.get(timeout=120) for _ in each]
    for process in each:
        process.join()
    told = {
        way: {
            "norm": max(rank[way][0] for rank in found),
            "element": max(rank[way][1] for rank in found),
            "smallest": min(found[0][way][2]),
            "largest": max(found[0][way][2]),
        }
        for way in ways
    }
    sums = {
        key: sum(rank[key] for rank in found)
        for key in ("share", "disagree", "early", "asked", "missing")
    }
    print(json.dumps({**told, **sums}))
    if any(process.exitcode for process in each):
        sys.exit(1)


if __name__ == "__main__":
    main()
