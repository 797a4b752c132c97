"""Epochs on several nodes at once, with a reader program on each node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from monarch_py.demo.slowsource import SlowSource
from support.epoch import Reader
from support.nodes import Node

UNIT = 256 << 10


class Cluster:
    """Several nodes that mount one dataset, and the program that reads it."""

    def __init__(
        self,
        program: Path,
        nodes: Sequence[Node],
        mounts: Sequence[SlowSource],
        files: Iterable[int],
    ) -> None:
        self._program, self.nodes, self.mounts = program, nodes, mounts
        self.files = list(files)

    def rate(self, bytes_per_s: float) -> None:
        """Sets the rate of the source [bytes/s], which is divided evenly among the nodes."""
        for mount in self.mounts:
            mount.rate(bytes_per_s / len(self.mounts))

    def reset(self) -> None:
        for mount in self.mounts:
            mount.reset()

    def served(self) -> int:
        """Returns the bytes that the source has sent to all nodes since `reset`."""
        return sum(mount.counts()["bytes_read"] for mount in self.mounts)

    def opened(self) -> int:
        """Returns how many times the nodes together have opened a file at the source since
        `reset`."""
        return sum(mount.counts()["open"] for mount in self.mounts)

    def reader(
        self,
        rank: int,
        files: Iterable[int] | None = None,
        *,
        ways: str = "read",
        threads: int = 3,
        chunk: int = UNIT,
    ) -> Reader:
        """Returns a context in which a reader on one node reads the files."""
        chosen = self.files if files is None else files
        node, root = self.nodes[rank], self.mounts[rank].mountpoint
        return Reader(self._program, node, ways, chunk, threads, root, chosen)

    def epoch(self, *ranks: int, **how: Any) -> list[dict[str, Any]]:
        """Reads everything once on each of these nodes, or on all nodes if none is given. Checks
        every byte."""
        with ExitStack() as stack:
            chosen = ranks or range(len(self.nodes))
            readers = [stack.enter_context(self.reader(rank, **how)) for rank in chosen]
            return [reader.end() for reader in readers]
