"""Samplers: the orders in which samples are accessed, known before the training starts.

A sampler that has the name of a sampler of PyTorch, TensorFlow, DALI or NoPFS yields exactly the
same indices as the original. If an order depends on what else the program does, it is known only
for the first epochs (the sampler's `reach` is the number of these epochs), or it must be recorded.
The samplers Recorded and Listed replay a recorded order.
"""

from typing import Any

from monarch_py.plan.samplers._base import MAX_SAMPLES, NONE, Order, Sampler, check_choice
from monarch_py.plan.samplers._dali import DALIReader
from monarch_py.plan.samplers._groups import GroupShuffle
from monarch_py.plan.samplers._nopfs import NoPFSSampler
from monarch_py.plan.samplers._numpy import NumpySampler
from monarch_py.plan.samplers._plain import Listed, Recorded, SequentialSampler, read_indices
from monarch_py.plan.samplers._pytorch import (
    DistributedSampler,
    GlobalRandomSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from monarch_py.plan.samplers._tensorflow import TensorFlowShuffle

__all__ = [
    "MAX_SAMPLES",
    "NONE",
    "SAMPLERS",
    "DALIReader",
    "DistributedSampler",
    "GlobalRandomSampler",
    "GroupShuffle",
    "Listed",
    "NoPFSSampler",
    "NumpySampler",
    "Order",
    "RandomSampler",
    "Recorded",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "TensorFlowShuffle",
    "WeightedRandomSampler",
    "check_choice",
    "read_indices",
]

# The class of every sampler, by the class's name.
SAMPLERS: dict[str, Any] = {
    name: value
    for name, value in list(globals().items())
    if Sampler in getattr(value, "__mro__", ()) and value is not Sampler
}
