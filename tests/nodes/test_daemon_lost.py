"""If a node's daemon is killed, suspended or restarted in the middle of an epoch, no job notices,
and the other nodes ask this daemon again afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from support.draws import sized
from support.epoch import READER_LIMIT_S
from support.epochs import Cluster
from support.nodes import Node
from support.session import wait_until

MIB = 1 << 20
FILES, SIZE = sized(36, 60), MIB // 2
VICTIM = 1


@pytest.fixture
def cluster(cluster_factory: Callable[..., Cluster]) -> Cluster:
    return cluster_factory(3, FILES, SIZE)


def kill(node: Node) -> None:
    node.kill()


def stop_for_a_while(node: Node) -> None:
    assert node.daemon is not None
    node.daemon.send_signal(signal.SIGSTOP)


def in_the_middle(cluster: Cluster, do: Callable[[Node], None]) -> None:
    """Calls `do` while all nodes read an epoch, after the victim has sent data to the other
    nodes."""
    victim = cluster.nodes[VICTIM]
    cluster.rate(18e6)
    with ExitStack() as stack:
        readers = [stack.enter_context(cluster.reader(rank)) for rank in range(3)]
        wait_until(lambda: victim.nodes()["served_bytes"] > 4 * SIZE, what="data from the victim")
        do(victim)
        assert all(reader.runs() for reader in readers)
        ends = [reader.end() for reader in readers]
    assert max(end["longest_s"] for end in ends) < READER_LIMIT_S
    cluster.rate(0)


def is_used_again(cluster: Cluster) -> None:
    """Asserts that the victim sends to node 0 all files that the victim owns."""
    asker, victim = cluster.nodes[0], cluster.nodes[VICTIM]
    wait_until(lambda: victim.seen_by(asker)["usable"], timeout=60, what="a peer that is asked")
    cluster.epoch(VICTIM)
    victim.wait_idle()
    before = victim.nodes()["served_bytes"]
    asker.forget()
    asker.wait_idle()
    cluster.epoch(0)
    asker.wait_idle()
    assert victim.nodes()["served_bytes"] >= before + victim.nodes()["own_files"] * SIZE
    assert victim.seen_by(asker)["last_failure"] == "ok"


@pytest.mark.long
def test_a_daemon_that_is_killed_and_started_empty(cluster: Cluster) -> None:
    in_the_middle(cluster, kill)
    cluster.nodes[VICTIM].start()
    cluster.nodes[VICTIM].wait_scanned()
    is_used_again(cluster)


def test_a_daemon_that_stops_and_goes_on(cluster: Cluster) -> None:
    in_the_middle(cluster, stop_for_a_while)
    victim = cluster.nodes[VICTIM]
    assert victim.daemon is not None
    victim.daemon.send_signal(signal.SIGCONT)
    wait_until(victim.connection.serves, what="an answer of the continued daemon")
    is_used_again(cluster)


# Without --long, other tests check that other nodes ask the daemon again: the test before this one,
# and test_planned_failures.py for a daemon that is started without copies.
@pytest.mark.long
@pytest.mark.usefixtures("alone")
def test_a_daemon_that_is_started_anew_while_it_is_read(cluster: Cluster) -> None:
    """A daemon is killed and restarted several times while other nodes read from it, and each time
    its copies are lost. Afterwards, the other nodes must use it again."""

    def several_times(victim: Node) -> None:
        for _ in range(3):
            victim.kill()
            victim.start()

    in_the_middle(cluster, several_times)
    cluster.nodes[VICTIM].wait_scanned()
    is_used_again(cluster)
