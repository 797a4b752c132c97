"""A model that is trained with group shuffle becomes as good as one that is trained with a full
shuffle, unless the dataset is sorted by class (Lee and others, 2021, section IV)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monarch_py.arrays import Array
from monarch_py.loaders.groups.loader import GroupLoader
from monarch_py.loaders.records.dataset import RecordDataset

torch = pytest.importorskip("torch")

# The images: their side [pixels], the number of classes, and the standard deviation of the noise
# that is added to a class's pattern.
SIDE, CLASSES, NOISE = 10, 8, 2.0
BATCH, GROUP = 32, 128
# Two mean losses count as equally good if their relative difference is at most MARGIN.
# STUDENT_T maps the number of seeds to Student's t for a 90 % interval.
MARGIN = 0.03
STUDENT_T = {4: 2.353, 10: 1.833}


@dataclass(frozen=True)
class Images:
    """Images and their classes.

    images : (samples, SIDE, SIDE) float32
    labels : (samples,) int64
    """

    images: Array
    labels: Array

    @classmethod
    def drawn(cls, count: int, seed: int) -> Images:
        patterns = np.random.default_rng(0).normal(size=(CLASSES, SIDE, SIDE))
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, CLASSES, count)
        shifted = [np.roll(patterns[each], rng.integers(-1, 2, 2), (0, 1)) for each in labels]
        images = np.array(shifted) + rng.normal(scale=NOISE, size=(count, SIDE, SIDE))
        return cls(images.astype(np.float32), labels)

    def sorted(self) -> Images:
        order = np.argsort(self.labels, kind="stable")
        return Images(self.images[order], self.labels[order])


def mlp() -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE * SIDE, 32), nn.ReLU(), nn.Linear(32, CLASSES)
    )


def cnn() -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE)),
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * (SIDE // 2 - 1) ** 2, CLASSES),
    )


def trained(model: Any, epochs: Iterable[Iterable[Any]], count: int) -> Any:
    """Trains the model by SGD with a learning rate that falls to 0, and returns it.

    count : the number of epochs
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, count)
    for epoch in epochs:
        for images, labels in epoch:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        schedule.step()
    return model


def loss_of(model: Any, images: Images) -> float:
    with torch.no_grad():
        outputs = model(torch.from_numpy(images.images))
        loss = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(images.labels))
    return float(loss)


def fully_shuffled(images: Images, seed: int, epochs: int) -> Iterable[Iterable[Any]]:
    rng = np.random.default_rng(seed)
    whole, labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(len(labels)))
        yield ((whole[batch], labels[batch]) for batch in order.split(BATCH))


def in_groups(loader: GroupLoader, epochs: int) -> Iterable[Iterable[Any]]:
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        yield loader


def image(samples: list[bytes]) -> Any:
    rows = np.frombuffer(b"".join(samples), dtype=np.float32).reshape(-1, SIDE, SIDE)
    return torch.from_numpy(rows.copy())


def ratios(place: Path, images: Images, make: Any, *, seeds: int, epochs: int) -> list[float]:
    """Returns, for each seed, the final validation loss with group shuffle, divided by the loss
    with a full shuffle."""
    validation = Images.drawn(4000, 2)
    (place / "train.bin").write_bytes(images.images.tobytes())
    dataset = RecordDataset(place / "train.bin", record_bytes=4 * SIDE * SIDE)
    found = []
    for seed in range(seeds):
        losses = []
        loader = GroupLoader(
            dataset, BATCH, GROUP, epochs=epochs, seed=seed, rank=0, world_size=1, collate=image
        )
        loader.labels = images.labels  # the constructor would warn of sorted labels
        for order in (in_groups(loader, epochs), fully_shuffled(images, seed, epochs)):
            torch.manual_seed(seed)
            losses.append(loss_of(trained(make(), order, epochs), validation))
        loader.close()
        found.append(losses[0] / losses[1])
    return found


def interval(values: list[float]) -> tuple[float, float]:
    """Returns the 90 % confidence interval of the mean."""
    mean = statistics.mean(values)
    half = STUDENT_T[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def is_as_good(values: list[float]) -> bool:
    low, high = interval(values)
    print(f"group shuffle / full shuffle: {low:.4f} to {high:.4f}")
    return low >= 1 - MARGIN and high <= 1 + MARGIN


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_short_training_is_as_good(tmp_path: Path) -> None:
    images = Images.drawn(1024, 1)
    assert is_as_good(ratios(tmp_path, images, mlp, seeds=4, epochs=4))
    assert not is_as_good(ratios(tmp_path, images.sorted(), mlp, seeds=4, epochs=4))


@pytest.mark.long
@pytest.mark.parametrize("make", [mlp, cnn])
def test_a_training_is_as_good(tmp_path: Path, make: Any) -> None:
    images = Images.drawn(4096, 1)
    assert is_as_good(ratios(tmp_path, images, make, seeds=10, epochs=20))
    assert not is_as_good(ratios(tmp_path, images.sorted(), make, seeds=10, epochs=20))
