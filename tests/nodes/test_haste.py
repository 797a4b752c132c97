"""A node first sends the data that a reader waits for, even if this reader is on another node. A
node that cannot send a file says so at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from support.draws import sized
from support.epoch import READER_LIMIT_S
from support.epochs import Cluster
from support.session import wait_until

MIB = 1 << 20
KIB = 1 << 10


def owner_of_all(cluster: Cluster) -> int:
    """Returns the node that owns the only file."""
    return [node.nodes()["own_files"] for node in cluster.nodes].index(1)


def test_parts_of_a_large_file_in_any_order(cluster_factory: Callable[..., Cluster]) -> None:
    """The owner first reads the parts of the file that the other node requests, and only then the
    other parts. So the other node need not read the requested parts from the source."""
    size, block = sized(24, 48) * MIB, MIB
    # With `fetch: holders`, a node asks the other node first, even if the source is faster. On a
    # busy machine, the source may be faster.
    more = {"peers": {"fetch": "holders"}}
    cluster = cluster_factory(2, 1, size, block_size=block, **more)
    owner = owner_of_all(cluster)
    cluster.rate(2 * 20e6)
    cluster.reset()
    (end,) = cluster.epoch(1 - owner, ways="random", threads=2)
    assert end["longest_s"] < 2
    cluster.nodes[1 - owner].wait_idle()
    # The owner sends the last block only after it has checked the file at the source once more.
    assert cluster.served() <= size + block
    assert cluster.nodes[1 - owner].totals()["bytes_from_peers"] >= size - block


def test_a_node_that_has_no_room_says_so_at_once(cluster_factory: Callable[..., Cluster]) -> None:
    files, size = 60, 100 * KIB
    cluster = cluster_factory(2, files, size, fill_after=0)
    owner, asker = cluster.nodes
    # The directory of the owner's copies is gone. The owner notices this only when it tries to make
    # a copy, and then has no room for the copy.
    for path in owner.tiers[0].glob("monarch-*/c"):
        path.rmdir()
    (end,) = cluster.epoch(1, threads=1)
    # The owner reports to the asker that it cannot make copies. Otherwise the reader, which runs on
    # the asker's node, would wait for every file.
    assert end["longest_s"] < 1.5
    assert asker.seen_by(owner)["usable"]
    assert owner.seen_by(asker)["last_failure"] == "ok"


OPEN_ALL = """
import os, sys
for name in sorted(os.listdir(sys.argv[1]), reverse=int(sys.argv[2])):
    os.close(os.open(os.path.join(sys.argv[1], name), os.O_RDONLY))
"""


@pytest.mark.long  # every run includes test_crowds.py, which tests orders that wait for a node
def test_many_files_are_opened_at_once_everywhere(
    cluster_factory: Callable[..., Cluster],
) -> None:
    """Each of two nodes opens so many files that its engine cannot accept orders for all of their
    fills at once. Orders that wait for the other node must leave room in the engine for fills from
    the source, because the other node waits for these fills."""
    files, size = 5000, KIB
    cluster = cluster_factory(2, files, size)
    with ExitStack() as stack:
        for rank, (node, mount) in enumerate(zip(cluster.nodes, cluster.mounts, strict=True)):
            words = [sys.executable, "-c", OPEN_ALL, str(mount.mountpoint), str(rank)]
            stack.enter_context(subprocess.Popen(words, env=node.env()))
    for node in cluster.nodes:
        wait_until(
            lambda node=node: node.status()["sources"][0]["present"] == files,  # type: ignore[misc]
            what="copies of all files",
            timeout=60,
        )
    assert cluster.served() <= 1.02 * files * size
    assert sum(node.totals()["bytes_from_peers"] for node in cluster.nodes) == files * size


def test_nobody_waits_for_a_scan_to_tell_who_keeps_what(
    cluster_factory: Callable[..., Cluster],
) -> None:
    files, size = 40, 20 * KIB
    cluster = cluster_factory(2, files, size, prefetch="eager")
    late = cluster.nodes[0]
    late.kill()
    late.config.write_text(late.config.read_text() + f"scan_rate: {sized(12, 8)}\n")
    # A directory that has just changed makes the scan slow: the scan then also examines the files
    # of this directory that are already in the catalog.
    new = cluster.mounts[0].backing / "new"
    new.touch()
    new.unlink()
    late.start()
    cluster.epoch(0)
    wait_until(
        lambda: late.status()["catalog_entries"] >= files,
        what="the files that a reader has reported",
    )
    (here,) = cluster.epoch(0, threads=1)
    assert not late.status()["scanned"]
    assert here["longest_s"] < READER_LIMIT_S  # the scan takes longer
    late.wait_scanned()
    cluster.epoch(0)
    late.wait_idle()
    assert late.status()["sources"][0]["present"] == files
