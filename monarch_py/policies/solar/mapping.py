"""Assigns the samples of a step to nodes (SOLAR 4.3).

The gradients of a step are summed over all nodes, so any node may process any of the step's
samples. Each sample goes to the node that holds it. Samples that no node holds must be loaded. They
are assigned so that all nodes load about the same number of samples. The nodes' batches then differ
in size, but no batch is larger than a cap.
"""

import numpy as np
import numpy.typing as npt

from monarch_py.policies.view import PFS, Bools, Ints


def balanced(held: Ints, loads: int, cap: int) -> npt.NDArray[np.int64]:
    """Returns how many samples each node loads. The largest of these numbers is as small as
    possible.

    held : (nodes,), how many samples each node takes from its buffer, at most `cap`
    loads : how many samples all nodes together must load
    cap : the largest number of samples that a node takes in a step; nodes x cap must be enough for
        all samples of the step

    The result is (nodes,) int64, and its sum is `loads`. All nodes that stay below the cap load the
    same number of samples. If the loads cannot be divided evenly, the nodes with the most remaining
    room load one sample more.
    """
    room = cap - np.asarray(held, dtype=np.int64)
    share = np.zeros(len(room), dtype=np.int64)
    # Water-filling: each round assigns the same number of loads to every node below its cap, or
    # fewer if the node reaches the cap. The rounds end when all loads are assigned.
    while loads > 0:
        open_ = np.flatnonzero(share < room)
        level = loads // len(open_)
        if level == 0:
            by_room = open_[np.argsort(-(room - share)[open_], kind="stable")]
            share[by_room[:loads]] += 1
            break
        added = np.minimum(level, (room - share)[open_])
        share[open_] += added
        loads -= int(added.sum())
    return share


def deal(files: Ints, holder: Ints, nodes: int, cap: int) -> tuple[Ints, Bools]:
    """Assigns the samples of one step to nodes. Returns the node of each sample, (samples,), and
    whether the sample must be loaded, (samples,) bool. A sample must be loaded if no node holds it,
    or if the node that holds it already takes `cap` other samples. Each node loads samples with
    neighbouring numbers, because such samples lie next to each other in the file (see `chunks`).

    files : (samples,)
    holder : (samples,), the node that holds each sample, or PFS
    cap : the largest number of samples that a node takes in a step; nodes x cap must be enough for
        all samples of the step
    """
    # The position of each sample among the step's samples that have the same holder.
    by_holder = np.argsort(holder, kind="stable")
    sorted_holder = holder[by_holder]
    rank = np.empty(len(files), dtype=np.int64)
    rank[by_holder] = np.arange(len(files)) - np.searchsorted(sorted_holder, sorted_holder)
    loaded = (holder == PFS) | (rank >= cap)
    node = np.array(holder, dtype=np.int64)
    held = np.bincount(node[~loaded], minlength=nodes)
    share = balanced(held, int(np.count_nonzero(loaded)), cap)
    waiting = np.flatnonzero(loaded)
    waiting = waiting[np.argsort(files[waiting], kind="stable")]
    node[waiting] = np.repeat(np.arange(nodes), share)
    return node, loaded
