"""Trains a small convolutional network on the images of a dataset, always the same way.

Writes the loss of every epoch, and a digest of the weights before and after the training. The
output depends only on the bytes of the images, so that one wrong sample changes the last line.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from reader_kit import Transcript
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = 2
WORKERS = 2
SEED = 1234
RATE = 0.1


class ImageFolder(Dataset[tuple[torch.Tensor, int]]):
    """The images of `root`/CLASS/*. A sample is (image, class number); the image is a float32
    tensor (3, height, width) in 0..1."""

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
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"), dtype=np.float32) / 255
        return torch.from_numpy(pixels).permute(2, 0, 1), label


def make_model(classes: int) -> nn.Module:
    """Returns a model that computes logits (n, classes) from images (n, 3, h, w). The model has two
    convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, classes),
    )


def weights_digest(model: nn.Module) -> str:
    """Returns the SHA-256 of all weights in their order."""
    sums = hashlib.sha256()
    for name, weight in model.state_dict().items():
        sums.update(name.encode() + weight.numpy().tobytes())
    return sums.hexdigest()


def train(root: Path, out: Transcript) -> None:
    """Trains on `root`/images, and records the losses and the digests of the weights."""
    # With several threads, the rounding of a sum would depend on how the threads split the sum.
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    # torch.use_deterministic_algorithms calls the function below, but also imports torch's
    # compiler. torch.optim imports the compiler too, so the loop below updates the weights itself.
    torch._C._set_deterministic_algorithms(True)
    data = ImageFolder(root / "images")
    loader = DataLoader(
        data,
        batch_size=16,
        shuffle=True,
        num_workers=WORKERS,
        generator=torch.Generator().manual_seed(SEED),
    )
    model = make_model(len(data.classes))
    out.line("start", weights=weights_digest(model))
    for epoch in range(EPOCHS):
        total = 0.0
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            weights = list(model.parameters())
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.sub_(RATE * gradient)
            total += loss.item() * len(labels)
        out.line("loss", epoch=epoch, mean=(total / len(data)).hex())
    out.line("end", weights=weights_digest(model))
