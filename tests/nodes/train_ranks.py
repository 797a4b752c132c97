"""Ranks of a deterministic training run with DistributedDataParallel.

    python train_ranks.py OUT RANKS RANK:DATASET ...

DATASET : the dataset as this rank sees it, a directory that contains a directory of files for each
class;  OUT : a directory that all ranks share.

Each rank writes OUT/RANK: the loss of every batch and a digest of the weights, which depend on
every byte. If the command line names several ranks, the program forks a process for each rank but
the first.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 2
SEED = 1234
INPUTS = 64


class Folder(Dataset[tuple[torch.Tensor, int]]):
    """The files `root`/CLASS/*. Each sample is a tuple: float32 values of shape (INPUTS,), and the
    number of the class."""

    def __init__(self, root: Path) -> None:
        self.classes = sorted(path.name for path in root.iterdir() if path.is_dir())
        self._samples = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted((root / name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self._samples[index]
        numbers = np.frombuffer(path.read_bytes(), dtype=np.uint8).reshape(INPUTS, -1)
        return torch.from_numpy(numbers.mean(axis=1, dtype=np.float64).astype(np.float32)), label


def train(root: Path, ranks: int, rank: int) -> list[str]:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    data = Folder(root)
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(
        data, ranks, rank, seed=SEED
    )
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(INPUTS, 32), nn.ReLU(), nn.Linear(32, len(data.classes)))
    )
    said = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            said.append(f"loss {epoch} {float(loss.item()).hex()}")
    weights = b"".join(weight.numpy().tobytes() for weight in model.state_dict().values())
    return [*said, f"end {hashlib.sha256(weights).hexdigest()}"]


def be_rank(out: Path, ranks: int, rank: int, root: Path) -> None:
    store = f"file://{out}/store"
    init_process_group("gloo", init_method=store, world_size=ranks, rank=rank)
    (out / str(rank)).write_text("\n".join(train(root, ranks, rank)))
    destroy_process_group()


def main() -> None:
    out, ranks = Path(sys.argv[1]), int(sys.argv[2])
    mine = [(int(rank), Path(root)) for rank, root in (word.split(":") for word in sys.argv[3:])]
    # Load modules before the ranks are forked, so that each rank need not load them. The first
    # optimizer imports half of torch.
    torch.optim.SGD([torch.zeros(1)], lr=1.0)
    others = []
    for rank, root in mine[1:]:
        child = os.fork()
        if child == 0:
            be_rank(out, ranks, rank, root)
            os._exit(0)
        others.append(child)
    be_rank(out, ranks, *mine[0])
    if any(os.waitpid(child, 0)[1] for child in others):
        sys.exit("a rank has failed")


if __name__ == "__main__":
    main()
