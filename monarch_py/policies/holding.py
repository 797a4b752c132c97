"""Computes which nodes hold each file: its owner, and further nodes that have room left.

With a plan, the same functions compute which nodes hold each sample. Every node computes the same
result on its own, without communication.
"""

from dataclasses import replace

import numpy as np

from monarch_py.plan.index import Index
from monarch_py.plan.loader import HELD_SPLITS
from monarch_py.plan.plan import Plan, PlanPart
from monarch_py.policies.node import NOBODY
from monarch_py.policies.placement import UNIT, slack_of
from monarch_py.policies.rendezvous import Keys, file_keys, owners, second_copies
from monarch_py.policies.view import Int32s, Ints

# At most this many holders are listed for a file. A longer list would hardly improve how samples
# are assigned to nodes.
MOST_HOLDERS = 4


def held_by_hash(keys: Keys, sizes: Ints, quotas: Ints, *, extra: bool = True) -> Int32s:
    """Returns the nodes that hold each file, the owner first, (files, up to MOST_HOLDERS) int32,
    padded with NOBODY. The nodes follow from the hashes of the files (policies/rendezvous.py).
    All files are placed in this way if there is no plan.

    keys : (files,) the files' hashes, all different
    sizes : (files,) [bytes];  quotas : (nodes,) [bytes]
    extra : whether a node also holds files that it does not own, if it has room for more than its
        own files
    """
    owner = owners(keys, sizes, quotas)
    columns = [owner]
    if extra and len(quotas) > 1 and int(quotas.sum()) > int(sizes.sum()):
        columns += _further(keys, sizes, quotas, owner)
    return np.stack(columns, axis=1)


def _further(keys: Keys, sizes: Ints, quotas: Ints, owner: Int32s) -> list[Int32s]:
    """Returns the holders of each file in addition to its owner. The result is a list of columns
    (files,), padded with NOBODY. The nodes are searched in turn, from a node that depends on the
    file's key. Otherwise files with more holders than are listed would all list the nodes with the
    lowest numbers.
    """
    nodes = len(quotas)
    # `second_copies` sorts the files by their keys once for each node. Those sorts are fast if the
    # files are sorted here first.
    order = np.argsort(keys, kind="stable")
    keys, sizes, owner = keys[order], sizes[order], owner[order]
    # One bit for each node and file, (nodes, files / 8). The bit is 1 if the node keeps the file.
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


def with_holders(plan: Plan) -> Plan:
    """Returns a copy of the plan. In the copy, each loader whose `split` is one of HELD_SPLITS has
    the field `holders`: the nodes that hold each sample. Such a loader assigns samples to nodes
    that hold them."""
    return replace(plan, parts=tuple(_held(plan, part) for part in plan.parts))


def _held(plan: Plan, part: PlanPart) -> PlanPart:
    loader = part.loader
    if loader.split not in HELD_SPLITS or loader.holders is not None:
        return part
    extra = loader.split == "local_first"
    index = plan.datasets[part.dataset]
    holders = _kept_along(index, plan.nodes, loader.quota, extra=extra)
    return replace(part, loader=replace(loader, holders=holders))


def _kept_along(index: Index, nodes: int, quota: int, *, extra: bool) -> Int32s:
    """Returns the nodes that hold each sample of a plan, (samples, up to MOST_HOLDERS). Daemons
    that follow the plan keep the files on these nodes. (Without a plan, daemons choose the nodes by
    the files' paths, so the nodes may be others.)

    quota : how much each node may hold [bytes]
    extra : whether a node also holds files that it does not own, if it has room for more than its
        own files
    """
    keys = file_keys(index.files) if index.kind == "unnamed" else index.path_hashes()
    rooms = np.full(nodes, quota - slack_of(quota), dtype=np.int64)
    held = held_by_hash(keys, UNIT.rounded(index.sizes), rooms, extra=extra)
    return held if index.sample_file is None else held[index.sample_file]
