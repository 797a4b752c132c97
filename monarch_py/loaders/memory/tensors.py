"""Arrays as tensors of torch, which need not be installed."""

import importlib.util
from functools import cache
from typing import Any

from monarch_py.arrays import Array


@cache
def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def as_tensor(array: Array) -> Any:
    """The array as a tensor over the same memory, if torch is installed and has its dtype."""
    if not has_torch():
        return array
    import torch

    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):  # ValueError: the array has the other byte order
        return array
