"""A file of which another node has a copy comes from that node, unless the source is faster at the
time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.draws import sized
from support.epochs import Cluster
from support.nodes import Host
from support.session import wait_until

from benchmarks.peers.nodes import Nodes as Namespaces

FILES, SIZE = 48, 128 << 10
SOURCE_RATE, SLOW_LINK = 60e6, "8mbit"


class Again:
    """Node 0 drops its copies and reads everything again in each epoch; node 1 keeps its copies."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, (self.asker, self.holder) = cluster, cluster.nodes
        self.foreign = int(self.holder.nodes()["own_files"])
        assert FILES // 4 < self.foreign < FILES

    def counts(self) -> tuple[int, int]:
        said = self.asker.status()
        return said["nodes"]["source_chosen"], said["totals"]["bytes_from_peers"]

    def epoch(self) -> tuple[int, float]:
        """Runs an epoch. Returns how often the source was chosen, and how many files came from node
        1."""
        self.asker.forget()
        self.asker.wait_idle()
        chosen, got = self.counts()
        self.cluster.epoch(0)
        self.asker.wait_idle()
        chosen_now, got_now = self.counts()
        return chosen_now - chosen, (got_now - got) / SIZE


@pytest.fixture
def again(
    namespaces: Namespaces, hosts: list[Host], cluster_factory: Callable[..., Cluster]
) -> Callable[..., Again]:
    def make(**settings: Any) -> Again:
        cluster = cluster_factory(2, FILES, SIZE, hosts=hosts[:2], **settings)
        cluster.rate(2 * SOURCE_RATE)
        return Again(cluster)

    return make


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("share", [0.0, pytest.param(0.8, marks=pytest.mark.long)])
def test_a_link_that_becomes_slow_loses_to_the_source_and_wins_again(
    again: Callable[..., Again], namespaces: Namespaces, share: float
) -> None:
    """While the link is slow, node 1's files come from the source. When the link is fast again,
    they come over the link.

    share : the share of the other node's files that must come from the source while the link is
        slow; a large share takes many epochs to reach"""
    nodes = again()
    # Only the owner of a file reads it from the source to make the first copy.
    assert nodes.epoch() == (0, nodes.foreign)
    assert nodes.cluster.served() == FILES * SIZE
    assert nodes.epoch() == (0, nodes.foreign)
    namespaces.set_rate(1, SLOW_LINK)

    def loses() -> bool:
        chosen, came = nodes.epoch()
        print("slow", chosen, came)
        return chosen > share * nodes.foreign

    wait_until(loses, timeout=60, what="the source in the place of a slow link")
    namespaces.set_rate(1, "1gbit")

    def wins() -> bool:
        chosen, came = nodes.epoch()
        print("fast", chosen, came)
        return (chosen, came) == (0, nodes.foreign)

    wait_until(wins, timeout=60, what="the link that is fast again")


def test_holders_are_asked_however_slow_they_are_where_the_user_says_so(
    again: Callable[..., Again], namespaces: Namespaces
) -> None:
    nodes = again(peers={"fetch": "holders"})
    nodes.epoch()
    # The link must be much slower than the source.
    namespaces.set_rate(1, sized("24mbit", SLOW_LINK))
    for _ in range(sized(1, 2)):
        chosen, came = nodes.epoch()
        assert chosen == 0
        # If a reader cannot wait for a file, the file comes from the source. So it is not certain
        # how many files come from node 1.
        assert came > 0
