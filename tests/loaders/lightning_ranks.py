"""Trains with Lightning as users do, on one rank and on two gloo ranks, and records the batches.

    python lightning_ranks.py DIRECTORY

For each case and rank, the program writes DIRECTORY/<case>-<rank>.json: the samples of each batch,
by epoch. It also prints the error with which the case `twice` is refused.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from monarch_py.loaders import LocalFirstSampler, SolarSampler, StagedLoader
from monarch_py.loaders.samplers.sampler import ScheduledSampler

LENGTH, BATCH, EPOCHS, RANKS = 103, 4, 2, 2


class Numbers(Dataset[torch.Tensor]):
    sizes = np.ones(LENGTH, dtype=np.int64)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, at: int) -> torch.Tensor:
        return torch.tensor([float(at)])


def sampler_of(case: str, **ranks: Any) -> ScheduledSampler:
    """Returns the sampler of a case.

    ranks : `rank` and `world_size`; by default those of torch.distributed, as in a user's program
    """
    if case == "solar":
        return SolarSampler(Numbers(), BATCH, ranks_per_node=1, quota=LENGTH // 3, **ranks)
    return LocalFirstSampler(Numbers(), BATCH, ranks_per_node=1, quota=LENGTH // 3, **ranks)


def module_of(case: str, directory: Path) -> Any:
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.got: list[list[list[int]]] = [[] for _ in range(EPOCHS)]

        def train_dataloader(self) -> Any:
            self.sampler = sampler_of(case)
            if case == "staged":
                return StagedLoader(Numbers(), batch_sampler=self.sampler, workers=1)
            return DataLoader(Numbers(), batch_sampler=self.sampler)

        def training_step(self, batch: torch.Tensor, _: int) -> Any:
            self.got[self.current_epoch].append(batch[:, 0].int().tolist())
            return self.layer(batch).mean() * self.sampler.weight(len(batch))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

        def on_train_end(self) -> None:
            told = directory / f"{case}-{self.global_rank}.json"
            told.write_text(json.dumps(self.got))

    return Module()


def train(case: str, directory: Path, ranks: int, **settings: Any) -> None:
    import lightning

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp_fork" if ranks > 1 else "auto",
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(module_of(case, directory))


def main() -> None:
    directory = Path(sys.argv[1])
    torch.set_num_threads(1)
    import lightning  # noqa: F401

    # The objects that exist now are frozen, so that the garbage collector of a forked rank skips
    # them.
    gc.collect()
    gc.freeze()
    # The case `alone` comes last: it has one rank, so it computes gradients in this process, which
    # must not fork afterwards.
    train("local", directory, RANKS, use_distributed_sampler=False)
    train("solar", directory, RANKS, use_distributed_sampler=False)
    # Lightning replaces samplers only in a DataLoader. So a StagedLoader does not need the setting
    # use_distributed_sampler=False.
    train("staged", directory, RANKS)
    try:
        train("twice", directory, RANKS)
    except Exception as error:
        print(error)
    train("alone", directory, 1)


if __name__ == "__main__":
    main()
