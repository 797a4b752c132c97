"""Decides which node keeps each file, and which nodes a fill asks for the file.

The nodes do not negotiate. At its start, every daemon received the quotas of all nodes. From the
quotas and the catalog, every daemon computes the same result (policies/rendezvous.py). Each file
has one owner: the node that keeps it for all nodes.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from monarch_py.arrays import NO_IDS, Bools, Ids, Int32s, Ints
from monarch_py.daemon.copies.engine import Engine
from monarch_py.daemon.nodes.early_links import EarlyLinks
from monarch_py.daemon.nodes.serving import Membership, ReplicaServer
from monarch_py.daemon.segments import Shared
from monarch_py.errors import SessionError
from monarch_py.ipc import word
from monarch_py.native import Kind, Reason, State, lib
from monarch_py.peers.handshake import Party
from monarch_py.peers.membership import Cluster
from monarch_py.peers.peer import Peer
from monarch_py.peers.tcp import connect_link
from monarch_py.policies.node import NOBODY, Holders, NodePolicy
from monarch_py.policies.placement import UNIT, slack_of
from monarch_py.policies.rendezvous import first_nodes, next_nodes, owners, second_copies
from monarch_py.storage.tiers import Tier

__all__ = ["UNIT", "Membership", "Nodes", "rooms_of"]

log = logging.getLogger("monarch.nodes")

# At its start, the daemon computes which node keeps which file. Until the daemon has run for this
# long [s], readers wait for the result.
START_LIMIT_S = 1.0
# Other nodes may request files before this node knows which files it keeps. Even requests for which
# no reader waits must then wait. Otherwise the other node would read the file from the source
# itself. While this node scans the sources, such requests wait until this time [s] after the
# daemon's start. While a plan's files are being assigned to nodes, they wait without a limit.
SCAN_LIMIT_S = 10.0


def rooms_of(cluster: Cluster) -> Ints:
    """Returns an array (nodes,): the room of each node [bytes], for files whose sizes are rounded
    up by `UNIT.rounded`. The room is slightly less than the sum of the node's quotas. Otherwise a
    node might not have room for all files that it owns."""
    rooms = [sum(quota - slack_of(quota) for quota in member.quotas) for member in cluster.members]
    return np.array(rooms, dtype=np.int64)


class Nodes:
    """Decides which node keeps which file. Runs in the daemon's loop and never blocks."""

    def __init__(
        self,
        membership: Membership,
        shared: Shared,
        engine: Engine,
        tiers: list[Tier | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._began = clock, clock()
        self.cluster, self.shared, self._engine = membership.cluster, shared, engine
        cluster = self.cluster
        if len(cluster.members) > lib.MONARCH_MAX_PEERS:
            raise SessionError(
                f"{len(cluster.members)} nodes are too many for one cluster; start Monarch on at"
                f" most {lib.MONARCH_MAX_PEERS}"
            )
        self.replicas = ReplicaServer(membership, shared, engine, tiers)
        connect = partial(connect_link, Party.of(cluster))
        self.peers: dict[int, Peer] = {}
        for rank in range(len(cluster.members)):
            if rank != cluster.rank:
                self.peers[rank] = Peer(connect, rank)
                lib.monarch_engine_peer(engine.c, rank, self.peers[rank].c)
        # Each node begins with the peers that follow its own rank. Otherwise all nodes of a large
        # cluster would connect links to the same few nodes.
        self._early_links = EarlyLinks(
            [peer for rank, peer in self.peers.items() if rank > cluster.rank]
            + [peer for rank, peer in self.peers.items() if rank < cluster.rank]
        )
        self.policy = NodePolicy(cluster.rank, shares=True)
        # If this node has no room for a file that it owns, it passes the file on: another node
        # becomes the owner.
        # `_has_passed_on` : for each entry, whether this node has passed the file on.
        # `passed_on`, `taken_over` : how many files this node has passed on to other nodes, and has
        #     taken over from them.
        self._has_passed_on = np.zeros(0, dtype=bool)
        self.passed_on = self.taken_over = 0
        self._tell(NO_IDS)
        self.is_decided = False  # whether the files in the catalog have been assigned to owners
        # Whether a plan's files are still being assigned to nodes. After the assignment, `follow`
        # is called.
        self.awaits_plan = False

    @property
    def is_ready(self) -> bool:
        """Whether this node has computed which node keeps which file. Until then, it fills no
        file."""
        return self.is_decided and not self.awaits_plan

    @property
    def may_wait(self) -> bool:
        """Whether readers, here and on other nodes, wait until `is_ready` is True. They wait only
        in the first START_LIMIT_S after the daemon's start."""
        return not self.is_ready and self._clock() - self._began < START_LIMIT_S

    @property
    def _patience(self) -> int:
        """Which requests of other nodes wait until this node is ready (`is_ready`). Another node
        may be ready earlier, and may request files from this node. If its requests did not wait, it
        would read the files from the source itself."""
        if self.is_ready:
            return int(lib.MONARCH_NOBODY_WAITS)
        if self.may_wait:
            return int(lib.MONARCH_EVERYBODY_WAITS)
        is_placing = self.is_decided and self.awaits_plan
        if is_placing or self._clock() - self._began < SCAN_LIMIT_S:
            return int(lib.MONARCH_WHO_HAS_TIME_WAITS)
        return int(lib.MONARCH_NOBODY_WAITS)

    def step(self, *, scanned: bool) -> None:
        """Runs one iteration: decides which nodes keep the files that are new in the catalog.

        scanned : whether the catalog contains all files of the sources by now
        """
        self.replicas.follow_catalog()
        count = len(self.shared.catalog)
        if scanned and not self.is_decided:
            self._decide_all(count)
            self.is_decided = True
        elif self.is_decided and count > self.policy.shared:
            self._decide_late(count)
        self.replicas.be_patient(self._patience)

    def follow(self, ids: Ids, tier: Int32s, files: int, holders: Holders) -> None:
        """Assigns these files to nodes and tiers as a plan requires (see `NodePolicy.follow`)."""
        self.policy.follow(ids, tier, files, holders)
        self._tell(ids)

    def give_up(self, ids: Ids) -> None:
        """Records that this node no longer keeps these files. Other nodes own them."""
        self.policy.give_up(ids)
        self._tell(ids)

    def pass_on(self, ids: Ids) -> None:
        """Makes other nodes the owners of files for which this node has no room. Ignores files that
        this node does not own. The hash of a file's path determines a sequence of the nodes
        (`rendezvous.next_nodes`). The next node after this one in the sequence becomes the owner.
        If this node is the last one, it stays the owner. Peers that request the file from this node
        are redirected to the new owner."""
        own = ids[self.policy.owns(ids)]
        keys = self.shared.catalog.entries["hash"][own]
        weights = rooms_of(self.cluster).astype(np.float64)
        if not len(own) or not weights[self.cluster.rank]:
            return
        heirs = next_nodes(keys, weights, self.cluster.rank)
        own, heirs = own[heirs != NOBODY], heirs[heirs != NOBODY]
        self._has_passed_on[own] = True
        self.policy.give_up(own)
        self.move(own, heirs)
        if not self.passed_on and len(own):
            log.warning(
                "the tiers of this node have no room for files that this node should keep for all"
                " nodes, so other nodes keep them; free space on this node's tiers, or lower the"
                " tiers' quotas"
            )
        self.passed_on += len(own)

    def adopt(self, ids: Ids) -> None:
        """Makes this node the owner of these files, because their earlier owners have no room for
        them (see `pass_on`)."""
        new = ids[~self.policy.owns(ids)]
        self.policy.adopt(ids)
        self._has_passed_on[new] = False
        self._tell(new)
        self.taken_over += len(new)

    def move(self, ids: Ids, nodes: Int32s) -> None:
        """Records that the node nodes[i] owns the file ids[i] from now on."""
        if not len(ids):
            return
        self.policy.move(ids, nodes)
        self._tell(ids)

    def asked(self, ids: Ids) -> Int32s:
        """Returns an array (n, MONARCH_ASKED): for each file, which nodes its fill asks, one after
        another (see `NodePolicy.route`)."""
        return self.policy.route(ids, self._engine.queues(len(self.cluster.members)))

    def _decide_all(self, count: int) -> None:
        """Determines the owners of all files in the catalog. The hash of a file's path determines a
        sequence of the nodes, and the first node in it that has room owns the file. The result
        depends only on the catalog and the quotas, so it is the same on every node."""
        entries = self.shared.catalog.entries[:count]
        words = entries["word"]
        left_out = (word.state(words) == State.BYPASS) & np.isin(
            word.reason(words), (Reason.EXCLUDED, Reason.UNSUPPORTED)
        )
        files = np.flatnonzero((entries["kind"] == Kind.FILE) & ~left_out)
        hashes, sizes = entries["hash"][files], UNIT.rounded(entries["size"][files])
        quotas, rank = rooms_of(self.cluster), self.cluster.rank
        owner = np.full(count, NOBODY, dtype=np.int32)
        owner[files] = owners(hashes, sizes, quotas)
        keeps = owner == rank
        keeps[files] |= second_copies(hashes, sizes, owner[files], rank, int(quotas[rank]))
        self._share(owner, keeps)
        log.info(
            "node %d of %d keeps %d of %d files, and owns %d of the files that it keeps",
            self.cluster.rank,
            len(self.cluster.members),
            int(keeps.sum()),
            len(files),
            int((owner == self.cluster.rank).sum()),
        )

    def _decide_late(self, count: int) -> None:
        """Determines the owners of the files that were found after `_decide_all`. Two nodes may
        find these files in different sequences. So the room that is left must not affect the
        result. The result depends only on the hashes of the files' paths and on the quotas."""
        hashes = self.shared.catalog.entries["hash"][self.policy.shared : count]
        owner = first_nodes(hashes, rooms_of(self.cluster).astype(np.float64))
        self._share(owner, owner == self.cluster.rank)

    def _share(self, owner: Int32s, keeps: Bools) -> None:
        first = self.policy.shared
        self.policy.share(owner, keeps)
        passed_on = np.zeros(len(owner), dtype=bool)
        self._has_passed_on = np.concatenate([self._has_passed_on, passed_on])
        self._tell(np.arange(first, self.policy.shared, dtype=np.uint64))

    def _tell(self, ids: Ids) -> None:
        """Informs the peer server and the engine about the present assignment of these files. The
        peer server must know whether this node owns a file, or to which node it has passed the file
        on. The engine must know which nodes keep a file, for the fills that it orders on its
        own."""
        owner = self.policy.owners(ids)
        moved_to = np.where(self._has_passed_on[ids], owner, NOBODY)
        self.replicas.keep(ids, owner == self.cluster.rank, moved_to)
        self._engine.set_homes(ids, self.policy.others(ids), self.policy.kept[ids])

    def status(self) -> dict[str, Any]:
        """Returns the status fields about the nodes. The schema is in docs/status.md."""
        members = []
        for rank, member in enumerate(self.cluster.members):
            said: dict[str, Any] = {"rank": rank, "name": member.name}
            said["address"] = f"{member.host}:{member.port}"
            if peer := self.peers.get(rank):
                said["usable"] = peer.is_usable
                said["last_failure"] = peer.last_failure.name.lower()
            members.append(said)
        counts = self.replicas.counts()
        return {
            "rank": self.cluster.rank,
            "own_files": self.policy.own_files,
            "kept_files": int(self.policy.kept.sum()),
            "passed_on_files": self.passed_on,
            "taken_over_files": self.taken_over,
            "served_requests": counts["requests"],
            "served_bytes": counts["bytes"],
            "members": members,
        }

    def close(self) -> None:
        """Stops serving peers, and stops connecting early links. The engine may still run after
        this call, and its fills may still ask peers."""
        self._early_links.close()
        self.replicas.close()

    def free(self) -> None:
        """Frees the connections to peers, and the data for serving them. Call it once the engine
        has stopped."""
        for peer in self.peers.values():
            peer.close()
        self.replicas.free()
