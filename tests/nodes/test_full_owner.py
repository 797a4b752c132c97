"""A node should keep some files for all nodes, but its disk is full. It passes these files on to
the next node. The source still serves each file once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.epoch import make_files
from support.epochs import Cluster
from support.mounts import Mounts
from support.nodes import Nodes

from monarch_py.demo.slowsource import SlowSource

NODES, FULL = 4, 1
FILES, SIZE = 240, 48 << 10
ROOM = FILES * (SIZE + 8192)
# fill_up() leaves room for this number of files on the tier of node FULL. The node owns more files
# than that.
LEFT = 10


@pytest.fixture
def full_tier(tmp_path: Path) -> Iterator[Path]:
    """Mounts a separate file system for the second node's tier."""
    directory = tmp_path / "nodes" / f"node{FULL}"
    directory.mkdir(parents=True)
    with Mounts(directory) as mounts:
        yield mounts.tmpfs("tier", ROOM)


@pytest.fixture
def cluster(
    full_tier: Path,
    nodes_factory: Callable[..., Nodes],
    mounts: Callable[[int], list[SlowSource]],
    epoch_reader: Path,
) -> Cluster:
    """Nodes that each have room for half of the dataset. A node owns a quarter of the dataset, and
    uses the rest of its room for copies of other nodes' files."""
    sources = mounts(NODES)
    files = make_files(sources[0].backing, FILES, SIZE)
    for source in sources:
        source.latency(open=0.02, read=0.001)
    nodes = nodes_factory(sources, [ROOM // 2] * NODES, peers={"fetch": "holders"}).start()
    return Cluster(epoch_reader, nodes.all, sources, files)


def fill_up(tier: Path) -> None:
    """Fills the file system, and leaves only room for LEFT files."""
    found = os.statvfs(tier)
    room_bytes = found.f_bavail * found.f_frsize - LEFT * (SIZE + 4096)
    (tier / "ballast").write_bytes(bytes(room_bytes))


def counts(cluster: Cluster, key: str) -> list[int]:
    return [int(node.nodes()[key]) for node in cluster.nodes]


def read_once(cluster: Cluster, *ranks: int) -> float:
    """Runs an epoch on the nodes `ranks`, or on all nodes if `ranks` is empty. Returns the number
    of opens at the source per file."""
    cluster.reset()
    cluster.epoch(*ranks)
    for node in cluster.nodes:
        node.wait_idle()
    return cluster.opened() / FILES


@pytest.mark.usefixtures("alone")
def test_the_next_node_keeps_what_the_owner_has_no_room_for(
    cluster: Cluster, full_tier: Path
) -> None:
    own = counts(cluster, "own_files")
    fill_up(full_tier)
    # The full node's tier has no room for some of the files that the node owns. At first, the node
    # stages these files for all nodes. When it has lacked room for a while, it passes them on.
    assert read_once(cluster, 0) <= 1.05
    passed_on = counts(cluster, "passed_on_files")
    assert 0 < passed_on[FULL] < own[FULL]
    assert sum(passed_on) == passed_on[FULL]
    # The full node refers the other nodes, and its own program, to the node that now keeps these
    # files.
    assert read_once(cluster) <= 0.05
    assert sum(counts(cluster, "taken_over_files")) == sum(counts(cluster, "passed_on_files"))
    assert sum(counts(cluster, "own_files")) == FILES
    assert read_once(cluster) <= 0.02
    warnings = [node.log.read_text().count("lower the tiers' quotas") for node in cluster.nodes]
    assert warnings == [int(rank == FULL) for rank in range(NODES)]
