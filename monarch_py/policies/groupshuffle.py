"""Group shuffle with double buffering (Lee et al. 2021, section III)."""

from __future__ import annotations

import numpy as np

from monarch_py.errors import PolicyError
from monarch_py.policies.view import NO_FILE, STAGING, Decision, Ints, Job, same_shape
from monarch_py.util.units import format_size

__all__ = ["GroupShuffle"]

# One group is trained on while the next one is read.
BUFFERS = 2


class GroupShuffle:
    """Contiguous groups of samples in random order, and the samples of a group shuffled in memory.

    A group is read by one large contiguous read into one buffer while training works on the one
    before in the other buffer; so samples are mixed within a group and groups over the dataset,
    which is less than a full shuffle and reads a file system as if it were sequential.

    group : samples of a group; by default as many as let two of the largest groups fit into the
    staging buffer of every node.
    Assumptions: groups are dealt in equal runs of the epoch's order of groups, so that all samples
    are used once; one at the border of two nodes is read by each as far as it needs it.
    """

    name = "group-shuffle"

    def __init__(self, group: int | None = None) -> None:
        if group is not None and group < 1:
            raise PolicyError(f"{self.name}: group is {group}; a group has one sample or more")
        self.group = group

    def decide(self, job: Job) -> Decision:
        group = self._fitting(job) if self.group is None else self.group
        room = int(job.cluster.capacity[:, STAGING].min())
        needed = BUFFERS * largest_group(job.sizes, group)
        if needed > room:
            raise PolicyError(
                f"{self.name}: {BUFFERS} groups of {group} samples take {format_size(needed)}, and "
                f"the staging buffer has a capacity of {format_size(room)}; make group smaller or "
                "the buffer larger"
            )

        def orders(epoch: int) -> Ints:
            order = job.orders(epoch)
            rng = np.random.default_rng([job.seed, epoch])
            # An epoch that is padded to whole batches starts again.
            files = np.resize(grouped(job.files, group, rng), np.count_nonzero(order != NO_FILE))
            return same_shape(order, files)

        return Decision(orders=orders, notes=(f"groups of {group} samples, shuffled within",))

    @staticmethod
    def _fitting(job: Job) -> int:
        """The largest group of which two fit, by bisection: larger groups take more room."""
        room = int(job.cluster.capacity[:, STAGING].min())
        fits, too_many = 1, job.files + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if BUFFERS * largest_group(job.sizes, middle) <= room:
                fits = middle
            else:
                too_many = middle
        return fits


def largest_group(sizes: Ints, group: int) -> int:
    """The bytes of the largest of the contiguous groups.  sizes : (files,) [bytes]"""
    return int(np.add.reduceat(sizes, np.arange(0, len(sizes), group)).max())


def grouped(files: int, group: int, rng: np.random.Generator) -> Ints:
    """(files,) int32: groups in random order, and each shuffled by itself; the last group of the
    dataset may be shorter."""
    of = np.arange(files) // group
    rank = rng.permutation(int(of[-1]) + 1)
    # By the place of the group, then by a random number: a shuffle of every group at once.
    return np.lexsort((rng.random(files), rank[of])).astype(np.int32)
