"""Fills storage classes with files in a given order, by array operations."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from monarch_py.plan.access import NEVER
from monarch_py.policies.node import NodePolicy
from monarch_py.policies.placement import TierRoom
from monarch_py.policies.view import PFS, STAGING, Cluster, Copies, Ints, Job


def rooms_of(capacity: Ints, files: int) -> list[TierRoom]:
    """The room of a node's classes as tiers, for so many files.

    capacity : (classes,) [bytes], as in `Cluster`; the first one, the staging buffer, is no tier
    """
    return [TierRoom(int(room), files, 1) for room in capacity[STAGING + 1 :]]


def copies_of(
    cluster: Cluster,
    sizes: Ints,
    policy_of: Callable[[int], NodePolicy],
    *,
    classes: int | None = None,
) -> Copies:
    """The copies that all nodes make, by what their policies say.

    policy_of : the policy of a node;  sizes, classes : as of `classes_of`
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
    """For each class the files that a node keeps in it, in the order of their next use, which is
    that of filling; none for the staging buffer. Files that are not used are left out.

    sizes : (files,) [bytes];  classes : how many classes to use, including the staging buffer (None
    = all)
    """
    files = np.arange(len(sizes), dtype=np.int32)
    files = files[policy.keeps(files)]
    uses = policy.next_use(files)
    files = files[np.argsort(uses, kind="stable")][: np.count_nonzero(uses != NEVER)]
    rooms = rooms_of(cluster.capacity[policy.node, :classes], len(files))
    tier = policy.tier_of(files, sizes[files], rooms)
    return [files[:0], *(files[tier == number] for number in range(len(rooms)))]


def first_fit_policy(node: int, files: Ints) -> NodePolicy:
    """The policy of a node that keeps these files alone and takes them in this order."""
    policy = NodePolicy(node)
    policy.foresee(files)
    return policy


def owners_of(copies: Copies, wanted: Ints) -> npt.NDArray[np.int32]:
    """(files,) int32, as `Decision.owner`: a node that has a place for the file, or PFS.

    wanted : (files,), the preferred node, which becomes the owner if it has a place for the file
    """
    owner = np.full(len(wanted), PFS, np.int32)
    owner[copies.file] = copies.node
    is_wanted = wanted[copies.file] == copies.node
    owner[copies.file[is_wanted]] = copies.node[is_wanted]
    return owner


def shards(job: Job, classes: int | None = None) -> Copies:
    """Copies of one contiguous, equal part of the dataset on each node.

    classes : as of `classes_of`
    """
    parts = np.array_split(np.arange(job.files, dtype=np.int32), job.cluster.nodes)
    return copies_of(
        job.cluster, job.sizes, lambda node: first_fit_policy(node, parts[node]), classes=classes
    )
