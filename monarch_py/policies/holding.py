"""Computes which nodes hold each file: its owner, and further nodes that have room left.

The same functions compute which nodes hold each sample of a plan.

Every node computes the same result on its own, without communication.
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
    padded with NOBODY. The files' hashes determine these nodes (policies/rendezvous.py). Without a
    plan, all files are placed in this way.

    keys : (files,) the files' hashes, all different
    sizes : (files,) [bytes];  quotas : (nodes,) [bytes]
    extra : whether a node also holds files of other owners, in the room that the node's own files
        leave
    """
    owner = owners(keys, sizes, quotas)
    columns = [owner]
    if extra and len(quotas) > 1 and int(quotas.sum()) > int(sizes.sum()):
        columns += _further(keys, sizes, quotas, owner)
    return np.stack(columns, axis=1)


def _further(keys: Keys, sizes: Ints, quotas: Ints, owner: Int32s) -> list[Int32s]:
    """Returns the holders of each file besides its owner, as columns (files,) that are padded with
    NOBODY. The search for a file's holders begins at a node that the file's key selects. So the
    listed holders differ from file to file, even if each file has more holders than can be listed.
    """
    nodes = len(quotas)
    # `second_copies` sorts the files by their keys once for each node. Those sorts are fast if the
    # files are sorted here first.
    order = np.argsort(keys, kind="stable")
    keys, sizes, owner = keys[order], sizes[order], owner[order]
    # One bit for each node and file, set if the node keeps the file, (nodes, files / 8).
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
    """Returns a copy of the plan. In each part whose loader has one of HELD_SPLITS, the loader's
    `holders` are filled in, unless they are known: the nodes that hold each sample."""
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
    that follow the plan keep the files on these nodes, even where the hashes of the files' paths
    would choose other nodes.

    quota : how much each node may hold [bytes]
    extra : whether a node also holds files of other owners, in the room that the node's own files
        leave
    """
    keys = file_keys(index.files) if index.kind == "unnamed" else index.path_hashes()
    rooms = np.full(nodes, quota - slack_of(quota), dtype=np.int64)
    held = held_by_hash(keys, UNIT.rounded(index.sizes), rooms, extra=extra)
    return held if index.sample_file is None else held[index.sample_file]
