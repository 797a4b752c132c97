"""Sites of the trials: running nodes that share one slow source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.mounts import Mounts
from support.nodes import Nodes
from support.session import MIB, Session
from trials.reading import make_known

from monarch_py.demo.slowsource import SlowSource

# Some files are empty, some are smaller than a page, and some have many units.
SIZES = {
    seed: size
    for seed, size in enumerate(
        [
            0,
            1,
            4095,
            4096,
            70_001,
            *[9000 + 37 * i for i in range(24)],
            *[600_017] * 6,
            3 * MIB + 5,
        ],
        1,
    )
}


@dataclass(slots=True)
class Site:
    """Running nodes, which share one slow source.

    kind : the key in Tally.kills for daemons of these nodes
    """

    directory: Path
    source: Path
    nodes: Sequence[Session]
    kind: str


@contextmanager
def _source(directory: Path, slowsource: Path) -> Iterator[Path]:
    for name in ("backing", "mount"):
        (directory / name).mkdir()
    with SlowSource(directory / "backing", directory / "mount", binary=slowsource) as source:
        make_known(source.backing, SIZES)
        source.rate(200e6)
        source.latency(open=0.001, read=0.0005)
        yield source.mountpoint


@contextmanager
def alone(directory: Path, slowsource: Path) -> Iterator[Site]:
    """Yields a site of one node, whose tiers and staging area are too small for the source."""
    for name in ("mounts", "kept", "staging", "session"):
        (directory / name).mkdir()
    with _source(directory, slowsource) as source, Mounts(directory / "mounts") as mounts:
        tiers = [
            {"mount_point": mounts.tmpfs("ram", 8 * MIB), "max_storage_quota": 2 * MIB},
            {
                "mount_point": directory / "kept",
                "max_storage_quota": 2 * MIB,
                "persistent": True,
            },
        ]
        staging = {"mount_point": str(directory / "staging"), "max_storage_quota": 4 * MIB}
        with Session(directory / "session", source, tiers=tiers, staging=staging) as session:
            session.start()
            yield Site(directory, source, [session], "daemon")


@contextmanager
def shared(directory: Path, slowsource: Path) -> Iterator[Site]:
    """Yields a site of three nodes that fill from each other; two of them have readers.

    Together the nodes have room for most of the source, and their tiers are persistent."""
    with (
        _source(directory, slowsource) as source,
        Nodes(
            directory / "nodes",
            [source] * 3,
            [2 * MIB] * 3,
            tier={"persistent": True},
            area=MIB,
            prefetch="auto",
        ) as nodes,
    ):
        nodes.start()
        yield Site(directory, source, nodes.all, "peer")


SITES = {"alone": alone, "shared": shared}
