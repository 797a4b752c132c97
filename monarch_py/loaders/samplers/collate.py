"""Batches without samples, for ranks that may have none in a step."""

from collections.abc import Callable, Mapping
from typing import Any


class AllowEmpty:
    """A collate function for DataLoader that can also make a batch without samples. Such a batch
    has the form of all others, but its tensors have the length 0.

    example : a sample of the dataset, which gives the form
    collate : the collate function for other batches; None for torch's default
    """

    def __init__(self, example: Any, collate: Callable[[list[Any]], Any] | None = None) -> None:
        self.example, self.collate = example, collate

    def __call__(self, samples: list[Any]) -> Any:
        collate = self.collate or _default()
        return collate(samples) if samples else _emptied(collate([self.example]))


def _default() -> Callable[[list[Any]], Any]:
    from torch.utils.data import default_collate

    return default_collate


def _emptied(batch: Any) -> Any:
    """Returns the batch without its samples."""
    if isinstance(batch, Mapping):
        return {key: _emptied(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_emptied, batch))
    if isinstance(batch, list | tuple) and all(hasattr(part, "shape") for part in batch):
        return type(batch)(map(_emptied, batch))
    return batch[:0]
