"""Several nodes follow a plan and evict copies. A node evicts a copy only if another node has a
copy of the same file. So the file is not read from the source again."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from support.draws import sized
from support.nodes import Nodes
from support.planned import PlannedNodes
from support.watch import assert_quiet

from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import Listed

# The first EPOCHS epochs use one half of the files, and the next EPOCHS epochs use the other half.
# Every node has room for six tenths of all files, and owns half of all files.
RANKS, HALF, SIZE, EPOCHS = 2, 120, 50_000, sized(4, 6)
FILES = 2 * HALF
PART = HALF // RANKS // 4  # the number of files that each rank reads at a time


def evicted_by(nodes: Nodes) -> list[int]:
    return [node.status()["tiers"][0]["evicted"] for node in nodes.all]


def look_for_room(nodes: Nodes) -> None:
    """Waits until all nodes have evicted something, but for at most a second. A second is long
    enough for each node to look a few times for copies that it can evict. A node may find no such
    copy: it evicts none if the staging area holds all files that are read again soon."""
    until = time.monotonic() + 1
    while time.monotonic() < until and not all(evicted_by(nodes)):
        time.sleep(0.01)


@pytest.mark.usefixtures("alone")
def test_no_owner_drops_what_the_others_come_for(
    planned_factory: Callable[..., PlannedNodes],
) -> None:
    rng = np.random.default_rng(3)
    halves = [rng.permutation(HALF) + HALF * (e >= EPOCHS) for e in range(2 * EPOCHS)]
    epochs = [half.tolist() for half in halves]
    planned = planned_factory(
        Loader(Listed(FILES, np.array(epochs)), RANKS, 2, workers=1),
        len(epochs),
        FILES,
        SIZE,
        quota=FILES * 6 // 10 * (SIZE + 4096),
        area=384 << 10,
        tier={"eviction": "planned"},
        peers={"fetch": "holders"},
    ).start()
    nodes = planned.nodes
    # The source is so slow that the nodes look several times per epoch for copies to evict.
    planned.source.rate(20e6)
    planned.source.latency(open=0.001, read=0.001)
    for number, epoch in enumerate(epochs):
        for at in range(0, HALF, RANKS * PART):
            planned.read([epoch[at + rank : at + RANKS * PART : RANKS] for rank in range(RANKS)])
            if number >= EPOCHS:
                look_for_room(nodes)
    assert all(evicted_by(nodes))
    nodes.wait_idle()
    # If a node has no copy of a file, the file's owner has one.
    for rank in range(RANKS):
        planned.read([range(FILES if rank == each else 0) for each in range(RANKS)])
    nodes.wait_idle()
    # Reads that the mount serves from its page cache are not counted at the source, but
    # `read_by_fills` counts them.
    assert planned.read_by_fills() == FILES * SIZE
    for node in nodes.all:
        assert_quiet(node)
