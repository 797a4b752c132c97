"""A plan for several nodes deals samples to the nodes that hold them, so that most reads are
local."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.draws import cases
from support.planned import PlannedNodes, follows
from support.session import MIB

from monarch_py.plan import Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import NONE, DistributedSampler
from monarch_py.policies.holding import with_holders
from monarch_py.policies.placement import UNIT

RANKS, FILES, SIZE, EPOCHS, SEED, BATCH = 3, 120, 100_000, 3, 7, 4
ROOM = FILES * int(UNIT.rounded(np.array([SIZE], np.uint64))[0])
# The quota that the plan assumes for each node. With this quota, the nodes together have room for
# all files, and for second copies of only a few.
QUOTA = ROOM // RANKS + MIB // 2


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("split", cases(["local_first", "solar"], short=["solar"]))
def test_ranks_read_what_their_nodes_hold(
    split: str, planned_factory: Callable[..., PlannedNodes]
) -> None:
    order = DistributedSampler(FILES, RANKS, SEED)
    loader = Loader(order, RANKS, BATCH, split=split, nodes=RANKS, quota=QUOTA, cap=3.0)
    planned = planned_factory(
        loader, EPOCHS, FILES, SIZE, ROOM, area=4 * MIB, peers={"fetch": "holders"}
    ).start()
    root = planned.source.mountpoint
    index = Index.of("files", root, planned.names, [SIZE] * FILES)
    (part,) = with_holders(Plan((index,), (PlanPart("training", 0, loader),), EPOCHS, RANKS)).parts
    holders = part.loader.holders
    assert holders is not None and (holders[:, 0] != NONE).all()
    for rank, node in enumerate(planned.all):
        assert node.nodes()["own_files"] == int((holders[:, 0] == rank).sum())
    strangers = strided = 0
    for epoch in range(EPOCHS):
        orders = [batches[batches != NONE] for batches in part.loader.batches(epoch)]
        strangers += sum(int((holders[o] != r).all(axis=1).sum()) for r, o in enumerate(orders))
        plain = replace(part.loader, split="strided", holders=None).ranks(epoch)
        strided += sum(int((holders[o] != r).all(axis=1).sum()) for r, o in enumerate(plain))
        planned.read([each.tolist() for each in orders])
    planned.nodes.wait_idle()
    assert all(map(follows, planned.all))
    # On a busy machine, a holder may be late; then the file is read from the source instead.
    again = planned.read_by_fills() - FILES * SIZE
    assert again >= 0
    totals = [node.totals() for node in planned.all]
    assert sum(each["fallbacks"] for each in totals) == 0
    # The nodes exchange no more files than the plan says, except for second copies: a node that
    # keeps the second copy of a file fetches this copy once.
    seconds = int((holders[:, 1:] != NONE).sum())
    moved = sum(each["bytes_from_peers"] for each in totals) + again
    assert moved <= (strangers + seconds) * SIZE
    assert strangers <= strided / (2 if split == "local_first" else 10)
