"""The owner of each file when there is no plan: rendezvous hashing, weighted by room.

Every node computes the owners on its own, from the catalog and the nodes' quotas, without any
communication. A node that joins becomes the owner of some files, and all other files keep their
owners. If a node leaves, only the files that it owned get other owners (Thaler and Ravishankar
1998; weights as in Schindelhauer and Schomaker 2005).
"""

import numpy as np
import numpy.typing as npt

from monarch_py.policies.placement import take
from monarch_py.policies.view import PFS, STAGING, Bools, Cluster, Floats, Int32s, Ints

Keys = npt.NDArray[np.uint64]

# This many scores are computed at a time. They take 32 MiB.
PORTION = 1 << 22
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mixed(values: Keys) -> Keys:
    """Applies SplitMix64's finalizer to each value: every bit of the result depends on every bit of
    the value."""
    mixed = values
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    result: Keys = mixed ^ (mixed >> np.uint64(31))
    return result


def file_keys(files: int) -> Keys:
    """Returns a key for each file, (files,), derived from the file's number. For callers that have
    no hashes of the files' paths."""
    return _mixed(np.arange(1, files + 1, dtype=np.uint64) * _GOLDEN)


def scores(keys: Keys, weights: Floats) -> Floats:
    """Returns the score of each node for each file, (files, nodes). The owner of a file is the node
    with the lowest score for this file, if this node has room. The scores of a node are
    exponentially distributed with the node's weight as the rate. So node n has the lowest score
    with probability weights[n] / sum of weights. A node with weight 0 has an infinite score.

    keys : (files,) hashes;  weights : (nodes,) >= 0
    """
    nodes = _mixed(np.arange(1, len(weights) + 1, dtype=np.uint64) * _GOLDEN)
    drawn = _mixed(keys[:, None] ^ nodes[None, :])
    # Adding 0.5 to a number of 52 random bits ensures that `uniform` is neither 0 nor 1.
    uniform = ((drawn >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52
    with np.errstate(divide="ignore"):
        found: Floats = -np.log(uniform) / weights[None, :]
    return found


def homes(files: int, cluster: Cluster) -> Int32s:
    """Returns the node with the least score for each file, (files,) int32, even if the node is
    full. A node's weight is its room for copies: the sum over its storage classes without the
    staging buffer. If no node has room for copies, all weights are equal."""
    room = cluster.capacity[:, STAGING + 1 :].sum(axis=1).astype(np.float64)
    weights = room if room.any() else np.ones(cluster.nodes)
    return first_nodes(file_keys(files), weights)


def first_nodes(keys: Keys, weights: Floats) -> Int32s:
    """Returns, for each file, the node with the least score, (files,) int32; PFS if all weights are
    0. The node may be full.

    keys : (files,);  weights : (nodes,) >= 0
    """
    return _next_choice(keys, weights, np.zeros(len(keys)))[0]


def next_nodes(keys: Keys, weights: Floats, node: int) -> Int32s:
    """Returns, for each file, the node that follows `node` in the order of scores, (files,) int32;
    PFS if `node` has the highest score. Nodes with weight 0 are ignored.

    keys : (files,);  weights : (nodes,) >= 0, and weights[node] > 0
    """
    return _next_choice(keys, weights, scores(keys, weights)[:, node])[0]


def owners(keys: Keys, sizes: Ints, quotas: Ints) -> Int32s:
    """Returns the owner of each file, (files,) int32; PFS if no node has room for the file. The
    nodes are tried in the order of their scores for the file, the lowest score first. The first
    node with room becomes the owner. If several files come to the same node and do not all fit, the
    node takes them in ascending order of their keys, and skips those without room. The result does
    not depend on the order of the files in the arrays.

    keys : (files,), all different;  sizes : (files,) [bytes];  quotas : (nodes,) [bytes]
    """
    owner = np.full(len(keys), PFS, np.int32)
    left = np.array(quotas, np.int64)
    weights = np.asarray(quotas, np.float64)
    last = np.zeros(len(keys))
    # Files are processed in the order of their keys, which is the same on every node. The order of
    # files in the catalog may differ from node to node.
    waiting = np.argsort(keys, kind="stable")
    if not len(waiting):
        return owner
    for _ in range(len(left)):
        # Nodes without room for any of these files are excluded: their weights become 0. This does
        # not change the scores of other nodes, because a score depends only on the weight of its
        # own node.
        weights = np.where(left >= sizes[waiting].min(), weights, 0.0)
        if not weights.any():
            break
        choice, score = _next_choice(keys[waiting], weights, last[waiting])
        last[waiting] = score
        for node in np.unique(choice[choice != PFS]).tolist():
            mine = waiting[choice == node]
            fits = mine[take(sizes[mine], int(left[node]))]
            owner[fits] = node
            left[node] -= int(np.sum(sizes[fits]))
        waiting = waiting[(owner[waiting] == PFS) & (choice != PFS)]
        if not len(waiting):
            break
    return owner


def second_copies(keys: Keys, sizes: Ints, owner: Ints, node: int, quota: int) -> Bools:
    """Returns which files a node keeps although other nodes own them, (files,) bool. The copies use
    the room that the node's own files leave. Without them, the node would have to fetch these files
    from their owners in every epoch.

    keys : (files,) hashes, all different;  sizes : (files,) [bytes]
    owner : (files,) the owner of each file;  quota : the node's quota [bytes]
    """
    left = quota - int(sizes[owner == node].sum())
    foreign = np.flatnonzero((owner != node) & (owner != PFS))
    foreign = foreign[np.argsort(keys[foreign], kind="stable")]
    kept = np.zeros(len(keys), dtype=bool)
    kept[foreign[take(sizes[foreign], max(0, left))]] = True
    return kept


def _next_choice(keys: Keys, weights: Floats, last: Floats) -> tuple[Int32s, Floats]:
    """Returns, for each file, the node with the least score above `last`, and this score, both
    (files,). If no score is above `last`, the node is PFS and the score is infinity."""
    choice = np.full(len(keys), PFS, np.int32)
    best = np.full(len(keys), np.inf)
    step = max(1, PORTION // max(1, len(weights)))
    for first in range(0, len(keys), step):
        part = slice(first, first + step)
        found = scores(keys[part], weights)
        found[found <= last[part, None]] = np.inf
        least = found.argmin(axis=1)
        best[part] = found[np.arange(len(least)), least]
        choice[part] = np.where(np.isfinite(best[part]), least, PFS)
    return choice, best
