"""Nodes know different or wrong things about a file: the file has changed after the scan of one
node, or after the scans of all nodes, or a copy of the file is damaged."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.epochs import Cluster
from support.nodes import Node
from support.session import wait_until

READ = """
import sys, xxhash
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        print(xxhash.xxh3_64_hexdigest(file.read()))
"""
FILES, SIZE = 12, 200_000


def digests(node: Node, paths: list[Path], *, preload: bool = True) -> list[str]:
    return node.python(READ, *paths, preload=preload).split()


def paths_of(cluster: Cluster, rank: int) -> list[Path]:
    return [cluster.mounts[rank].mountpoint / str(name) for name in cluster.files]


def own(node: Node) -> int:
    files: int = node.nodes()["own_files"]
    return files


def rewrite(path: Path, *, keep_times: bool) -> None:
    """Gives the file new content of the same size."""
    seen = path.stat()
    path.write_bytes(os.urandom(seen.st_size))
    if keep_times:
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def wait_seen(cluster: Cluster) -> None:
    """Waits until every mount of the source shows the files' present attributes. After a mount has
    read attributes, it trusts them for a second."""

    def attributes(path: Path) -> tuple[int, int, int]:
        seen = path.stat()
        return seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns

    def is_seen() -> bool:
        return all(
            attributes(mount.mountpoint / str(name)) == attributes(mount.backing / str(name))
            for mount in cluster.mounts
            for name in cluster.files
        )

    wait_until(is_seen, what="the new attributes")
    # If neither size nor mtime has changed, a mount keeps the old pages in its cache. So drop them.
    for mount in cluster.mounts:
        for name in cluster.files:
            with (mount.mountpoint / str(name)).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def start_anew(node: Node) -> None:
    node.kill()
    node.start()
    node.wait_scanned()


def changed_at_one(cluster: Cluster, *, keep_times: bool) -> None:
    """Node 0 has copies of the files before they change. Node 1 is restarted after the change, so
    it knows the new files and must read their new content."""
    cluster.epoch()
    for node in cluster.nodes:
        node.wait_idle()
    for name in cluster.files:
        rewrite(cluster.mounts[0].backing / str(name), keep_times=keep_times)
    wait_seen(cluster)
    start_anew(cluster.nodes[1])
    expected = digests(cluster.nodes[1], paths_of(cluster, 1), preload=False)
    backing = [cluster.mounts[0].backing / str(name) for name in cluster.files]
    assert expected == digests(cluster.nodes[1], backing, preload=False)
    assert digests(cluster.nodes[1], paths_of(cluster, 1)) == expected
    cluster.nodes[1].wait_idle()
    assert digests(cluster.nodes[1], paths_of(cluster, 1)) == expected
    assert 0 < own(cluster.nodes[0]) < FILES


@pytest.mark.long  # without --long, the next two tests cover this case
def test_files_that_have_changed_for_one_node(cluster_factory: Callable[..., Cluster]) -> None:
    changed_at_one(cluster_factory(2, FILES, SIZE), keep_times=False)


def test_files_whose_times_were_set_back(cluster_factory: Callable[..., Cluster]) -> None:
    """Only the ctime of a file shows that its content has changed. Even so, readers must get the
    new content."""
    changed_at_one(cluster_factory(2, FILES, SIZE), keep_times=True)


def test_files_that_have_changed_since_every_scan(cluster_factory: Callable[..., Cluster]) -> None:
    """Readers get the current content of files that have changed after every node has scanned them.
    This holds even for files that were empty when they were scanned. For an empty file, a peer
    sends no bytes that could reveal the change."""
    cluster = cluster_factory(2, FILES, SIZE)
    for name in cluster.files[: FILES // 2]:
        (cluster.mounts[0].backing / str(name)).write_bytes(b"")
    for node in cluster.nodes:
        start_anew(node)
    for name in cluster.files:
        (cluster.mounts[0].backing / str(name)).write_bytes(os.urandom(SIZE + name))
    wait_seen(cluster)
    for rank, node in enumerate(cluster.nodes):
        expected = digests(node, paths_of(cluster, rank), preload=False)
        for _ in range(3):
            assert digests(node, paths_of(cluster, rank)) == expected
            node.wait_idle()


def test_small_copies_that_have_rotted(cluster_factory: Callable[..., Cluster]) -> None:
    cluster = cluster_factory(2, FILES, SIZE)
    holder, asker = cluster.nodes
    cluster.epoch(0)
    holder.wait_idle()
    for copy in holder.copies():
        copy.chmod(0o600)
        with copy.open("r+b") as file:
            file.seek(SIZE // 2)
            file.write(b"rotten")
    cluster.epoch(1)
    asker.wait_idle()
    assert asker.totals()["source_bytes_read_by_fills"] == FILES * SIZE
    assert holder.seen_by(asker)["last_failure"] == "ok"
