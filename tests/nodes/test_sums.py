"""The sums of blocks that a fill has recorded are what other nodes are told of its copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.epoch import Reader, make_files
from support.nodes import MIB, Nodes
from support.session import wait_until

from monarch_py.demo.slowsource import SlowSource

SIZE = 9 * MIB


def test_what_has_rotted_in_a_copy_reaches_no_other_node(
    nodes_factory: Callable[..., Nodes],
    mounts: Callable[[int], list[SlowSource]],
    epoch_reader: Path,
) -> None:
    sources = mounts(2)
    files = make_files(sources[0].backing, 6, SIZE)
    # Room for half of them each, and a little.
    nodes = nodes_factory(sources, [3 * SIZE + MIB] * 2).start()
    nodes[0].want_all()
    nodes.wait_idle()
    own = list(nodes[0].tiers[0].glob("monarch-*/c/*"))
    assert len(own) == 3
    for copy in own:
        copy.chmod(0o600)
        with copy.open("r+b") as file:
            file.seek(5 * MIB)
            file.write(b"rotten")
    with Reader(
        epoch_reader, nodes[1], "read", 256 << 10, 2, sources[1].mountpoint, files
    ) as reader:
        reader.end()
    nodes.wait_idle()
    # Blocks that had come before are not asked for again.
    again = nodes[1].totals()["source_bytes_read_by_fills"] - 3 * SIZE
    assert 3 * MIB <= again <= 3 * SIZE


def test_what_has_rotted_goes_where_it_has_rotted(
    nodes_factory: Callable[..., Nodes],
    mounts: Callable[[int], list[SlowSource]],
    epoch_reader: Path,
) -> None:
    """The owner does not look at what it sends in whole blocks; who gets them has it look."""
    sources = mounts(2)
    files = make_files(sources[0].backing, 1, SIZE)
    nodes = nodes_factory(sources, [SIZE + MIB] * 2).start()
    owner, other = sorted((0, 1), key=lambda rank: -int(nodes[rank].nodes()["own_files"]))
    nodes[owner].want_all()
    nodes.wait_idle()
    (copy,) = nodes[owner].copies()
    copy.chmod(0o600)
    with copy.open("r+b") as file:
        file.seek(5 * MIB)
        file.write(b"rotten")
    for rank in (other, owner):
        with Reader(
            epoch_reader, nodes[rank], "read", 4 * MIB, 1, sources[rank].mountpoint, files
        ) as reader:
            reader.end()
        wait_until(lambda: not copy.exists(), what="the end of the copy")
    assert "is damaged; it is made anew" in nodes[owner].log.read_text()
