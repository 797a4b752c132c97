"""Many orders that wait for one node do not delay files that other nodes can send."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from support.epoch import make_files
from support.epochs import Cluster
from support.nodes import MIB, Nodes
from support.session import wait_until

from monarch_py.demo.slowsource import SlowSource

KIB = 1 << 10
# Times [s]: how long a read takes at the source of the slow node, and how soon the other nodes must
# send the files that they have.
HANGS_S, SOON_S = 8.0, 4.0
# Opens files without reading them, many at a time, because each open waits a second for a silent
# node.
OPEN = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(32) as pool:
    paths = sys.argv[1:] or [line.strip() for line in sys.stdin]
    list(pool.map(lambda path: os.close(os.open(path, os.O_RDONLY)), paths))
"""


def test_a_node_that_gives_nothing_leaves_threads_for_the_others(
    cluster_factory: Callable[..., Cluster],
) -> None:
    files, size = 150, 100 * KIB
    cluster = cluster_factory(3, files, size)
    asker, stuck, well = cluster.nodes
    cluster.mounts[1].latency(read=HANGS_S)
    root = cluster.mounts[0].mountpoint
    asker.run([sys.executable, "-c", OPEN, *(root / str(n) for n in cluster.files)], check=True)
    coming = int(well.nodes()["own_files"]) * size
    assert int(stuck.nodes()["own_files"]) > 24
    wait_until(
        lambda: asker.totals()["bytes_from_peers"] >= coming,
        timeout=SOON_S,
        what="the files of the other node",
    )
    assert asker.seen_by(stuck)["usable"]
    cluster.mounts[1].latency(read=0.0)


def test_orders_that_wait_for_a_node_leave_room_for_what_it_asks_for(
    nodes_factory: Callable[..., Nodes], mounts: Callable[[int], list[SlowSource]], tmp_path: Path
) -> None:
    """The engine of the crowded node accepts no more orders that wait for the slow node, because
    the allowed number of such orders is already waiting. Then the slow node requests whole blocks
    of several units from the crowded node. No reader waits for these blocks, but the slow node must
    get them soon."""
    sources = mounts(2)
    backing, large, size = sources[0].backing, [f"large{n}" for n in range(8)], 768 * KIB
    small = make_files(backing, 4600, KIB)
    for name in large:
        (backing / name).write_bytes(bytes(size))
    nodes = nodes_factory(sources, [64 * MIB] * 2).start()
    slow, crowded = nodes.all
    sources[0].latency(read=HANGS_S)
    listed = tmp_path / "small"
    listed.write_text("".join(f"{sources[1].mountpoint / str(name)}\n" for name in small))
    script = f"import sys; sys.stdin = open({str(listed)!r})\n{OPEN}"
    crowded.run([sys.executable, "-c", script], check=True)
    wait_until(lambda: 2048 <= crowded.status()["pending"] < 2500, what="orders that wait")
    slow.run(
        [sys.executable, "-c", OPEN, *(sources[0].mountpoint / name for name in large)], check=True
    )
    wait_until(
        lambda: slow.totals()["bytes_from_peers"] >= size,
        timeout=SOON_S,
        what="the files of the other node",
    )
    sources[0].latency(read=0.0)
