"""All nodes together read the source once, even in the first epoch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.draws import cases
from support.epoch import Reader, make_files
from support.epochs import Cluster
from support.nodes import MIB, Nodes
from support.session import wait_until

from monarch_py.daemon.fill.directory_prefetch import NAMES
from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.native import Kind, State, lib

UNIT = 256 << 10
OPEN_S, READ_S = 0.001, 0.001


@pytest.mark.parametrize(
    "shape",
    cases(
        [(2, MIB), (4, MIB), (2, 10 * MIB + 12345), (4, 10 * MIB + 12345)],
        # Without --long, the next test covers this case for small files.
        short=[(2, 10 * MIB + 12345)],
    ),
    ids=["small-2", "small-4", "large-2", "large-4"],
)
def test_every_node_reads_everything(
    nodes_factory: Callable[..., Nodes],
    mounts: Callable[[int], list[SlowSource]],
    epoch_reader: Path,
    shape: tuple[int, int],
) -> None:
    """All nodes read all files; the source serves each byte once.

    shape : the number of nodes, and the size of a file [bytes]"""
    count, size = shape
    sources = mounts(count)
    files = make_files(sources[0].backing, 50 * MIB // size + 2, size)
    for source in sources:
        source.rate(200e6 / count)
    total = len(files) * size
    nodes = nodes_factory(sources, [int(total * 1.2)] * count, handover_size=0).start()
    for source in sources:
        source.reset()
    with ExitStack() as stack:
        readers = [
            stack.enter_context(
                Reader(epoch_reader, node, "read", UNIT, 3, source.mountpoint, files)
            )
            for node, source in zip(nodes.all, sources, strict=True)
        ]
        for reader in readers:
            reader.end()
    nodes.wait_idle()
    served = sum(source.counts()["bytes_read"] for source in sources) / total
    assert served <= 1.02
    assert sum(node.nodes()["own_files"] for node in nodes.all) == len(files)
    assert sum(node.totals()["fallbacks"] for node in nodes.all) == 0
    assert sum(node.totals()["source_bytes_read_by_fills"] for node in nodes.all) == total
    assert sum(node.totals()["bytes_from_peers"] for node in nodes.all) == (count - 1) * total


def test_a_small_file_of_another_node_is_not_opened_at_the_source(
    cluster_factory: Callable[..., Cluster],
) -> None:
    """Each node opens each of its own files at the source once, and waits for the files of the
    other nodes. Nothing is filled ahead: a node fills or requests a file only when a program opens
    it."""
    files, size, nodes = 300, 16 << 10, 3
    cluster = cluster_factory(nodes, files, size, prefetch="on_demand")
    for mount in cluster.mounts:
        mount.latency(open=OPEN_S, read=READ_S)
    cluster.reset()
    cluster.epoch(0)
    for node in cluster.nodes:
        node.wait_idle()
    # On a busy machine, a node may give up waiting for a peer's answer, and open the file at the
    # source. So 5 % more opens are allowed.
    assert cluster.opened() <= 1.05 * files
    first, *others = (mount.counts()["open"] for mount in cluster.mounts)
    assert first <= int(cluster.nodes[0].nodes()["own_files"]) + files // 20
    assert all(others)
    assert cluster.nodes[0].totals()["bytes_from_peers"] > 0
    assert cluster.served() <= 1.05 * files * size


@pytest.mark.usefixtures("alone")
def test_a_node_fills_its_own_files_before_it_fetches_those_of_others(
    cluster_factory: Callable[..., Cluster],
) -> None:
    """A node fills its own files first. Copies are numbered in the order of their fills, so the
    copies of a node's own files must have lower numbers than its copies of other nodes' files."""
    files, nodes = 300, 3
    cluster = cluster_factory(nodes, files, 16 << 10, prefetch="auto")
    node, mount = cluster.nodes[0], cluster.mounts[0]
    catalog = CatalogReader.open(node.paths, node.connection.ask("where")["generation"])
    ids = np.flatnonzero(catalog.entries["kind"] == Kind.FILE)

    def have(flag: int) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = catalog.entries["flags"][ids] & flag != 0
        return found

    homes = int(lib.MONARCH_OWN | lib.MONARCH_OF_OTHERS)
    wait_until(lambda: bool(have(homes).all()), what="homes of all files")
    own, others = ids[have(int(lib.MONARCH_OWN))], ids[have(int(lib.MONARCH_OF_OTHERS))]
    read = own[-NAMES:]
    node.run(["md5sum", *(mount.mountpoint / catalog.path(int(i)) for i in read)])

    def all_are_present() -> bool:
        return bool((word.state(catalog.words[ids]) == State.PRESENT).all())

    wait_until(all_are_present, what="all copies")
    last_own = word.copy(catalog.words[own[:-NAMES]]).max()
    assert len(others) > files / nodes
    assert last_own < word.copy(catalog.words[others]).min()
