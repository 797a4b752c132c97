"""Eviction by a plan on several nodes: copies go where others have theirs, and the source is not
read again for them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from support.epoch import Reader, make_files
from support.nodes import Node, Nodes
from support.session import MIB, wait_until
from support.watch import assert_quiet

from monarch_py.demo.slowsource import SlowSource
from monarch_py.plan import Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import Listed

# Half of the files are used in the first epochs, the other half in the others; every node has room
# for six tenths of all, of which it owns five.
RANKS, HALF, SIZE, EPOCHS = 2, 120, 50_000, 6
FILES = 2 * HALF
PART = HALF // RANKS // 4  # files that each rank reads at a time


def follows(node: Node) -> bool:
    return bool(node.plan()["state"] == "following")


def evicted_by(nodes: Nodes) -> list[int]:
    return [node.status()["tiers"][0]["evicted"] for node in nodes.all]


def test_no_owner_drops_what_the_others_come_for(
    nodes_factory: Callable[..., Nodes],
    mounts: Callable[[int], list[SlowSource]],
    epoch_reader: Path,
    tmp_path: Path,
) -> None:
    (source,) = mounts(1)
    make_files(source.backing, FILES, SIZE)
    names = sorted(path.name for path in source.backing.iterdir())
    rng = np.random.default_rng(3)
    epochs = [rng.permutation(HALF) + HALF * (e >= EPOCHS) for e in range(2 * EPOCHS)]
    index = Index.of("files", source.mountpoint, names, [SIZE] * FILES)
    loader = Loader(Listed(FILES, np.array(epochs)), RANKS, 2, workers=1)
    plan = tmp_path / "plan.npz"
    Plan((index,), (PlanPart("training", 0, loader),), 2 * EPOCHS, RANKS).save(plan)
    (tmp_path / "area").mkdir()
    nodes = nodes_factory(
        [source] * RANKS,
        [FILES * 6 // 10 * (SIZE + 4096)] * RANKS,
        tier={"eviction": "planned"},
        plan=str(plan),
        staging={"mount_point": str(tmp_path / "area"), "max_storage_quota": 384 << 10},
        peers={"fetch": "holders"},
    )
    source.reset()
    nodes.start()
    for node in nodes.all:
        wait_until(partial(follows, node), what="a plan")
    # Slow enough for many looks in an epoch.
    source.rate(20e6)
    source.latency(open=0.001, read=0.001)
    for number, epoch in enumerate(epochs):
        for at in range(0, HALF, RANKS * PART):
            with ExitStack() as stack:
                readers = []
                for rank, node in enumerate(nodes.all):
                    order = [int(names[i]) for i in epoch[at + rank : at + RANKS * PART : RANKS]]
                    reader = Reader(epoch_reader, node, "read", MIB, 1, source.mountpoint, order)
                    readers.append(stack.enter_context(reader))
                for reader in readers:
                    reader.end()
            if (number, at) == (EPOCHS, HALF // 4):
                wait_until(lambda: all(evicted_by(nodes)), what="room for what is used from now on")
    nodes.wait_idle()
    # Whatever a node does not have, its owner does.
    for node in nodes.all:
        everything = list(map(int, names))
        with Reader(epoch_reader, node, "read", MIB, 1, source.mountpoint, everything) as reader:
            reader.end()
    nodes.wait_idle()
    # Pages that the mount has kept do not show in what the source gives.
    fills = sum(node.totals()["source_bytes_read_by_fills"] for node in nodes.all)
    assert fills == FILES * SIZE
    for node in nodes.all:
        assert_quiet(node)
