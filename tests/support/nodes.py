"""The daemons of a cluster, all on this machine, with a session for each node."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from monarch_py.daemon import starting
from monarch_py.daemon.starting import StartupInfo, spawn
from monarch_py.ipc.session import SessionDir, open_private
from monarch_py.peers.handshake import Party, new_secret
from monarch_py.peers.membership import Cluster, Member
from monarch_py.peers.server import listen
from support.forking import Forked, fork_told_daemon
from support.session import MIB, Session, wait_until


@dataclass(frozen=True)
class Host:
    """The network of a node.

    address : the node's address in this network
    call : a function that calls a given function with given arguments inside the network
    """

    address: str = "127.0.0.1"
    call: Callable[..., Any] = lambda function, *arguments: function(*arguments)


class Node(Session):
    """One of the nodes: a session whose daemon belongs to the cluster."""

    cluster: Cluster
    listener: socket.socket
    host: Host

    def start(self, *, wait: bool = True, prefix: Sequence[str] = ()) -> Node:
        self.begin(is_forked=wait)
        if wait:
            self.wait_up()
        return self

    def begin(self, *, is_forked: bool = True) -> None:
        """Starts the node's daemon without waiting for it.

        is_forked : whether a process that has loaded the daemon's modules may fork the daemon
        """
        if self.listener.fileno() < 0:
            self.listener = self.host.call(listen, *self.address)
        self.log = self.paths.log
        with _shared_memory(self.shm):
            forked = self.host.call(self._fork_told) if is_forked else None
            self.daemon = forked or self.host.call(self._spawn_told)

    def _fork_told(self) -> Forked | None:
        SessionDir.of(self.config).make()
        startup = msgspec.to_builtins(StartupInfo(self.cluster, -1))
        log = open_private(self.log, os.O_WRONLY | os.O_APPEND)
        try:
            return fork_told_daemon(self.config, startup, self.listener.fileno(), log)
        finally:
            os.close(log)

    def _spawn_told(self) -> subprocess.Popen[bytes]:
        told = StartupInfo(self.cluster, self.listener.fileno())
        with patch.object(starting, "_wait_until_up", lambda *_: None):
            return spawn(self.config, detach=False, startup=told)

    def kill(self) -> None:
        """Kills the daemon and closes its listening socket; the next daemon listens at the same
        address."""
        self.listener.close()
        super().kill()

    @property
    def address(self) -> tuple[str, int]:
        me = self.cluster.members[self.cluster.rank]
        return me.host, me.port

    def asked_by(self, rank: int) -> Party:
        """Returns the identity of the node with the rank `rank`. A test that uses this identity can
        send requests to this node as if they came from that node."""
        return Party.of(replace(self.cluster, rank=rank))

    def seen_by(self, other: Node) -> dict[str, Any]:
        """Returns the status that another node's daemon reports about this node."""
        member: dict[str, Any] = other.nodes()["members"][self.cluster.rank]
        return member

    def copies(self) -> list[Path]:
        """Returns the files of the node's tier."""
        return [path for path in self.tiers[0].glob("monarch-*/c/*") if path.is_file()]

    def plan(self) -> dict[str, Any]:
        """Returns the status of the one plan that the node follows."""
        (plan,) = self.status()["plans"]
        return dict(plan)

    def nodes(self) -> dict[str, Any]:
        said: dict[str, Any] = self.status()["nodes"]
        return said


def _close_listener(node: Node) -> None:
    node.listener.close()


@contextmanager
def _shared_memory(place: Path) -> Iterator[None]:
    old = os.environ.get("MONARCH_SHM")
    os.environ["MONARCH_SHM"] = str(place)
    try:
        yield
    finally:
        if old is None:
            del os.environ["MONARCH_SHM"]
        else:
            os.environ["MONARCH_SHM"] = old


class Nodes:
    """A cluster of nodes. Its daemons end when the context is left.

    sources : the path of the dataset on each node
    quotas : the quota of each node's tier [bytes]
    hosts : the nodes' networks; if empty, all nodes use this machine's own network
    tier : more settings of each node's tier
    area : the size of each node's staging area [bytes], if it has one
    settings : more keys of every configuration
    """

    def __init__(
        self,
        directory: Path,
        sources: Sequence[Path],
        quotas: Sequence[int],
        hosts: Sequence[Host] = (),
        *,
        tier: dict[str, Any] | None = None,
        area: int = 0,
        **settings: Any,
    ) -> None:
        secret, self._stack = new_secret(), ExitStack()
        hosts = hosts or [Host()] * len(quotas)
        listeners = [host.call(listen, host.address) for host in hosts]
        members = tuple(
            Member(f"node{rank}", hosts[rank].address, listener.getsockname()[1], (quota,))
            for rank, (listener, quota) in enumerate(zip(listeners, quotas, strict=True))
        )
        self.all: list[Node] = []
        ends = zip(listeners, sources, quotas, strict=True)
        for rank, (listener, source, quota) in enumerate(ends):
            place = directory / f"node{rank}"
            (place / "tier").mkdir(parents=True, exist_ok=True)
            own = {"mount_point": str(place / "tier"), "max_storage_quota": quota}
            tiers = [{**own, **(tier or {})}]
            if area:
                (place / "area").mkdir(exist_ok=True)
                settings["staging"] = {
                    "mount_point": str(place / "area"),
                    "max_storage_quota": area,
                }
            node = Node(place, source, tiers=tiers, **settings)
            node.cluster, node.listener = Cluster(rank, members, secret), listener
            node.host = hosts[rank]
            self._stack.callback(_close_listener, node)
            self.all.append(node)

    def start(self) -> Nodes:
        for node in self.all:
            self._stack.enter_context(node)
            node.begin()
        for node in self.all:
            node.wait_up()
        for node in self.all:
            node.wait_scanned()
        return self

    def wait_idle(self) -> None:
        """Waits until all nodes have ended their fills."""
        wait_until(
            lambda: all(not node.status()["pending"] for node in self.all),
            what="the end of all nodes' fills",
        )

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def __getitem__(self, rank: int) -> Node:
        return self.all[rank]


__all__ = ["MIB", "Host", "Node", "Nodes"]
