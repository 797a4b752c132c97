"""Splits a batch into arrays, which go into a slot, and a tree that shows where each array is.

Arrays, and torch's tensors in main memory, are written into the slot. Everything else in a batch
(names, numbers, objects) stays in the tree, which is pickled and sent to the training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monarch_py.arrays import Array
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.loaders.memory.ring import Bytes
from monarch_py.loaders.memory.tensors import as_tensor
from monarch_py.util.units import format_size

# In a slot, arrays begin at multiples of this number of bytes. The number is the size of a cache
# line, and suits every dtype.
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Stack:
    """Arrays of one shape that will be stacked into one array of the batch."""

    items: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Placed:
    """An array in a slot.

    offset : where the array begins [bytes]
    dtype : the name of a numpy dtype, or of a torch dtype that numpy lacks
    is_tensor : whether DataLoader would return the array as a tensor
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str
    is_tensor: bool


def collate(samples: Sequence[Any]) -> Any:
    """Returns the batch that torch's default_collate would make of the samples, but with a Stack in
    place of each stacked array. `place` later stacks the arrays in the slot. Raises ConfigError if
    default_collate makes no batch of such samples."""
    if not samples:
        return []
    first = samples[0]
    if isinstance(first, np.ndarray) or _is_tensor(first):
        return Stack(samples)
    if isinstance(first, (bool, int, float, complex, np.generic)):
        return np.asarray(samples)
    if isinstance(first, (str, bytes)):
        return list(samples)
    if isinstance(first, Mapping):
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, (tuple, list)):
        return _collate_sequences(samples)
    raise ConfigError(f"collate_fn: there is no default for {type(first)}; give a function")


def _collate_sequences(samples: Sequence[Any]) -> Any:
    first = samples[0]
    if any(len(sample) != len(first) for sample in samples):
        raise ConfigError("collate_fn: there is no default for unequal lengths; give a function")
    columns = [collate(column) for column in zip(*samples, strict=True)]
    return type(first)(*columns) if hasattr(first, "_fields") else columns


