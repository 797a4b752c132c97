"""Several jobs on one dataset share the nodes' tiers; a job that is started again finds the
copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from support.draws import sized
from support.epoch import READER_LIMIT_S
from support.epochs import Cluster
from support.session import wait_until

MIB = 1 << 20
FILES, SIZE = 40, MIB // 2


def test_two_jobs_at_a_time(cluster_factory: Callable[..., Cluster]) -> None:
    """Two jobs read everything on every node; each node makes one copy of each file."""
    cluster = cluster_factory(2, FILES, SIZE)
    cluster.rate(60e6)
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(cluster.reader(rank, order))
            for rank in range(2)
            for order in (cluster.files, cluster.files[::-1])
        ]
        for job in jobs:
            assert job.end()["longest_s"] < READER_LIMIT_S
    for node in cluster.nodes:
        node.wait_idle()
        assert len(node.copies()) == node.totals()["fills"] == FILES
        assert node.status()["sources"][0]["present"] == FILES
        assert node.totals()["fallbacks"] == 0
    assert cluster.served() <= 1.02 * FILES * SIZE
    total = sum(node.totals()["bytes_from_peers"] for node in cluster.nodes)
    assert total == FILES * SIZE


def test_jobs_get_the_same_of_the_source(cluster_factory: Callable[..., Cluster]) -> None:
    """Two jobs on one node read different files at the same time, and must get about the same share
    of the source's rate. If the node served one job after the other, the first job would end after
    half of the time."""
    cluster = cluster_factory(1, FILES, SIZE)
    cluster.rate(sized(20e6, 10e6))
    halves = cluster.files[: FILES // 2], cluster.files[FILES // 2 :]
    began = time.monotonic()
    with ExitStack() as stack:
        jobs = [stack.enter_context(cluster.reader(0, half)) for half in halves]
        left, ended = list(jobs), []
        while left:
            wait_until(lambda: any(not job.runs() for job in left), what="the end of a job")
            for job in [job for job in left if not job.runs()]:
                left.remove(job)
                ended.append(time.monotonic() - began)
        for job in jobs:
            job.end()
    assert ended[0] > 0.75 * ended[1]


def test_a_job_that_is_killed_and_starts_again(cluster_factory: Callable[..., Cluster]) -> None:
    cluster = cluster_factory(2, FILES, SIZE)
    cluster.rate(20e6)
    with cluster.reader(0) as first:
        wait_until(
            lambda: cluster.nodes[0].status()["sources"][0]["present"] > FILES // 4,
            what="some copies",
        )
        assert first.runs()
        # The reader is killed at the end of the context, in the middle of its epoch.
    cluster.rate(0)
    cluster.epoch(0)
    cluster.epoch(1)
    for node in cluster.nodes:
        node.wait_idle()
    assert cluster.served() <= 1.02 * FILES * SIZE
    cluster.reset()
    cluster.epoch()
    assert cluster.served() == 0
