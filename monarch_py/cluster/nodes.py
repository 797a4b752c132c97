"""Bringing the daemons up: every rank prepares, rank 0 lists the sources, every rank starts its
daemon. Where some of them run already and know of each other, the others come back to them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monarch_py.cluster.collective import EndError, alike, listed, together, told_once
from monarch_py.cluster.join_timeout import end_with_the_others
from monarch_py.cluster.local_node import LocalNode
from monarch_py.cluster.node_info import NodeInfo, check_infos, check_members, those_that_run
from monarch_py.cluster.ranks import Ranks
from monarch_py.daemon.lifecycle import STAY
from monarch_py.errors import SessionError
from monarch_py.peers import new_secret
from monarch_py.peers.membership import Cluster, Member
from monarch_py.util.launcher import Launch

__all__ = ["Node", "bring_up"]


@dataclass(frozen=True, slots=True)
class Node:
    """This rank's daemon, up like all others.

    process : None if it ran already;  lifeline : it ends when this is closed, but for `detach`;
    rank : this node's;  names : of all nodes, in the order of their ranks;  started : of those
    whose daemons did not run before;  warnings : one sentence each, of all nodes
    """

    process: subprocess.Popen[bytes] | None
    lifeline: int | None
    rank: int
    names: list[str]
    started: list[str]
    warnings: list[str]

    def detach(self) -> None:
        """The daemon stays when this process ends."""
        if self.lifeline is not None:
            os.write(self.lifeline, STAY)
            os.close(self.lifeline)
        if self.process is not None:
            self.process.returncode = 0  # not ours to wait for any more


def bring_up(config_file: Path, launch: Launch) -> Node:
    """Starts this node's daemon, as all other ranks do theirs, and returns when all of them serve.

    SystemExit, on all ranks alike, if that cannot be on one of them: rank 0 has said why then, and
    no daemon is left of this call; also on a rank that cannot join the others, which says why.
    """
    try:
        ranks = Ranks(launch)
    except SessionError as error:
        sys.stderr.write(f"monarch: {error}\n")
        end_with_the_others()
        sys.exit(error.exit_status)
    try:
        node = _bring_up(ranks, config_file)
    except EndError as end:
        if ranks.rank == 0:
            sys.stderr.write(f"monarch: {end}\n")
        # A launcher may end all others with the first rank that ends badly.
        ranks.meet()
        ranks.leave()
        sys.exit(end.exit_status)
    except BaseException as error:
        if isinstance(error, Exception):
            traceback.print_exc()
        ranks.abort()
        raise
    ranks.leave()
    return node


def _bring_up(ranks: Ranks, config_file: Path) -> Node:
    here = LocalNode(config_file, ranks.names[ranks.rank])
    try:
        return _bring_up_here(ranks, here)
    finally:
        here.leave_turn()


def _bring_up_here(ranks: Ranks, here: LocalNode) -> Node:
    # Of two starts at once, whose first rank is on the same node, one waits for the other.
    together(ranks, here.take_turn if ranks.rank == 0 else lambda: None)
    infos = together(ranks, here.prepare)
    warnings = told_once((info.name, words) for info in infos for words in info.warnings)
    alike(check_infos, infos)
    running = those_that_run(infos)
    try:
        if not running:
            found = _start(ranks, here, infos)
        elif len(running) < ranks.size:
            found = _come_back(ranks, here, infos, running)
        else:
            found = [[] for _ in infos]
    except BaseException:
        here.end()
        raise
    started = [info.name for rank, info in enumerate(infos) if rank not in running]
    said = [(info.name, words) for info, why in zip(infos, found, strict=True) for words in why]
    warnings += told_once(said)
    if started:
        silent = together(ranks, here.unreached if ranks.rank == 0 else list)[0]
        warnings += _of_unreached(silent, infos[0])
    return Node(here.process, here.lifeline, ranks.rank, ranks.names, started, warnings)


def _of_unreached(silent: Sequence[dict[str, Any]], asker: NodeInfo) -> list[str]:
    """One sentence for all that the asker's daemon does not reach for one reason."""
    found = []
    for why in dict.fromkeys(node["why"] for node in silent):
        nodes = [node for node in silent if node["why"] == why]
        names = listed([node["name"] for node in nodes])
        found.append(
            f"{names}: {why} from {asker.name}, at {listed([node['address'] for node in nodes])};"
            " each would read from the source what the other keeps: look for a firewall, or name"
            f" another network with peers.interface in {asker.file}"
        )
    return found


def _start(ranks: Ranks, here: LocalNode, infos: Sequence[NodeInfo]) -> list[list[str]]:
    """All of them. What is said of each node's tiers."""
    together(ranks, here.scan if ranks.rank == 0 else lambda: None)
    ranks.meet()
    # The same moment on all nodes, but for a pause of `meet`; their clocks may differ.
    now = time.monotonic()
    record, age, secret = ranks.broadcast((here.record, now - here.began, new_secret()))
    cluster = Cluster(ranks.rank, _members(infos), secret, infos[0].agreed)
    return together(ranks, lambda: here.start(cluster, record, now - age))


def _come_back(
    ranks: Ranks, here: LocalNode, infos: Sequence[NodeInfo], running: Sequence[int]
) -> list[list[str]]:
    """Those whose daemon does not run: to the cluster of the others, which tell its secret."""
    first = running[0]
    told = together(ranks, lambda: (here.cluster(), here.roots()) if ranks.rank == first else None)[
        first
    ]
    assert told is not None
    cluster, roots = told
    alike(check_members, infos, cluster)

    def come_back() -> list[str]:
        if ranks.rank in running:
            return []
        return here.come_back(replace(cluster, rank=ranks.rank), roots, infos[first].name)

    return together(ranks, come_back)


def _members(infos: Sequence[NodeInfo]) -> tuple[Member, ...]:
    found = []
    for info in infos:
        assert info.address is not None
        found.append(Member(info.name, *info.address, info.quotas))
    return tuple(found)
