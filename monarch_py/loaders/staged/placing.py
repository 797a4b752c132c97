"""How a batch lies in a slot: its arrays one behind the other, and a tree that says where.

Arrays, and torch's tensors in the processor's memory, are written into the slot; everything else of
a batch (names, numbers, objects) stays in the tree, which is pickled.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monarch_py.errors import ConfigError, MonarchError
from monarch_py.loaders.memory.ring import Bytes
from monarch_py.loaders.memory.tensors import as_tensor
from monarch_py.native import Array
from monarch_py.util.units import format_size

# Where an array may begin in a slot [bytes]: a cache line, which suits every dtype.
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Stack:
    """Arrays of one shape that become one array of the batch."""

    items: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Placed:
    """An array in a slot.

    offset : where it begins [bytes];  dtype : numpy's, or the name of torch's if numpy lacks it
    is_tensor : whether DataLoader would give a tensor
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str
    is_tensor: bool


def collate(samples: Sequence[Any]) -> Any:
    """A batch of these samples, as torch's default_collate makes it, with each array of the batch
    as a Stack. Raises ConfigError for samples that it cannot put together."""
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
    raise ConfigError(f"collate_fn: samples of {type(first)} have no default; give a function")


def _collate_sequences(samples: Sequence[Any]) -> Any:
    first = samples[0]
    if any(len(sample) != len(first) for sample in samples):
        raise ConfigError("collate_fn: samples differ in length, and have no default; give one")
    columns = [collate(column) for column in zip(*samples, strict=True)]
    return type(first)(*columns) if hasattr(first, "_fields") else columns


def emptied(batch: Any) -> Any:
    """A batch of no samples, of the form that `collate` has given to this one."""
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
    """Writes the arrays of a batch into a slot. Returns the batch's tree, with a Placed for each
    array, and how much of the slot is taken [bytes]. Raises MonarchError if the slot is too small.

    by_default : `collate` has made the batch, so that arrays stand for tensors
    """
    placing = _Placing(slot, by_default)
    return _mapped(batch, placing.leaf), placing.used


def take(tree: Any, slot: Bytes, *, tensors: bool) -> Any:
    """The batch that `place` has written: its arrays are views of the slot.

    tensors : give tensors of torch, where torch has the dtype
    """

    def view(placed: Placed) -> Any:
        if placed.dtype.startswith("torch."):
            return _torch_view(placed, slot)
        array = view_of(slot, placed.offset, placed.shape, np.dtype(placed.dtype))
        return as_tensor(array) if tensors and placed.is_tensor else array

    return _mapped(tree, lambda leaf: view(leaf) if isinstance(leaf, Placed) else leaf)


def copied(batch: Any) -> Any:
    """The batch with arrays of its own, in memory of this process."""

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
    """The tree with `change` of each leaf in the leaf's place."""
    if isinstance(tree, dict):
        return {key: _mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        values = [_mapped(value, change) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return change(tree)


def _is_tensor(value: Any) -> bool:
    # By name, since torch need not be there.
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "is_cpu")


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor is bytes in the processor's memory: no sparse one, and none of a GPU."""
    return bool(tensor.is_cpu and str(tensor.layout) == "torch.strided" and not tensor.is_complex())


def _torch_view(placed: Placed, slot: Bytes) -> Any:
    import torch

    dtype = getattr(torch, placed.dtype.removeprefix("torch."))
    n_bytes = math.prod(placed.shape) * dtype.itemsize
    raw = torch.from_numpy(slot[placed.offset : placed.offset + n_bytes])
    return raw.view(dtype).reshape(placed.shape)


class _Placing:
    """Fills a slot from its beginning on."""

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
            raise ConfigError(f"collate_fn: arrays of {first.dtype} have no default; give one")
        if any(item.shape != first.shape or item.dtype != first.dtype for item in items):
            raise ConfigError("collate_fn: arrays differ in shape or dtype; give a function")
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
        """The next room for an array of this form. dtype : with an itemsize, numpy's or torch's"""
        begin = -(-self.used // ALIGNMENT) * ALIGNMENT
        end = begin + math.prod(shape) * dtype.itemsize
        check_room(end, self._slot)
        self.used = end
        return Placed(begin, tuple(shape), name, is_tensor)


def _numpy_has(tensor: Any) -> bool:
    return "bfloat16" not in str(tensor.dtype) and "float8" not in str(tensor.dtype)


def check_room(n_bytes: int, slot: Bytes) -> None:
    """Raises MonarchError if a batch of so many bytes does not fit into the slot."""
    if n_bytes > len(slot):
        raise MonarchError(
            f"max_batch: a batch has {format_size(n_bytes)}, more than the {format_size(len(slot))}"
            " of a slot; give a larger max_batch"
        )
