"""All nodes together read the source once, in the first epoch already."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.epoch import Reader, make_files
from support.nodes import MIB, Nodes

from monarch_py.demo.slowsource import SlowSource

UNIT = 256 << 10


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("size", [MIB, 10 * MIB + 12345], ids=["small", "large"])
def test_every_node_reads_everything(
    nodes_factory: Callable[..., Nodes],
    mounts: Callable[[int], list[SlowSource]],
    epoch_reader: Path,
    count: int,
    size: int,
) -> None:
    sources = mounts(count)
    files = make_files(sources[0].backing, 50 * MIB // size + 2, size)
    for source in sources:
        source.rate(200e6 / count)
    total = len(files) * size
    nodes = nodes_factory(sources, [int(total * 1.2)] * count).start()
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
