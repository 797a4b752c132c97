"""Asks the daemons of all nodes of a cluster for their status, for `status --all`."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from monarch_py.peers.handshake import Party, Purpose
from monarch_py.peers.membership import Cluster, Member
from monarch_py.peers.queries import ask
from monarch_py.peers.status import PeerStatus, Unreachable

# The time limit for the answer of one node [s]. A daemon answers between two iterations of its
# loop, so a long iteration delays the answer.
ANSWER_LIMIT_S = 2.0
# How many nodes are asked at the same time. With fewer, `status --all` might get its answer too
# late (ANSWER_LIMIT_S in ipc/connection.py) if a thousand nodes are off.
MOST_AT_A_TIME = 256

WHY = {
    PeerStatus.CUT: "cannot be reached",
    PeerStatus.REFUSED: "belongs to another session",
    PeerStatus.FORGED: "sent an answer that was altered in transit",
}


def all_nodes(cluster: Cluster | None, own: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns one dict for each node, in the order of the nodes' ranks (docs/status.md).

    cluster : None if this daemon serves a single node; the result then contains only this node
    own : this node's status
    """
    if cluster is None:
        return [_node(0, Member("", "", 0, ()), "", own)]

    def look(rank: int) -> dict[str, Any]:
        member = cluster.members[rank]
        if rank == cluster.rank:
            return _node(rank, member, "", own)
        return _node(rank, member, *_ask(cluster, rank))

    with ThreadPoolExecutor(min(len(cluster.members), MOST_AT_A_TIME)) as threads:
        return list(threads.map(look, range(len(cluster.members))))


def _ask(cluster: Cluster, rank: int) -> tuple[str, dict[str, Any] | None]:
    """Asks a node for its status. Returns ("", status) or, if there is no status, (reason,
    None)."""
    try:
        return "", json.loads(ask(Party.of(cluster), rank, ANSWER_LIMIT_S, Purpose.STATUS))
    except Unreachable as error:
        if error.status == PeerStatus.OTHER_NODE:
            member = cluster.members[rank]
            at = f"{member.host}:{member.port}"
            return (
                f"did not answer at {at}: rank {error.who} answered in place of rank {rank}",
                None,
            )
        return WHY.get(error.status, "does not answer"), None


def _node(rank: int, member: Member, problem: str, status: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "rank": rank,
        "name": member.name,
        "address": f"{member.host}:{member.port}" if member.host else "",
        "answers": not problem,
        "why": problem,
        "status": status,
    }
