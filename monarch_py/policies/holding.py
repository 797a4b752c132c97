"""Computes which nodes hold each file: its owner, and further nodes that have room left.

Every node computes the same result by itself, without communication.
"""

import numpy as np

from monarch_py.policies.node import NOBODY
from monarch_py.policies.rendezvous import Keys, owners, second_copies
from monarch_py.policies.view import Int32s, Ints

# At most this many holders are listed for a file. A longer list would hardly improve how samples
# are assigned to nodes.
MOST_HOLDERS = 4


def held_by_hash(keys: Keys, sizes: Ints, quotas: Ints, *, extra: bool = True) -> Int32s:
    """Returns the nodes that hold each file if there is no plan, by the files' hashes
    (policies/rendezvous.py): (files, any) int32, the owner first, filled up with NOBODY.

    keys, sizes : (files,) as in `rendezvous.owners`;  quotas : (nodes,) [bytes]
    extra : whether a node also holds files of other owners, in the room that its own files leave
    """
    owner = owners(keys, sizes, quotas)
    columns = [owner]
    if extra and len(quotas) > 1 and int(quotas.sum()) > int(sizes.sum()):
        columns += _further(keys, sizes, quotas, owner)
    return np.stack(columns, axis=1)


def _further(keys: Keys, sizes: Ints, quotas: Ints, owner: Int32s) -> list[Int32s]:
    """Returns columns of further holders. If a file has more holders than can be listed, its key
    selects the node from which they are counted, so that different files list different nodes."""
    nodes = len(quotas)
    # In the order of their keys, so that the computation for each node need not sort them again.
    order = np.argsort(keys, kind="stable")
    keys, sizes, owner = keys[order], sizes[order], owner[order]
    # (nodes, files / 8): one bit for each node and file.
    kept = np.stack(
        [np.packbits(second_copies(keys, sizes, owner, n, int(quotas[n]))) for n in range(nodes)]
    )
    files = np.arange(len(keys))
    byte, bit = files >> 3, (7 - (files & 7)).astype(np.uint8)
    found = np.full((len(keys), min(MOST_HOLDERS, nodes) - 1), NOBODY, np.int32)
    count = np.zeros(len(keys), np.int64)
    first = (keys % np.uint64(nodes)).astype(np.int64)
    for turn in range(nodes):
        node = (first + turn) % nodes
        more = (kept[node, byte] >> bit & 1).astype(np.bool_) & (count < found.shape[1])
        found[more, count[more]] = node[more]
        count += more
    columns = np.empty((int(count.max(initial=0)), len(keys)), np.int32)
    columns[:, order] = found[:, : len(columns)].T
    return list(columns)
