"""How long a node waits for another node whose daemon runs, but whose source is slow or does not
answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.epoch import READER_LIMIT_S
from support.epochs import Cluster
from support.session import wait_until

KIB = 1 << 10
THREADS = 8


@pytest.mark.usefixtures("alone")
def test_a_slow_source_is_not_asked_by_others_as_well(
    cluster_factory: Callable[..., Cluster],
) -> None:
    """The reader that is served last waits for several answers from the owner. No node but the
    owner reads from the source."""
    files, size = 40, 256 * KIB
    cluster = cluster_factory(2, files, size)
    # An answer takes 0.6 s. The readers of both nodes together request so many bytes from one node
    # that it needs longer than the time of two answers to read them.
    cluster.rate(2 * THREADS * size / 1.5)
    ends = cluster.epoch(threads=THREADS)
    assert max(end["longest_s"] for end in ends) > 1.3
    for node in cluster.nodes:
        node.wait_idle()
    assert cluster.served() <= 1.02 * files * size
    assert sum(node.totals()["fallbacks"] for node in cluster.nodes) == 0


@pytest.mark.long  # without --long, test_haste.py covers a similar case
def test_a_reader_of_what_is_on_its_way_already_is_told_of(
    cluster_factory: Callable[..., Cluster],
) -> None:
    """One node, the asker, has ordered the files of the other node, which is their owner. At first,
    no reader waits for these files. Then a reader on the asker's node opens them in reverse order,
    so it begins with the files that the owner would read last. The owner learns for which files the
    reader waits, and reads these files sooner."""
    files, size = 24, 384 * KIB
    cluster = cluster_factory(2, files, size, shared_tpool_size=2, min_reads=1)
    asker = cluster.nodes[1]
    # In its own order, the owner would take four seconds to reach the last file.
    cluster.rate(2 * files / 2 * size / 4)
    asker.want_all()
    wait_until(lambda: cluster.served() > 0, what="fills that nobody waits for")
    with cluster.reader(1, reversed(cluster.files), threads=4) as reader:
        end = reader.end()
    assert end["longest_s"] < 3.2
    asker.wait_idle()
    assert cluster.served() <= 1.02 * files * size
    assert asker.totals()["fallbacks"] == 0


def test_nobody_waits_long_for_a_node_whose_source_gives_nothing(
    cluster_factory: Callable[..., Cluster],
) -> None:
    """The asker knows that the owner's daemon runs. But when the owner reads from its own mount of
    the source, these reads take too long. The asker's reader must not wait for them, because the
    asker can read from its own mount."""
    files, size = 12, 256 * KIB
    cluster = cluster_factory(2, files, size)
    owner, asker = cluster.nodes
    cluster.mounts[0].latency(read=12.0)
    (end,) = cluster.epoch(1, threads=files)
    assert end["longest_s"] < READER_LIMIT_S
    assert owner.nodes()["own_files"] > 0
    assert asker.seen_by(owner)["usable"]
    cluster.mounts[0].latency(read=0.0)
    wait_until(
        lambda: owner.totals()["source_bytes_read_by_fills"] > 0,
        what="the owner's read of the source",
    )
