"""Batches without samples, for ranks that may have no samples in a step."""

from collections.abc import Callable, Mapping
from typing import Any


class AllowEmpty:
    """A collate function for DataLoader that can also make a batch without samples. Such a batch
    has the form of other batches, but its tensors have the length 0.

    example : a sample of the dataset, from which the form of the empty batch is derived
    collate : the collate function for batches with samples; None for torch's default
    """

    def __init__(self, example: Any, collate: Callable[[list[Any]], Any] | None = None) -> None:
        self.example, self.collate = example, collate

    def __call__(self, samples: list[Any]) -> Any:
        collate = self.collate or _default()
        if samples:
            return collate(samples)
        return _emptied(collate([self.example]), collate([self.example, self.example]))


def _default() -> Callable[[list[Any]], Any]:
    from torch.utils.data import default_collate

    return default_collate


def _emptied(one: Any, two: Any) -> Any:
    """Returns the batch `one` without its sample. If a list or an array has different lengths in
    `one` and in `two`, it has an element for each sample, and is emptied. Everything else is kept.

    one, two : a batch of one sample, and a batch of two samples
    """
    if isinstance(one, Mapping):
        return {key: _emptied(one[key], two[key]) for key in one}
    if not hasattr(one, "__len__") or getattr(one, "shape", None) == ():
        return one
    if len(one) != len(two):
        return one[:0]
    if not isinstance(one, list | tuple):
        return one
    parts = list(map(_emptied, one, two))
    return type(one)(*parts) if hasattr(one, "_fields") else type(one)(parts)
