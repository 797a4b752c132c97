"""Group shuffle with double buffering (section III of Lee and others, 2021)."""

from bisect import bisect_right
from functools import partial

import numpy as np

from monarch_py.errors import PolicyError
from monarch_py.policies.view import NO_FILE, STAGING, Decision, Ints, Job, same_shape
from monarch_py.util.units import format_size

# Training uses one group while the next one is read.
BUFFERS = 2


def group_shuffle(job: Job, group: int | None = None) -> Decision:
    """Reads contiguous groups of samples in random order, and shuffles each group in memory.

    One large contiguous read copies a group into one buffer, while training uses the previous group
    in the other buffer. So samples are mixed within their group, and groups are mixed over the
    dataset. This mixes less than a full shuffle, but the file system sees nearly sequential reads.

    group : the number of samples in a group. None: as many samples as possible, so that any two
        groups fit into every node's staging buffer

    Assumptions: the groups of an epoch, in their random order, form one sequence of samples. Each
    node uses an equal contiguous part of this sequence, so that every sample is used once. If the
    border between two nodes' parts lies within a group, each node reads its part of the group.
    """
    if group is None:
        group = _fitting(job)
    if group < 1:
        raise PolicyError(f"group-shuffle: group is {group}; write 1 sample or more")
    room = int(job.cluster.capacity[:, STAGING].min())
    needed = BUFFERS * largest_group(job.sizes, group)
    if needed > room:
        raise PolicyError(
            f"group-shuffle: {BUFFERS} groups of {group} samples take {format_size(needed)}, and "
            f"the staging buffer has a capacity of {format_size(room)}; make group smaller or "
            "the buffer larger"
        )

    def orders(epoch: int) -> Ints:
        order = job.orders(epoch)
        rng = np.random.default_rng([job.seed, epoch])
        # An epoch may need more samples than there are files, to fill up its batches. In this case,
        # np.resize repeats files from the beginning of the order.
        files = np.resize(grouped(job.files, group, rng), np.count_nonzero(order != NO_FILE))
        return same_shape(order, files)

    return Decision(orders=orders, notes=(f"groups of {group} samples, shuffled within",))


def _fitting(job: Job) -> int:
    """Returns the largest group size [samples] with which two groups fit into every staging buffer.
    Bisection finds this size, since larger groups take more room."""
    room = int(job.cluster.capacity[:, STAGING].min()) // BUFFERS
    groups = range(1, job.files + 1)
    return max(1, bisect_right(groups, room, key=partial(largest_group, job.sizes)))


def largest_group(sizes: Ints, group: int) -> int:
    """Returns the size [bytes] of the largest group if the dataset is cut into groups of `group`
    contiguous files.

    sizes : (files,) [bytes]
    """
    return int(np.add.reduceat(sizes, np.arange(0, len(sizes), group)).max())


def grouped(files: int, group: int, rng: np.random.Generator) -> Ints:
    """Returns all files, group by group, (files,) int32. The groups are in random order, and the
    files of each group are shuffled. The group at the end of the dataset may have fewer files."""
    of = np.arange(files) // group
    rank = rng.permutation(int(of[-1]) + 1)
    # Sort the files by the random position of their group, then by a random number. A loop that
    # shuffles one group after the other would take longer.
    return np.lexsort((rng.random(files), rank[of])).astype(np.int32)
