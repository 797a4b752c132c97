"""Nodes share a source that has a pack. Each node reads its own files from the pack, and sends them
to the other nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.epoch import make_files
from support.files import age
from support.nodes import MIB, Nodes

from monarch_py.demo.slowsource import SlowSource
from monarch_py.packs.tar import write_pack

FILES, SIZE = 300, 8 << 10


@contextmanager
def packed(sources: list[SlowSource], place: Path, count: int, size: int) -> Iterator[Nodes]:
    """Starts a node on each mount of one dataset, whose files are all in a pack. Yields the nodes
    when all of them are idle."""
    backing = sources[0].backing
    make_files(backing / "data", count, size)
    age(backing / "data")
    write_pack(backing / "data", backing / "train.tar")
    served: list[Any] = [
        [{"path": str(mount.mountpoint / "data"), "pack": str(mount.mountpoint / "train.tar")}]
        for mount in sources
    ]
    with Nodes(place / "nodes", served, [64 * MIB] * len(sources), prefetch="eager") as nodes:
        nodes.start()
        nodes.wait_idle()
        yield nodes


def test_no_node_opens_a_file_that_is_in_the_pack(
    mounts: Callable[[int], list[SlowSource]], tmp_path: Path
) -> None:
    sources = mounts(2)
    with packed(sources, tmp_path, FILES, SIZE) as nodes:
        # Each node opens the pack and its index.
        assert sum(source.counts()["open"] for source in sources) <= 4
        totals = [node.totals() for node in nodes.all]
        assert sum(each["bytes_from_peers"] for each in totals) == FILES * SIZE
        for node in nodes.all:
            assert node.status()["sources"][0]["present"] == FILES
            done = node.monarch("verify", "--source")
            assert (done.returncode, done.stdout) == (
                0,
                f"{FILES} copies checked, 0 damaged, 0 outdated\n",
            )


def test_a_node_reads_none_of_another_nodes_files_along(
    mounts: Callable[[int], list[SlowSource]], tmp_path: Path
) -> None:
    """When a node reads its own members of the pack, it does not also read members that other nodes
    own. If those members counted as wanted, the node would read many of them."""
    sources, count, size = mounts(3), 200, 100 << 10
    with packed(sources, tmp_path, count, size):
        assert sum(source.counts()["bytes_read"] for source in sources) <= 1.3 * count * size
