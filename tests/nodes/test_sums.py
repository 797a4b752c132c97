"""A node records the checksums of a copy's blocks when it fills the copy. It sends these checksums
to other nodes."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from peers.offers import Line
from support.epoch import Reader, make_files
from support.nodes import MIB, Node, Nodes
from support.session import wait_until

from benchmarks.peers.ranges import FileId, fetch_ranges, new_gets
from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.native import lib
from monarch_py.peers.handshake import Purpose
from monarch_py.peers.peer import Peer
from monarch_py.peers.status import PeerStatus
from monarch_py.peers.tcp import connect_link, connected

SIZE = 9 * MIB


def test_what_has_rotted_in_a_copy_reaches_no_other_node(
    nodes_factory: Callable[..., Nodes],
    mounts: Callable[[int], list[SlowSource]],
    epoch_reader: Path,
) -> None:
    sources = mounts(2)
    files = make_files(sources[0].backing, 6, SIZE)
    # Each node has room for half of the files, and a little more.
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
    # Blocks that had already arrived are not read again.
    again = nodes[1].totals()["source_bytes_read_by_fills"] - 3 * SIZE
    assert 3 * MIB <= again <= 3 * SIZE


@pytest.mark.parametrize("size", [SIZE, 100_000], ids=["large", "small"])
def test_what_has_rotted_goes_where_it_has_rotted(
    nodes_factory: Callable[..., Nodes],
    mounts: Callable[[int], list[SlowSource]],
    epoch_reader: Path,
    size: int,
) -> None:
    """A node sends whole blocks without checking them. When the receiver reports a wrong checksum,
    the node checks its copy and drops it."""
    sources = mounts(2)
    files = make_files(sources[0].backing, 1, size)
    nodes = nodes_factory(sources, [size + MIB] * 2).start()
    owner, other = sorted((0, 1), key=lambda rank: -int(nodes[rank].nodes()["own_files"]))
    nodes[owner].want_all()
    nodes.wait_idle()
    (copy,) = nodes[owner].copies()
    copy.chmod(0o600)
    with copy.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"rotten")
    for rank in (other, owner):
        with Reader(
            epoch_reader, nodes[rank], "read", 4 * MIB, 1, sources[rank].mountpoint, files
        ) as reader:
            reader.end()
        wait_until(lambda: not copy.exists(), what="the end of the copy")
    assert "is damaged; it is dropped and made again" in nodes[owner].log.read_text()


def mixed(value: int) -> int:
    """Computes the same as monarch_mix() in csrc/shared/catalog.h."""
    for _ in range(2):
        value = (value ^ value >> 32) * 0xD6E8FEB86659FD93 % (1 << 64)
    return value ^ value >> 32


def named_by(node: Node, name: str) -> FileId:
    """Returns the name under which nodes ask each other for the file."""
    catalog = CatalogReader.open(node.paths, node.connection.ask("where")["generation"])
    entry = catalog.entries[catalog.find(0, name)]
    changed, modified = int(entry["ctime_ns"]), int(entry["mtime_ns"])
    times = mixed(modified ^ mixed(changed))
    signed = times - (1 << 64 if times >> 63 else 0)
    return FileId(0, int(entry["hash"]), int(entry["size"]), signed)


def frames_of(connection: socket.socket, answer: bytes) -> list[tuple[int, int]]:
    """Returns (kind, value) of each frame of an answer. `answer` is the part of the answer that was
    already received; the rest is received here."""
    frames: list[tuple[int, int]] = []
    layout, at, come = struct.Struct("<IIQQ16x"), 0, bytearray(answer)
    while not frames or frames[-1][0] != lib.MONARCH_PEER_END:
        while len(come) < at + layout.size:
            more = connection.recv(1 << 20)
            assert more, "the connection ended"
            come += more
        _, kind, _, value = layout.unpack_from(come, at)
        frames.append((kind, value))
        at += layout.size + (value if kind == lib.MONARCH_PEER_DATA else 0)
    return frames


def test_an_answer_that_has_begun_is_finished_when_its_copy_is_dropped(
    nodes_factory: Callable[..., Nodes], mounts: Callable[[int], list[SlowSource]]
) -> None:
    sources = mounts(2)
    size = 32 * MIB  # larger than the sockets' buffers
    (name,) = make_files(sources[0].backing, 1, size)
    nodes = nodes_factory(sources, [size + MIB] * 2, block_size=MIB).start()
    owner = max(nodes.all, key=lambda node: int(node.nodes()["own_files"]))
    owner.want_all()
    nodes.wait_idle()
    (copy,) = owner.copies()
    file = named_by(owner, str(name))
    rank = owner.cluster.rank
    with connected(owner.asked_by(1 - rank), rank, 2.0, Purpose.FILES) as connected_to:
        connection = Line(*connected_to)
        connection.settimeout(10)
        connection.sendall(connection.request(file))
        begun = connection.recv(MIB)
        path = sources[owner.cluster.rank].mountpoint / str(name)
        owner.python("import os, sys; os.close(os.open(sys.argv[1], os.O_WRONLY))", path)
        wait_until(lambda: not copy.exists(), what="the end of the copy")
        frames = frames_of(connection.connection, begun)
    assert frames[-1] == (lib.MONARCH_PEER_END, PeerStatus.OK)
    assert sum(kind == lib.MONARCH_PEER_SUM for kind, _ in frames) == size // MIB


def test_who_says_that_a_block_came_wrong_has_it_looked_at_again(
    nodes_factory: Callable[..., Nodes], mounts: Callable[[int], list[SlowSource]]
) -> None:
    """A peer requests a part of a block, so the node checks the block. Just after this check, the
    copy is damaged. Then a peer receives the whole block and reports wrong bytes, so the node
    checks the block again."""
    sources = mounts(2)
    (name,) = make_files(sources[0].backing, 1, SIZE)
    nodes = nodes_factory(sources, [SIZE + MIB] * 2).start()
    owner = max(nodes.all, key=lambda node: int(node.nodes()["own_files"]))
    owner.want_all()
    nodes.wait_idle()
    (copy,) = owner.copies()
    room = np.zeros(SIZE, dtype=np.uint8)
    rank = owner.cluster.rank
    peer = Peer(partial(connect_link, owner.asked_by(1 - rank)), rank)

    def fetch(first: int, length: int) -> PeerStatus:
        gets = new_gets([named_by(owner, str(name))])
        gets["first"], gets["length"], gets["memory"] = first, length, room.ctypes.data
        fetch_ranges(peer, gets)
        return PeerStatus(gets["status"][0])

    try:
        assert fetch(4 * MIB + 5, 1) == PeerStatus.OK
        looked_at = time.monotonic()
        copy.chmod(0o600)
        with copy.open("r+b") as content:
            os.pwrite(content.fileno(), b"rotten", 5 * MIB)
        # The node still sends a byte of the damaged block, because no peer has reported the damage.
        assert fetch(4 * MIB + 5, 1) == PeerStatus.OK
        wait_until(lambda: time.monotonic() - looked_at > 1, what="a second")
        assert fetch(4 * MIB, 4 * MIB) == PeerStatus.WRONG_BYTES
        wait_until(lambda: not copy.exists(), what="the end of the copy")
    finally:
        peer.close()
    assert "is damaged; it is dropped and made again" in owner.log.read_text()
