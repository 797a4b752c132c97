"""Fills storage classes with files in a given order, by array operations."""

from collections.abc import Callable

import numpy as np

from monarch_py.plan.access import NEVER
from monarch_py.policies.node import NodePolicy
from monarch_py.policies.placement import TierRoom
from monarch_py.policies.view import PFS, STAGING, Cluster, Copies, Int32s, Ints, Job


def rooms_of(capacity: Ints, files: int) -> list[TierRoom]:
    """Returns the room of a node's storage classes as a list of tiers. Each tier gets enough inodes
    for `files` files.

    capacity : (classes,) [bytes], as in `Cluster`. The list has no tier for the first class, the
        staging buffer
    """
    return [TierRoom(int(room), files, 1) for room in capacity[STAGING + 1 :]]


def copies_of(
    cluster: Cluster,
    sizes: Ints,
    policy_of: Callable[[int], NodePolicy],
    *,
    classes: int | None = None,
) -> Copies:
    """Returns the copies of all nodes: each node keeps the files that its policy selects, in the
    storage classes that the policy chooses.

    policy_of : a function that returns the policy of a node
    sizes : (files,) [bytes]
    classes : how many storage classes to use, including the staging buffer (None = all)
    """
    return Copies.of(
        [
            (node, level, files)
            for node in range(cluster.nodes)
            for level, files in enumerate(classes_of(policy_of(node), cluster, sizes, classes))
        ]
    )


def classes_of(
    policy: NodePolicy, cluster: Cluster, sizes: Ints, classes: int | None = None
) -> list[Ints]:
    """Returns, for each storage class, the files that a node keeps in this class. The files are
    copied in the order of their next uses, and are listed in this order. Files that are never used
    are omitted. The list of the first class, the staging buffer, is empty.

    sizes : (files,) [bytes]
    classes : how many storage classes to use, including the staging buffer (None = all)
    """
    files = np.arange(len(sizes), dtype=np.int32)
    files = files[policy.keeps(files)]
    uses = policy.next_use(files)
    files = files[np.argsort(uses, kind="stable")][: np.count_nonzero(uses != NEVER)]
    rooms = rooms_of(cluster.capacity[policy.node, :classes], len(files))
    tier = policy.tier_of(files, sizes[files], rooms)
    return [files[:0], *(files[tier == number] for number in range(len(rooms)))]


def first_fit_policy(node: int, files: Ints) -> NodePolicy:
    """Returns the policy of a node that keeps files only for itself. `files` are the files that the
    node uses, in the order of use."""
    policy = NodePolicy(node)
    policy.foresee(files)
    return policy


def owners_of(copies: Copies, wanted: Ints) -> Int32s:
    """Returns the owner of each file, (files,) int32, for `Decision.owner`. The owner is a node
    that has a copy of the file; PFS if no node has a copy.

    wanted : (files,), the preferred node, which becomes the owner if it has a copy of the file
    """
    owner = np.full(len(wanted), PFS, np.int32)
    owner[copies.file] = copies.node
    is_wanted = wanted[copies.file] == copies.node
    owner[copies.file[is_wanted]] = copies.node[is_wanted]
    return owner


def shards(job: Job, classes: int | None = None) -> Copies:
    """Divides the dataset into one contiguous part for each node, with nearly equal numbers of
    files. Returns the copies: each node copies the files of its part for which it has room.

    classes : how many storage classes to use, including the staging buffer (None = all)
    """
    parts = np.array_split(np.arange(job.files, dtype=np.int32), job.cluster.nodes)
    return copies_of(
        job.cluster, job.sizes, lambda node: first_fit_policy(node, parts[node]), classes=classes
    )
