from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from peers.test_nodes import enter
from support.epoch import make_files
from support.epochs import Cluster
from support.nodes import Host, Nodes
from support.planned import PlannedNodes, save_plan

from benchmarks.peers.nodes import Nodes as Namespaces
from benchmarks.peers.nodes import why_no_nodes
from monarch_py.demo.slowsource import SlowSource
from monarch_py.plan.loader import Loader


def mounted(stack: ExitStack, place: Path, binary: Path, count: int) -> list[SlowSource]:
    made = []
    for rank in range(count):
        backing, mountpoint = place / "backing", place / f"mount{rank}"
        backing.mkdir(exist_ok=True)
        mountpoint.mkdir()
        source = SlowSource(backing, mountpoint, binary=binary, keep_pages=True)
        made.append(stack.enter_context(source))
    return made


@pytest.fixture
def mounts(tmp_path: Path, slowsource_binary: Path) -> Iterator[Callable[[int], list[SlowSource]]]:
    """Mounts one dataset for the given number of nodes. As on a cluster, each node has a FUSE
    client of its own, which does not benefit from the caches of the other nodes' clients. A client
    keeps a file's cached pages when the file is opened again. Otherwise, an open by a program would
    make the client drop pages that a fill is currently reading for another node. These pages would
    then be read twice."""
    with ExitStack() as stack:
        yield lambda count: mounted(stack, tmp_path, slowsource_binary, count)


@pytest.fixture
def nodes_factory(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    """Yields a function that makes nodes: nodes_factory(mounts, quotas, **settings). The nodes end
    when the test ends."""
    with ExitStack() as stack:

        def make(mounts: list[SlowSource], quotas: list[int], **settings: Any) -> Nodes:
            sources = [mount.mountpoint for mount in mounts]
            return stack.enter_context(Nodes(tmp_path / "nodes", sources, quotas, **settings))

        yield make


@pytest.fixture
def cluster_factory(
    nodes_factory: Callable[..., Nodes],
    mounts: Callable[[int], list[SlowSource]],
    epoch_reader: Path,
) -> Callable[..., Cluster]:
    """Returns a function that makes a dataset and starts nodes that share it:
    cluster_factory(nodes, files, size, **settings). Each node has room for the whole dataset."""

    def make(count: int, files: int, size: int, **settings: Any) -> Cluster:
        sources = mounts(count)
        made = make_files(sources[0].backing, files, size)
        quotas = settings.pop("quotas", [int(files * (size + 8192) * 1.2)] * count)
        nodes = nodes_factory(sources, quotas, **settings).start()
        cluster = Cluster(epoch_reader, nodes.all, sources, made)
        cluster.reset()
        return cluster

    return make


@pytest.fixture
def planned_factory(
    nodes_factory: Callable[..., Nodes],
    mounts: Callable[[int], list[SlowSource]],
    epoch_reader: Path,
    tmp_path: Path,
) -> Callable[..., PlannedNodes]:
    """Returns a function that makes nodes and the plan of a training run with one rank on each
    node: planned_factory(loader, epochs, files, size, quota, area, **settings). The function does
    not start the nodes.

    quota, area : the sizes of each node's tier and staging area [bytes];  quotas : in `settings`, a
    list of the nodes' quotas, if these differ"""

    def make(
        loader: Loader, epochs: int, files: int, size: int, quota: int, area: int, **settings: Any
    ) -> PlannedNodes:
        (source,) = mounts(1)
        make_files(source.backing, files, size)
        sizes = {path.name: size for path in sorted(source.backing.iterdir())}
        plan = save_plan(loader, epochs, source.mountpoint, sizes, tmp_path / "plan.npz")
        (tmp_path / "area").mkdir()
        staging = {"mount_point": str(tmp_path / "area"), "max_storage_quota": area}
        ranks = loader.world_size
        quotas = settings.pop("quotas", [quota] * ranks)
        nodes = nodes_factory([source] * ranks, quotas, plan=str(plan), staging=staging, **settings)
        return PlannedNodes(epoch_reader, source, nodes, list(sizes))

    return make


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    if missing := why_no_nodes():
        pytest.skip(missing)
    with Namespaces(3, "1gbit") as made:
        yield made


@pytest.fixture
def hosts(namespaces: Namespaces) -> Iterator[list[Host]]:
    """The nodes' hosts. Each host has a thread that runs in the host's network namespace and starts
    the node's processes there."""
    with ExitStack() as stack:

        def on(node: int) -> Host:
            place = namespaces.path(node)
            pool = ThreadPoolExecutor(1, initializer=enter, initargs=(place,))
            stack.enter_context(pool)

            def call(*words: Any) -> Any:
                return pool.submit(*words).result()

            return Host(namespaces.address(node), call)

        yield [on(node) for node in range(3)]
