"""Simulated nodes on one machine; each has a mount of the slow source, a daemon and ranks.

All mounts share a single link to the source. The daemons reach each other over the loopback
interface, or through network namespaces with links of their own (benchmarks/peers/nodes.py).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import yaml

from benchmarks.common import (
    SEED,
    Child,
    metadata_operations,
    plain_environment,
    wait_until,
    write_list,
)
from benchmarks.peers.nodes import Nodes
from monarch_py.config.load import load_config
from monarch_py.daemon.starting import StartupInfo, spawn, written
from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
from monarch_py.native import LIBRARY, Kind, State
from monarch_py.peers.handshake import new_secret
from monarch_py.peers.membership import Cluster, Member
from monarch_py.peers.server import listen
from monarch_py.plan import Loader, Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.samplers import DistributedSampler
from monarch_py.policies.rendezvous import Keys
from monarch_py.scan.record import record_sources
from monarch_py.util.processes import end

MIB, GIB = 1 << 20, 1 << 30
BLOCK = 256 << 10
END_LIMIT_S = 30.0


@dataclass(frozen=True)
class Dataset:
    """A dataset of files that are named by their numbers."""

    backing: Path
    sizes: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def make(cls, backing: Path, files: int, mean: int) -> Dataset:
        """Creates files of random sizes, from half of `mean` to one and a half times `mean`
        [bytes]. Their total size is about `files` times `mean`."""
        backing.mkdir()
        random = np.random.RandomState(SEED)
        sizes = random.randint(mean // 2, mean * 3 // 2, files).astype(np.int64)
        sizes = sizes * (files * mean) // sizes.sum()
        for number, size in enumerate(sizes.tolist()):
            (backing / cls.name(number)).write_bytes(random.bytes(size))
        return cls(backing, sizes)

    @staticmethod
    def name(number: int) -> str:
        return f"{number:06d}.bin"

    @property
    def bytes(self) -> int:
        return int(self.sizes.sum())

    def everything(self, ranks: int, epoch: int) -> list[list[int]]:
        """Returns, for each rank, all files in a random order. Each rank has its own order."""
        return [
            np.random.RandomState([SEED, epoch, rank]).permutation(len(self.sizes)).tolist()
            for rank in range(ranks)
        ]

    def shares(self, ranks: int, epoch: int) -> list[list[int]]:
        """Returns, for each rank, the files that PyTorch's DistributedSampler assigns to it, in the
        order in which the rank reads them."""
        sampler = DistributedSampler(len(self.sizes), ranks, seed=SEED)
        order = sampler.epoch(epoch)
        return [order[rank::ranks].tolist() for rank in range(ranks)]


class RankEpoch(NamedTuple):
    """The numbers that reader.c prints after an epoch, in the order in which it prints them.

    io_ns : the total time of all calls that open or read a file
    longest_ns : the longest time of such a call
    failed : the number of files that could not be read
    """

    wall_ns: int
    cpu_ns: int
    io_ns: int
    longest_ns: int
    bytes: int
    failed: int
    digest: int


@dataclass(frozen=True)
class Epoch:
    ranks: list[RankEpoch]
    before: dict[str, int] = field(repr=False)
    after: dict[str, int] = field(repr=False)

    @property
    def seconds(self) -> float:
        """The time [s] from the common start to the end of the last rank."""
        return max(rank.wall_ns for rank in self.ranks) / 1e9

    @property
    def longest_s(self) -> float:
        return max(rank.longest_ns for rank in self.ranks) / 1e9

    @property
    def bytes(self) -> int:
        return sum(rank.bytes for rank in self.ranks)

    @property
    def digests(self) -> list[int]:
        return [rank.digest for rank in self.ranks]

    def did(self, count: str) -> int:
        """Returns by how much a count of `Testbed.counts` has grown during the epoch. Returns 0 if
        there is no such count.

        count : the name of the count
        """
        return self.after.get(count, 0) - self.before.get(count, 0)


@dataclass(frozen=True)
class Layout:
    """The nodes of a testbed, and what runs on them.

    tiers : for each node, the size of its tier [bytes]
    staging : the size of the staging area of each node [bytes]
    settings : additional keys and values for the configuration of every node
    planned : the number of epochs in the access plan that the daemons follow; 0 for no plan
    loader : the loader in the plan; None for a loader that reads in the order of `Dataset.shares`
    rank_nodes : for each rank, the node on which it runs; None for one rank on each node
    has_daemons : whether daemons run. If not, the ranks read the source, without the library
    keep_pages : whether the kernel keeps the source's pages in its page cache
    threads : the number of reading threads of each rank
    """

    tiers: Sequence[int]
    staging: int
    settings: dict[str, Any] = field(default_factory=dict)
    planned: int = 0
    loader: Loader | None = None
    rank_nodes: Sequence[int] | None = None
    has_daemons: bool = True
    keep_pages: bool = False
    threads: int = 8


class Testbed:
    """The running nodes that a Layout describes. They run inside a `with` block.

    The daemons start in the same way as with `monarch start` on several nodes: one node lists the
    files of the source, and all daemons receive the list. Then the testbed checks that the first
    daemon can reach all others.

    place : an empty directory on tmpfs
    programs : the paths of the slow source and of the reader (reader.c)
    rate : the rate of the source [bytes/s]
    latency_s : the time that an open, a read or a request for attributes takes at the source [s]
    links : the network namespaces of the nodes, created by the caller; None to use the loopback
        interface
    """

    def __init__(
        self,
        place: Path,
        dataset: Dataset,
        programs: tuple[Path, Path],
        layout: Layout,
        *,
        rate: float,
        latency_s: float = 0.0,
        links: Nodes | None = None,
    ) -> None:
        self.place, self.dataset, self.layout, self.links = place, dataset, layout, links
        self.slowsource, self.reader = programs
        self.rate, self.latency_s = rate, latency_s
        self.scan_s = 0.0  # the time that the scan of the source took [s]
        self.mounts: list[SlowSource] = []
        self.daemons: list[subprocess.Popen[bytes] | None] = []
        self.ranks: list[Child] = []
        self.rank_nodes = (
            range(len(layout.tiers)) if layout.rank_nodes is None else layout.rank_nodes
        )
        self._stack = ExitStack()
        self._lists = 0

    def __enter__(self) -> Testbed:
        with ExitStack() as stack:
            self._stack = stack
            self._mount()
            # The sessions of all daemons can share this directory. The sessions have different
            # names, because the daemons have different configurations.
            (self.place / "shm").mkdir()
            if self.layout.has_daemons:
                self._start_daemons()
            argv: list[str | Path | int] = [self.reader, self.layout.threads, BLOCK]
            for rank, node in enumerate(self.rank_nodes):
                # In a real job, the launcher (such as torchrun) sets this variable.
                number = {"LOCAL_RANK": str(list(self.rank_nodes[:rank]).count(node))}
                environment = self.environment(node) | number
                self.ranks.append(stack.enter_context(Child(argv, environment)))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    # --- start ----------------------------------------------------------------------------------

    def _mount(self) -> None:
        for node in range(len(self.layout.tiers)):
            (self.place / f"source{node}").mkdir()
            mount = SlowSource(
                self.dataset.backing,
                self.place / f"source{node}",
                binary=self.slowsource,
                keep_pages=self.layout.keep_pages,
                link=self.place / "link",
            )
            self._stack.enter_context(mount).rate(self.rate)
            mount.latency(open=self.latency_s, getattr=self.latency_s, read=self.latency_s)
            self.mounts.append(mount)

    def config(self, node: int) -> Path:
        return self.place / f"node{node}" / "tiers.yaml"

    def _start_daemons(self) -> None:
        count, secret = len(self.layout.tiers), new_secret()
        listeners = []
        for node in range(count):
            with self._on(node):
                listeners.append(listen(self.links.address(node) if self.links else "127.0.0.1"))
            self._stack.callback(listeners[-1].close)
        addresses = [listener.getsockname() for listener in listeners]
        members = tuple(
            Member(f"node{node}", host, port, (self.layout.tiers[node],))
            for node, (host, port) in enumerate(addresses)
        )
        os.environ["MONARCH_SHM"] = str(self.place / "shm")
        self._stack.callback(os.environ.pop, "MONARCH_SHM")
        for node in range(count):
            self._configure(node)
        began = time.monotonic()
        record = record_sources(load_config(self.config(0)))
        self.scan_s = time.monotonic() - began
        for node, listener in enumerate(listeners):
            listed = written(record)
            self._stack.callback(os.close, listed)
            with self._on(node):
                cluster = Cluster(node, members, secret)
                startup = StartupInfo(cluster, listener.fileno(), listed, began=began)
                self.daemons.append(spawn(self.config(node), detach=False, startup=startup))
            self._stack.callback(self._end_daemon, node)
        self.connection(0).ask("all")

    def _on(self, node: int) -> Any:
        return self.links.entered(node) if self.links else nullcontext()

    def _configure(self, node: int) -> None:
        here = self.config(node).parent
        for name in ("tier", "staging"):
            (here / name).mkdir(parents=True)
        tier = {"mount_point": str(here / "tier"), "max_storage_quota": self.layout.tiers[node]}
        area = {"mount_point": str(here / "staging"), "max_storage_quota": self.layout.staging}
        document = {
            "sources": [str(self.mounts[node].mountpoint)],
            "hierarchy": [tier],
            "staging": area,
            **self.layout.settings,
        }
        if self.layout.planned:
            document["plan"] = str(here / "plan.npz")
            self._plan(node).save(here / "plan.npz")
        self.config(node).write_text(yaml.safe_dump(document))

    def _plan(self, node: int) -> Plan:
        """Returns the access plan for the daemon of `node`. The plan contains paths below the
        node's own mount of the source."""
        sizes = self.dataset.sizes.tolist()
        names = [Dataset.name(number) for number in range(len(sizes))]
        index = Index.of("files", self.mounts[node].mountpoint, names, sizes)
        part = PlanPart("training", 0, self.layout.loader or self._loader())
        return Plan((index,), (part,), self.layout.planned, len(self.layout.tiers))

    def _loader(self) -> Loader:
        ranks, workers = len(self.rank_nodes), self.layout.threads
        sampler = DistributedSampler(len(self.dataset.sizes), ranks, seed=SEED)
        return Loader(sampler, ranks, 1, workers=workers, prefetch_factor=2)

    def _end_daemon(self, node: int) -> None:
        daemon, self.daemons[node] = self.daemons[node], None
        if daemon is None:
            return
        end(daemon, END_LIMIT_S)

    # --- use ------------------------------------------------------------------------------------

    def environment(self, node: int) -> dict[str, str]:
        """Returns the environment of a program that runs on the node."""
        if not self.layout.has_daemons:
            return plain_environment()
        ours = {"LD_PRELOAD": str(LIBRARY), "MONARCH_CONFIG": str(self.config(node))}
        return plain_environment() | ours

    def kill(self, node: int) -> None:
        """Kills the node's daemon with SIGKILL."""
        daemon, self.daemons[node] = self.daemons[node], None
        assert daemon is not None
        daemon.kill()
        daemon.wait()

    @property
    def alive(self) -> list[int]:
        return [node for node, daemon in enumerate(self.daemons) if daemon is not None]

    def connection(self, node: int) -> DaemonConnection:
        return DaemonConnection(SessionDir.of(self.config(node)))

    def status(self, node: int) -> dict[str, Any]:
        said: dict[str, Any] = self.connection(node).ask("status")
        return said

    def catalog(self, node: int) -> CatalogReader:
        generation = int(self.connection(node).ask("where")["generation"])
        return CatalogReader.open(SessionDir.of(self.config(node)), generation)

    def kept(self, node: int) -> set[int]:
        """Returns the files that have a copy in the node's tier."""
        catalog = self.catalog(node)
        words = catalog.words
        here = (word.state(words) == State.PRESENT) & (catalog.entries["kind"] == Kind.FILE)
        chosen = np.flatnonzero(here & (word.tier(words) == 0))
        return {int(catalog.path(int(entry)).partition(".")[0]) for entry in chosen}

    def await_catalogs(self) -> None:
        """Waits until the catalogs of all daemons contain all files, and all daemons follow their
        plans."""
        wait_until(lambda: all(map(self._is_ready, self.alive)), "catalogs", 60)

    def _is_ready(self, node: int) -> bool:
        status = self.status(node)
        plans = status.get("plans", [])
        return status["scanned"] and all(plan["state"] == "following" for plan in plans)

    def settle(self) -> None:
        """Waits until no daemon has pending fills (copies to make)."""
        wait_until(
            lambda: not any(self.status(node)["pending"] for node in self.alive), "fills", 120
        )

    def counts(self) -> dict[str, int]:
        """Returns counts since the start, for all nodes together: the bytes that the source has
        sent, the opens at the source, and the other metadata operations at the source. Also returns
        the counters of the daemons, added up over all running daemons."""
        mounts = [mount.counts() for mount in self.mounts]
        source = {
            "served": sum(mount["bytes_read"] for mount in mounts),
            "opened": sum(mount["open"] for mount in mounts),
            "metadata": sum(map(metadata_operations, mounts)),
        }
        if not self.alive:
            return source
        names = ("opens", "hits", "misses", "waits", "fallbacks", "bytes_from_peers")
        totals = [self.status(node)["totals"] for node in self.alive]
        return source | {name: sum(t[name] for t in totals) for name in names}

    def hashes(self) -> Keys:
        """Returns, for each file, the hash from which the daemons determine the file's owner,
        (files,)."""
        catalog, found = self.catalog(0), np.zeros(len(self.dataset.sizes), np.uint64)
        for entry in np.flatnonzero(catalog.entries["kind"] == Kind.FILE):
            number = int(catalog.path(int(entry)).partition(".")[0])
            found[number] = catalog.entries["hash"][entry]
        return found

    def list_of(self, node: int, order: Sequence[int]) -> Path:
        """Writes a list of files for a reader on the node. The list contains paths below the node's
        own mount of the source."""
        self._lists += 1
        root = self.mounts[node].mountpoint
        names = [f"{root}/{Dataset.name(number)}" for number in order]
        return write_list(self.place / f"list{self._lists}", names)

    def epoch(self, orders: Sequence[Sequence[int]], compute_ns: int = 0) -> Epoch:
        """Runs an epoch: all ranks start at the same time, and each rank reads its files. Raises
        RuntimeError if a file cannot be read.

        orders : for each rank, the files that it reads
        compute_ns : the time that a thread computes after each file [ns]
        """
        return self.epochs([orders], compute_ns)[0]

    def epochs(self, orders: Sequence[Sequence[Sequence[int]]], compute_ns: int = 0) -> list[Epoch]:
        """Runs several epochs, one directly after the other."""
        lists = [self._lists_of(each) for each in orders]
        counts, said = [self.counts()], []
        for each in lists:
            self._tell(each, compute_ns)
            said.append(self._hear())
            counts.append(self.counts())
        return [Epoch(*each) for each in zip(said, counts, counts[1:], strict=False)]

    def begin(self, orders: Sequence[Sequence[int]], compute_ns: int = 0) -> None:
        """Starts an epoch, and does not wait. This is the first half of `epoch`."""
        lists = self._lists_of(orders)
        self._before = self.counts()
        self._tell(lists, compute_ns)

    def end(self) -> Epoch:
        """Waits for the end of the epoch. This is the second half of `epoch`."""
        return Epoch(self._hear(), self._before, self.counts())

    def _lists_of(self, orders: Sequence[Sequence[int]]) -> list[Path]:
        pairs = zip(self.rank_nodes, orders, strict=True)
        return [self.list_of(node, order) for node, order in pairs]

    def _tell(self, lists: list[Path], compute_ns: int) -> None:
        for rank, listed in zip(self.ranks, lists, strict=True):
            rank.tell(f"epoch {listed} {compute_ns}")

    def _hear(self) -> list[RankEpoch]:
        said = [RankEpoch(*rank.hear()) for rank in self.ranks]
        if any(rank.failed for rank in said):
            raise RuntimeError(f"files could not be read: {said}")
        return said
