"""Makes torch tensors from arrays, if torch is installed."""

import importlib.util
from functools import cache
from typing import Any

from monarch_py.arrays import Array


@cache
def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def as_tensor(array: Array) -> Any:
    """Returns a tensor that shares the array's memory. Returns the array itself if torch is not
    installed or does not have the array's dtype."""
    if not has_torch():
        return array
    import torch

    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):  # ValueError: the byte order is not this machine's
        return array
