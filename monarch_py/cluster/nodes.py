"""Brings the daemons of all nodes up together.

One rank (an MPI process) runs on each node. Every rank prepares its node, rank 0 lists the files of
the sources, and every rank starts its daemon. If some daemons of a cluster run already, only the
missing daemons are started. They rejoin the cluster.
"""

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monarch_py.cluster.collective import listed, together, told_once
from monarch_py.cluster.join_timeout import end_with_the_others
from monarch_py.cluster.local_node import LocalNode
from monarch_py.cluster.node_info import NodeInfo, check_infos, check_members
from monarch_py.cluster.ranks import Ranks
from monarch_py.daemon.starting import STAY
from monarch_py.errors import MonarchError, SessionError
from monarch_py.peers.handshake import new_secret
from monarch_py.peers.membership import Cluster, Member
from monarch_py.util.launcher import Launch


@dataclass(frozen=True, slots=True)
class Node:
    """This rank's daemon. The object is made when all daemons are up.

    process : the daemon's process; None if the daemon ran already
    lifeline : the writing end of a pipe. If this end is closed before `detach` was called, the
        daemon ends. None if the daemon ran already
    rank : this node's rank
    names : the names of all nodes, in the order of their ranks
    started : the names of the nodes whose daemons this call has started
    warnings : the warnings of all nodes, one sentence each
    """

    process: subprocess.Popen[bytes] | None
    lifeline: int | None
    rank: int
    names: list[str]
    started: list[str]
    warnings: list[str]

    def detach(self) -> None:
        """Makes the daemon continue to run after this process has ended."""
        if self.lifeline is not None:
            os.write(self.lifeline, STAY)
            os.close(self.lifeline)
        if self.process is not None:
            # Without a return code, Popen would later warn that the daemon still runs.
            self.process.returncode = 0


def bring_up(config_file: Path, launch: Launch) -> Node:
    """Starts this node's daemon, while all other ranks start theirs. Returns when all daemons are
    up.

    If one rank fails, rank 0 prints the reason, the daemons that this call has started are ended,
    and all ranks raise SystemExit. If a rank cannot join the others, it prints the reason itself,
    and exits.
    """
    try:
        ranks = Ranks(launch)
    except SessionError as error:
        sys.stderr.write(f"monarch: {error}\n")
        end_with_the_others()
        sys.exit(error.exit_status)
    try:
        here = LocalNode(config_file, ranks.names[ranks.rank])
        try:
            node = _bring_up(ranks, here)
        finally:
            here.leave_turn()
    except MonarchError as end:  # raised on all ranks
        if ranks.rank == 0:
            sys.stderr.write(f"monarch: {end}\n")
        # Wait for all ranks, because a launcher may kill the other ranks as soon as one rank exits
        # with an error.
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


def _bring_up(ranks: Ranks, here: LocalNode) -> Node:
    # Another command may bring up daemons at the same time. If rank 0 of both commands is on the
    # same node, the second command waits here for the first.
    together(ranks, here.take_turn if ranks.rank == 0 else lambda: None)
    infos = together(ranks, here.prepare)
    warnings = told_once((info.name, words) for info in infos for words in info.warnings)
    check_infos(infos)
    # The ranks whose daemons run. `check_infos` has checked that they belong to one cluster.
    running = [rank for rank, info in enumerate(infos) if info.running is not None]
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
    """Returns one sentence for each reason why nodes cannot be reached, with the names of these
    nodes.

    silent : the result of `LocalNode.unreached` on the node `asker`
    """
    found = []
    for why in dict.fromkeys(node["why"] for node in silent):
        nodes = [node for node in silent if node["why"] == why]
        names = listed([node["name"] for node in nodes])
        found.append(
            f"{asker.name} asked {names} at {listed([node['address'] for node in nodes])}: {why};"
            " nodes that cannot reach each other read more from the source;"
            f" look for a firewall, or set peers.interface in {asker.file} to another network"
        )
    return found


def _start(ranks: Ranks, here: LocalNode, infos: Sequence[NodeInfo]) -> list[list[str]]:
    """Starts the daemons of all nodes. Returns the problems that each node's daemon reports."""
    together(ranks, here.scan if ranks.rank == 0 else lambda: None)
    ranks.meet()
    # `meet` returns on all nodes at almost the same moment. So `now` is that moment on each node's
    # own clock. (The nodes' clocks may differ.)
    now = time.monotonic()
    record, age, secret = ranks.broadcast((here.record, now - here.began, new_secret()))
    cluster = Cluster(ranks.rank, _members(infos), secret, infos[0].agreed)
    return together(ranks, lambda: here.start(cluster, record, now - age))


def _come_back(
    ranks: Ranks, here: LocalNode, infos: Sequence[NodeInfo], running: Sequence[int]
) -> list[list[str]]:
    """Starts the missing daemons as members of the running daemons' cluster. The running daemon
    with the lowest rank provides the members and the secret. Returns the problems that each node's
    daemon reports."""
    first = running[0]
    told = together(ranks, lambda: (here.cluster(), here.roots()) if ranks.rank == first else None)[
        first
    ]
    assert told is not None
    cluster, roots = told
    check_members(infos, cluster)

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
