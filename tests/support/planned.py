"""Several nodes that follow the plan of one training job, with one rank on each node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from monarch_py.demo.slowsource import SlowSource
from monarch_py.plan import Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.loader import Loader
from monarch_py.policies.holding import with_holders
from support.epoch import Reader
from support.nodes import Node, Nodes
from support.session import MIB, wait_until


def save_plan(loader: Loader, epochs: int, root: Path, sizes: dict[str, int], to: Path) -> Path:
    """Saves the plan of a training job that reads the files of a directory by name, with one rank
    on each node."""
    index = Index.of("files", root, list(sizes), list(sizes.values()))
    plan = Plan((index,), (PlanPart("training", 0, loader),), epochs, loader.world_size)
    with_holders(plan).save(to)
    return to


def follows(node: Node) -> bool:
    return bool(node.plan()["state"] == "following")


class PlannedNodes:
    """Nodes that follow a plan and share one mount of the source.

    names : the names of the files, in the plan's order
    """

    def __init__(self, program: Path, source: SlowSource, nodes: Nodes, names: list[str]) -> None:
        self._program, self.source, self.nodes, self.names = program, source, nodes, names

    @property
    def all(self) -> list[Node]:
        return self.nodes.all

    def start(self) -> PlannedNodes:
        self.source.reset()
        self.nodes.start()
        for node in self.all:
            self.wait_follows(node)
        return self

    @staticmethod
    def wait_follows(node: Node) -> None:
        wait_until(partial(follows, node), what="a plan")

    def reader(self, rank: int, order: Iterable[int]) -> Reader:
        """Returns a context in which a reader on one node reads the files with these numbers."""
        files, root = [int(self.names[i]) for i in order], self.source.mountpoint
        return Reader(self._program, self.all[rank], "read", MIB, 1, root, files)

    def read(self, orders: Sequence[Sequence[int]]) -> None:
        """Reads files on all nodes at the same time. A node whose list in `orders` is empty runs no
        reader.

        orders : for each node, the numbers of the files that its reader reads
        """
        with ExitStack() as stack:
            ranks = (rank for rank, order in enumerate(orders) if order)
            readers = [stack.enter_context(self.reader(rank, orders[rank])) for rank in ranks]
            for reader in readers:
                reader.end()

    def read_by_fills(self) -> int:
        """Returns the bytes that the fills of all nodes have read from the source."""
        return sum(node.totals()["source_bytes_read_by_fills"] for node in self.all)
