"""The policies by their names on the command line."""

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

# Each policy with a one-line summary, for users who choose one; docs/simulator.md has the sources.
_MAKERS: tuple[tuple[Callable[[], Policy], str], ...] = (
    (Perfect, "Nothing ever waits: the lower bound."),
    (Naive, "Reads each sample when it is needed, keeps nothing."),
    (StagingBuffer, "Prefetches in the order of use, keeps nothing."),
    (FirstFit, "Keeps what it reads while there is room, evicts nothing."),
    (Hash, "Gives each file an owner, which reads it for all nodes."),
    (LRU, "Evicts what was used longest ago, on each node."),
    (lambda: LRU(shared=True), "The same with one cache for all nodes."),
    (Belady, "Evicts what is used farthest ahead, on each node."),
    (lambda: Belady(shared=True), "The same with one cache for all nodes."),
    (DeepIO, "Shares in memory before training, the sampler's order."),
    (DeepIOOpportunistic, "Draws the order from what lies in memory."),
    (ParallelStaging, "Copies a share to each node, which uses it alone."),
    (LBANNDynamic, "Keeps a sample in memory, for all, where it is read first."),
    (LBANNPreloading, "Shares in memory before training, for all nodes."),
    (LocalityAware, "Exchanges samples of a step, so that most are local."),
    (GroupShuffle, "Shuffles contiguous groups, and the samples in them."),
    (NoPFS, "Holds a file where it is used most, fetches the fastest."),
    (NoPFSLiteral, "The same to the letter of its paper."),
    (Planned, "NoPFS's holders, which alone read a file from the source."),
    (Lobster, "Evicts by reuse count and distance, shares threads."),
    (Solar, "Gives samples to the nodes that hold them, evens loads."),
    (lambda: Solar(reorder=True), "The same, with epochs in the order that reuses most."),
)
_BY_NAME = {make().name: make for make, _ in _MAKERS}
NAMES = tuple(_BY_NAME)
SUMMARIES = dict(zip(NAMES, (summary for _, summary in _MAKERS), strict=True))
# The policies that Monarch's daemon uses today, and where.
DAEMON = {
    FirstFit().name: "one node",
    Hash().name: "several nodes",
    Planned().name: "several nodes with a plan",
}


def make_policy(name: str) -> Policy:
    """The policy with this name, with its defaults; PolicyError for an unknown name."""
    if name not in _BY_NAME:
        raise PolicyError(f"policy: {name!r} is none of {', '.join(NAMES)}")
    return _BY_NAME[name]()