def emptied(batch: Any) -> Any:
    """Returns an empty batch (without samples) that has the form of `batch`, a result of
    `collate`."""
    if isinstance(batch, Stack):
        return batch.items[0][None][:0]
    if isinstance(batch, np.ndarray):
        return batch[:0]
    if isinstance(batch, dict):
        return {key: emptied(value) for key, value in batch.items()}
    if isinstance(batch, list) and all(isinstance(part, (str, bytes)) for part in batch):
        return []
    parts = [emptied(part) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else parts


def place(batch: Any, slot: Bytes, *, by_default: bool) -> tuple[Any, int]:
    """Writes the arrays of a batch into a slot. Returns two values: the batch's tree, which has a
    Placed in place of each array, and the number of bytes of the slot that are used. Raises
    MonarchError if the slot is too small.

    by_default : True if `collate` has made the batch, False if a function of the user has. If True,
        arrays are marked as tensors, as torch's default_collate would return them
    """
    placing = _Placing(slot, by_default)
    return _mapped(batch, placing.leaf), placing.used


def take(tree: Any, slot: Bytes, *, tensors: bool) -> Any:
    """Returns the batch that `place` has written, with views of the slot as its arrays.

    tensors : whether arrays that are marked as tensors become torch's tensors, if torch has their
        dtype
    """

    def view(placed: Placed) -> Any:
        if placed.dtype.startswith("torch."):
            return _torch_view(placed, slot)
        array = view_of(slot, placed.offset, placed.shape, np.dtype(placed.dtype))
        return as_tensor(array) if tensors and placed.is_tensor else array

    return _mapped(tree, lambda leaf: view(leaf) if isinstance(leaf, Placed) else leaf)


def copied(batch: Any) -> Any:
    """Returns the batch with copies of its arrays, in memory of this process."""

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return leaf.copy()
        return leaf.clone() if _is_tensor(leaf) else leaf

    return _mapped(batch, copy)


def view_of(slot: Bytes, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
    end = offset + dtype.itemsize * math.prod(shape)
    found: Array = slot[offset:end].view(dtype).reshape(shape)
    return found


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Returns the tree with each leaf replaced by `change(leaf)`."""
    if isinstance(tree, dict):
        return {key: _mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        values = [_mapped(value, change) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return change(tree)


def _is_tensor(value: Any) -> bool:
    # Recognise the type by its module's name, because torch may be missing.
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "is_cpu")


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor can be copied byte by byte: it is dense, not complex, and not on a GPU."""
    return bool(tensor.is_cpu and str(tensor.layout) == "torch.strided" and not tensor.is_complex())


def _torch_view(placed: Placed, slot: Bytes) -> Any:
    import torch

    dtype = getattr(torch, placed.dtype.removeprefix("torch."))
    n_bytes = math.prod(placed.shape) * dtype.itemsize
    raw = torch.from_numpy(slot[placed.offset : placed.offset + n_bytes])
    return raw.view(dtype).reshape(placed.shape)


class _Placing:
    """Writes arrays into a slot, one after the other from its beginning."""

    def __init__(self, slot: Bytes, by_default: bool) -> None:
        self._slot = slot
        self._by_default = by_default
        self.used = 0

    def leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, Stack):
            return self._stack(leaf.items)
        if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
            return self._array(leaf, self._by_default)
        if _is_tensor(leaf) and _is_plain(leaf):
            return self._tensor(leaf.detach())
        return leaf

    def _stack(self, items: Sequence[Any]) -> Any:
        if _is_tensor(items[0]):
            if not all(map(_is_plain, items)) or not _numpy_has(items[0]):
                import torch

                return self.leaf(torch.stack([item.detach() for item in items]))
            items = [item.detach().numpy() for item in items]
        first = items[0]
        if first.dtype.hasobject:
            raise ConfigError(
                f"collate_fn: there is no default for arrays of {first.dtype}; give a function"
            )
        if any(item.shape != first.shape or item.dtype != first.dtype for item in items):
            raise ConfigError(
                "collate_fn: there is no default for different shapes or dtypes; give a function"
            )
        placed = self._room((len(items), *first.shape), first.dtype, first.dtype.str, True)
        np.stack(items, out=view_of(self._slot, placed.offset, placed.shape, first.dtype))
        return placed

    def _array(self, array: Array, is_tensor: bool) -> Placed:
        placed = self._room(array.shape, array.dtype, array.dtype.str, is_tensor)
        view_of(self._slot, placed.offset, placed.shape, array.dtype)[...] = array
        return placed

    def _tensor(self, tensor: Any) -> Placed:
        if _numpy_has(tensor):
            return self._array(tensor.numpy(), True)
        placed = self._room(tuple(tensor.shape), tensor.dtype, str(tensor.dtype), True)
        _torch_view(placed, self._slot).copy_(tensor)
        return placed

    def _room(self, shape: tuple[int, ...], dtype: Any, name: str, is_tensor: bool) -> Placed:
        """Reserves room for an array, after the arrays that the slot already has.

        dtype : a dtype of numpy or of torch
        """
        begin = -(-self.used // ALIGNMENT) * ALIGNMENT
        end = begin + math.prod(shape) * dtype.itemsize
        check_room(end, self._slot)
        self.used = end
        return Placed(begin, tuple(shape), name, is_tensor)


def _numpy_has(tensor: Any) -> bool:
    return "bfloat16" not in str(tensor.dtype) and "float8" not in str(tensor.dtype)


def check_room(n_bytes: int, slot: Bytes) -> None:
    """Checks that a batch of `n_bytes` fits into the slot. Raises MonarchError if it does not."""
    if n_bytes > len(slot):
        raise MonarchError(
            f"max_batch: a batch has {format_size(n_bytes)}, more than the {format_size(len(slot))}"
            " of a slot; give a larger max_batch"
        )
