"""Detects loaders that must not use a batch sampler of Monarch. There are three kinds: loaders that
divide the samples among the ranks a second time, loaders that deliver batches out of order, and
loaders whose dataset has more or fewer samples than the batch sampler.

A batch sampler is not told which loader uses it. But the loader calls the sampler's `__iter__` or
`__len__`. So this module looks for the loader among the local variables of the calling function.
"""

from types import FrameType
from typing import Any

from monarch_py.errors import ConfigError

# The names of classes of torch and accelerate that divide the items of a sampler among the ranks.
SHARDING = frozenset({"BatchSamplerShard", "DistributedSampler", "IterableDatasetShard"})
# The packages that contain the SHARDING classes and DataLoaders. The local variables of a running
# function are examined only if the function is in one of these packages. Examining variables has a
# side effect: before Python 3.13, their objects stay alive until the function ends.
PACKAGES = frozenset(
    {"torch", "torchdata", "accelerate", "transformers", "lightning", "pytorch_lightning"}
)
_TWICE = "it yields only this rank's batches, and {who} would deal them to the ranks again; {mend}"
_MENDS = {
    "BatchSamplerShard": "do not pass this loader to accelerator.prepare",
    "DistributedSampler": "pass this sampler only as DataLoader's batch_sampler, and pass"
    " use_distributed_sampler=False to Lightning's Trainer",
}


def _sharding(thing: Any) -> str | None:
    """Returns the name of the class of `thing`, or of one of its base classes, if that name is in
    SHARDING. Returns None otherwise."""
    return next((c.__name__ for c in type(thing).__mro__ if c.__name__ in SHARDING), None)


def _twice(who: str) -> ConfigError:
    mend = _MENDS.get(who, f"remove the {who}")
    return ConfigError(f"batch_sampler: {_TWICE.format(who=who, mend=mend)}")


def refuse_sampler(files: Any) -> None:
    """Raises ConfigError if `files` is a sampler. For example, Lightning may construct the batch
    sampler anew, with a sampler of its own as the first argument instead of the files."""
    if _sharding(files) is not None:
        raise _twice("DistributedSampler")
    if any(each.__name__ == "Sampler" for each in type(files).__mro__):
        raise ConfigError(
            f"files: got a {type(files).__name__}, but this sampler draws the order itself; give"
            " the paths of the files, or the dataset"
        )


def other_length(samples: int, dataset: Any) -> ConfigError | None:
    """Returns an error if the dataset and the sampler differ in their number of samples. Returns
    None if the numbers are equal, or if the dataset has no length."""
    if not hasattr(dataset, "__len__") or len(dataset) == samples:
        return None
    return ConfigError(
        f"files: the sampler has {samples} samples, and the loader's dataset has {len(dataset)};"
        " give both of them the same files in the same order"
    )


def found_misuse(frame: FrameType | None, samples: int) -> ConfigError | None:
    """Returns an error if the caller misuses a sampler of `samples` samples; otherwise None. There
    are three misuses: the caller divides the batches among the ranks again; the caller is a
    DataLoader that delivers batches out of order; the caller's dataset has another number of
    samples.

    frame : the caller's stack frame
    """
    if frame is None or frame.f_globals.get("__name__", "").split(".")[0] not in PACKAGES:
        return None
    who = _sharding(frame.f_locals.get("self"))
    if who is not None:
        return _twice(who)
    loader = frame.f_locals.get("loader")
    if getattr(loader, "in_order", True) is False and getattr(loader, "num_workers", 0) > 0:
        return ConfigError(
            "in_order: with in_order=False, batches arrive in any order, so the sampler knows"
            " neither which batches were delivered nor the weight of a batch's loss; remove"
            " in_order=False"
        )
    return other_length(samples, getattr(loader, "dataset", None))
