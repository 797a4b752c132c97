"""The policies by their names on the command line."""

from functools import partial

from monarch_py.policies.baselines import (
    deepio,
    lbann_dynamic,
    lbann_preloading,
    naive,
    perfect,
    staging_buffer,
)
from monarch_py.policies.caches import belady, first_fit, hashed, lru
from monarch_py.policies.groupshuffle import group_shuffle
from monarch_py.policies.lobster.policy import lobster
from monarch_py.policies.nopfs.policy import nopfs, nopfs_literal, planned
from monarch_py.policies.reordering import deepio_opportunistic, locality_aware, parallel_staging
from monarch_py.policies.solar.policy import Solar
from monarch_py.policies.view import Policy

# Each policy with a one-line summary, for users who choose one; docs/simulator.md names the papers.
_POLICIES: tuple[tuple[str, Policy, str], ...] = (
    ("perfect", perfect, "Nothing ever waits: the lower bound."),
    ("naive", naive, "Reads each sample when it is needed, and keeps nothing."),
    ("staging-buffer", staging_buffer, "Prefetches in the order of use, and keeps nothing."),
    ("first-fit", first_fit, "Keeps what it reads while there is room, and evicts nothing."),
    ("hash", hashed, "Gives each file an owner, which reads it for all nodes."),
    ("lru", lru, "On each node, evicts the file that was used longest ago."),
    ("lru-shared", partial(lru, shared=True), "LRU with one cache for all nodes."),
    ("belady", belady, "On each node, evicts the file with the farthest next use."),
    ("belady-shared", partial(belady, shared=True), "Belady with one cache for all nodes."),
    ("deepio-ordered", deepio, "Loads a share into each memory; other files stay on the source."),
    (
        "deepio-opportunistic",
        deepio_opportunistic,
        "Uses only samples in memory, in a new order.",
    ),
    (
        "parallel-staging",
        parallel_staging,
        "Copies a share to each node, which uses only that share.",
    ),
    (
        "lbann-dynamic",
        lbann_dynamic,
        "The first node that reads a sample keeps it in memory for all nodes.",
    ),
    (
        "lbann-preloading",
        lbann_preloading,
        "Loads the whole dataset into the nodes' memories before training.",
    ),
    ("locality-aware", locality_aware, "Nodes exchange samples of a step, so that most are local."),
    ("group-shuffle", group_shuffle, "Shuffles contiguous groups, and the samples in them."),
    ("nopfs", nopfs, "Holds a file where it is used most, and fetches from the fastest place."),
    ("nopfs-literal", nopfs_literal, "NoPFS to the letter of its paper."),
    ("planned", planned, "NoPFS's placement, but only a file's owner reads the source."),
    ("lobster", lobster, "Evicts by reuse, and divides a node's threads among its GPUs."),
    ("solar", Solar(), "Nodes take the samples that they hold, and load equally many others."),
    (
        "solar-reordered",
        Solar(reorder=True),
        "SOLAR with reordered epochs, so that nodes find more samples in memory.",
    ),
)
POLICIES = {name: policy for name, policy, _ in _POLICIES}
NAMES = tuple(POLICIES)
SUMMARIES = {name: summary for name, _, summary in _POLICIES}
# The policies that Monarch's daemon uses, and when it uses each.
DAEMON = {
    "first-fit": "one node",
    "hash": "several nodes",
    "planned": "several nodes with a plan",
}
