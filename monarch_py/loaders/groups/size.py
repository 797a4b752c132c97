"""Chooses the size of groups, and warns if groups may lead to worse training results."""

import warnings

import numpy as np

from monarch_py.arrays import Array, Ints
from monarch_py.loaders.groups.reader import GroupReader

# The smallest group [bytes] that 'auto' chooses if memory and the number of ranks allow it. The
# reader keeps 2 MiB in flight (16 reads of 128 KiB), but less at the beginning and the end of a
# group. In a group of 16 MiB, the beginning and the end are too short to slow the reads much. Lee
# and others found that the training does not wait for groups of 11 MiB or more.
GROUP_BYTES = 16 << 20
# The loader warns that a dataset is sorted if its groups have too few different classes: on
# average, less than this share of the number that groups of random samples would have.
FEW_CLASSES = 0.5


def largest(sizes: Ints, group: int) -> int:
    """Returns the size of the largest group [bytes].

    sizes : (samples,) [bytes];  group : the number of samples in a group
    """
    return int(np.add.reduceat(sizes, np.arange(0, len(sizes), group)).max())


def fitting(sizes: Ints, epochs: int, ranks: int, memory: int) -> int:
    """Returns the number of samples per group that 'auto' chooses.

    sizes : (samples,) [bytes];  epochs, ranks : the training's numbers of epochs and ranks
    memory : the most memory for two groups [bytes]
    """
    mean = max(1.0, float(np.mean(sizes)))
    group = max(int(np.ceil(GROUP_BYTES / mean)), epochs + 1)
    group = max(1, min(group, len(sizes) // ranks))
    while group > 1 and GroupReader.SLOTS * largest(sizes, group) > memory:
        group = max(1, group * 9 // 10)
    return group


def warn(group: int, epochs: int, labels: Array | None) -> None:
    """Warns if a training run with groups may have worse results than one with a full shuffle."""
    if epochs >= group:
        warnings.warn(
            f"{epochs} epochs with groups of {group} samples: the training may be worse than with a"
            " full shuffle, because a group has too few samples for so many epochs; give groups of"
            f" more than {epochs} samples",
            stacklevel=3,
        )
    if labels is not None:
        found, expected = classes_of_groups(labels, group)
        if found < FEW_CLASSES * expected:
            warnings.warn(
                f"groups of {group} samples have {found:.1f} different labels on average, and"
                f" groups of random samples would have {expected:.1f}: the dataset is sorted;"
                " shuffle it once on disk, or use a full shuffle",
                stacklevel=3,
            )


def classes_of_groups(labels: Array, group: int) -> tuple[float, float]:
    """Returns the mean number of different labels in a group, and the mean number that is expected
    if the samples are in random order."""
    values, kind, counts = np.unique(labels, return_inverse=True, return_counts=True)
    of = np.arange(len(labels)) // group
    found = len(np.unique(of * len(values) + kind)) / (int(of[-1]) + 1)
    share = counts / len(labels)
    return found, float(np.sum(1 - (1 - share) ** min(group, len(labels))))
