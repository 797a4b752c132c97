"""The link of a node is cut in the middle of an epoch, and mended later. Then the other nodes ask
this node for files again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from support.draws import sized
from support.epoch import READER_LIMIT_S
from support.epochs import Cluster
from support.nodes import Host
from support.session import wait_until

from benchmarks.peers.nodes import Nodes as Namespaces

MIB = 1 << 20
FILES, SIZE = sized(36, 60), MIB // 2
CUT_OFF = 1


@pytest.mark.long  # without --long, test_daemon_lost.py and peers/test_nodes.py cover this case
def test_a_link_that_is_cut_and_mended_in_an_epoch(
    namespaces: Namespaces, hosts: list[Host], cluster_factory: Callable[..., Cluster]
) -> None:
    cluster = cluster_factory(3, FILES, SIZE, hosts=hosts)
    asker, cut_off = cluster.nodes[0], cluster.nodes[CUT_OFF]
    cluster.rate(18e6)
    with ExitStack() as stack:
        readers = [stack.enter_context(cluster.reader(rank)) for rank in range(3)]
        wait_until(lambda: cut_off.nodes()["served_bytes"] > 4 * SIZE, what="data from the node")
        namespaces.set_link(CUT_OFF, up=False)
        assert all(reader.runs() for reader in readers)
        ends = [reader.end() for reader in readers]
    assert max(end["longest_s"] for end in ends) < READER_LIMIT_S
    cluster.rate(0)
    namespaces.set_link(CUT_OFF, up=True)
    for node in cluster.nodes:
        node.wait_idle()
    before = cut_off.nodes()["served_bytes"]

    def is_used_again() -> bool:
        asker.forget()
        asker.wait_idle()
        cluster.epoch(0)
        asker.wait_idle()
        served, own = (int(cut_off.nodes()[key]) for key in ("served_bytes", "own_files"))
        return bool(served >= before + own * SIZE)

    wait_until(is_used_again, timeout=60, what="new requests to the node")
    wait_until(
        lambda: cut_off.seen_by(asker)["last_failure"] == "ok",
        what="a request to the node that succeeds",
    )
