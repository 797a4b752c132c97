"""The policies by the names that they have on the command line."""

from __future__ import annotations

from collections.abc import Callable

from monarch_py.errors import PolicyError
from monarch_py.policies.baselines import (
    DeepIO,
    LBANNDynamic,
    LBANNPreloading,
    Naive,
    Perfect,
    StagingBuffer,
)
from monarch_py.policies.caches import LRU, Belady, FirstFit, Hash
from monarch_py.policies.groupshuffle import GroupShuffle
from monarch_py.policies.lobster import Lobster
from monarch_py.policies.nopfs import NoPFS, NoPFSLiteral, Planned
from monarch_py.policies.reordering import DeepIOOpportunistic, LocalityAware, ParallelStaging
from monarch_py.policies.solar import Solar
from monarch_py.policies.view import Policy

__all__ = ["NAMES", "make_policy"]

_MAKERS: tuple[Callable[[], Policy], ...] = (
    Perfect,
    Naive,
    StagingBuffer,
    FirstFit,
    Hash,
    LRU,
    lambda: LRU(shared=True),
    Belady,
    lambda: Belady(shared=True),
    DeepIO,
    DeepIOOpportunistic,
    ParallelStaging,
    LBANNDynamic,
    LBANNPreloading,
    LocalityAware,
    GroupShuffle,
    NoPFS,
    NoPFSLiteral,
    Planned,
    Lobster,
    Solar,
    lambda: Solar(reorder=True),
)
_BY_NAME = {make().name: make for make in _MAKERS}
NAMES = tuple(_BY_NAME)


def make_policy(name: str) -> Policy:
    """The policy of that name, with its defaults; PolicyError for a name that is none."""
    if name not in _BY_NAME:
        raise PolicyError(f"policy: {name!r} is none of {', '.join(NAMES)}")
    return _BY_NAME[name]()
