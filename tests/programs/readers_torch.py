"""Readers of PyTorch: torch.load, storages mapped from files, DataLoaders, and a training run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from reader_kit import Transcript, digest, files_of, reader, register


def _tell_tensors(out: Transcript, path: Path, tensors: dict[str, Any], way: str) -> None:
    for name, tensor in sorted(tensors.items()):
        out.data(path, tensor.numpy().tobytes(), tensor=name, way=way)


@reader
def torch_load(root: Path, out: Transcript) -> None:
    """Reads with torch.load, by name and from an open file."""
    import torch

    for path in files_of(root, "torch/*.pt"):
        _tell_tensors(out, path, torch.load(path, weights_only=True), "name")
        with open(path, "rb") as file:
            _tell_tensors(out, path, torch.load(file, weights_only=True), "file")


@reader
def torch_load_mmap(root: Path, out: Transcript) -> None:
    """Reads with torch.load(mmap=True), which makes private mappings, so writes must not change the
    file."""
    import torch

    for path in files_of(root, "torch/*.pt"):
        tensors = torch.load(path, mmap=True, weights_only=True)
        tensors["bias"] += 1
        _tell_tensors(out, path, tensors, "mmap")
        _tell_tensors(out, path, torch.load(path, weights_only=True), "after")


@reader
def torch_from_file(root: Path, out: Transcript) -> None:
    """Reads a raw file with torch.from_file, through a private mapping."""
    import torch

    for path in files_of(root, "raw/*.bin"):
        count = path.stat().st_size // 4
        tensor = torch.from_file(str(path), shared=False, size=count, dtype=torch.float32)
        out.data(path, tensor.numpy().tobytes())


class Digests:
    """A map-style dataset of images and texts: sample i is (i, the digest of file i)."""

    def __init__(self, root: Path) -> None:
        self._paths = files_of(root, "images/*/*", "text/*", "edge/page")

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[int, str]:
        with open(self._paths[index], "rb") as file:
            return index, digest(file.read())


def _end_feeders() -> None:
    """Waits for the threads that fill the workers' queues, because torch does not wait for them.

    Each of these threads frees a semaphore when it ends. In rare cases the interpreter would end
    before such a thread, and Python's resource tracker would warn."""
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join()


def _dataloader_reader(method: str | None, workers: int) -> None:
    def read(root: Path, out: Transcript) -> None:
        from torch.utils.data import DataLoader

        loader: DataLoader[Any] = DataLoader(
            Digests(root),  # type: ignore[arg-type]  # torch's types ask for a subclass
            batch_size=8,
            num_workers=workers,
            multiprocessing_context=method,
            persistent_workers=workers > 0,
        )
        for epoch in range(2):
            for indices, digests in loader:
                for index, found in zip(indices.tolist(), digests, strict=True):
                    out.line(f"sample {index}", epoch=epoch, sha256=found)
        del loader
        _end_feeders()

    register(f"torch_dataloader_{method}_{workers}" if method else "torch_dataloader_0", read)


for _method, _workers in ((None, 0), ("fork", 2), ("spawn", 2), ("forkserver", 2)):
    _dataloader_reader(_method, _workers)


@reader
def torch_training(root: Path, out: Transcript) -> None:
    """Trains a network and records its weights. They must be equal, to the last bit, with and
    without the library."""
    from train_torch import train

    train(root, out)
    _end_feeders()
