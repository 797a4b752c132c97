"""Serves this node's copies, complete or being filled, to peers (csrc/serving/holdings.c)."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from monarch_py.arrays import Bools, Ids, Int32s, Uints, pointer
from monarch_py.daemon.copies.engine import Engine
from monarch_py.daemon.segments import Shared
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.native import ffi, lib, not_null
from monarch_py.peers.handshake import Party
from monarch_py.peers.membership import Cluster
from monarch_py.peers.server import PeerServer
from monarch_py.storage.tiers import Tier


@dataclass(frozen=True)
class Membership:
    """What a daemon needs to serve the other nodes.

    listener : the socket at which the other nodes reach this daemon
    status : a function that returns this node's status; called when another node asks for it
    """

    cluster: Cluster
    listener: socket.socket
    status: Callable[[], bytes]


class ReplicaServer(PeerServer):
    """Sends copies to peers, until `close` is called. The catalog shows which copies this node has.
    After the engine has stopped, `free` must be called.

    Raises MemoryError if memory cannot be allocated, or no thread can be started.
    """

    def __init__(
        self, membership: Membership, shared: Shared, engine: Engine, tiers: list[Tier | None]
    ) -> None:
        self._shared, self._engine = shared, engine
        party = Party.of(membership.cluster)
        holdings = lib.monarch_holdings_new(
            shared.clients, shared.fills, int(shared.control.block_bytes), party.content_key
        )
        self._c = not_null(holdings, "no memory to serve copies to peers")
        for number in range(int(shared.control.sources)):
            device = int(shared.control.source[number].dev)
            lib.monarch_holdings_source(self._c, number, device)
        for number, tier in enumerate(tiers):
            if tier is not None:
                lib.monarch_holdings_tier(self._c, number, tier.fd)
        # The C code reads the catalog's shared memory. This reference keeps that memory mapped.
        self._catalog: CatalogReader | None = None
        self.follow_catalog()
        lib.monarch_engine_holdings(engine.c, self._c)
        super().__init__(party, membership.listener, status=membership.status)

    def follow_catalog(self) -> None:
        """If the catalog has moved to a new segment of shared memory, makes the server use that
        segment."""
        if self._catalog is None or self._catalog.segment is not self._shared.catalog.segment:
            new = self._shared.catalog.reader()
            lib.monarch_holdings_catalog(self._c, new.c)
            self._catalog = new

    def keep(self, ids: Ids, is_kept: Bools, moved_to: Int32s) -> None:
        """Sets which of these files this node keeps. If a peer requests a file that this node
        keeps, this node fills it. If a peer requests a file that this node has passed on, the peer
        is redirected to the new owner.

        ids : (n,) the files' catalog entries;  is_kept : (n,) whether this node keeps each file
        moved_to : (n,) the node to which each file was passed on, NOBODY for none
        """
        elsewhere = np.where(
            moved_to >= 0, lib.MONARCH_MOVED_TO + moved_to, lib.MONARCH_KEPT_ELSEWHERE
        )
        said = np.where(is_kept, lib.MONARCH_KEPT_HERE, elsewhere)
        entries, kept = pointer(ids, np.uint64), pointer(said, np.uint16)
        lib.monarch_holdings_keep(self._c, len(ids), entries, kept)

    def moved_here(self) -> Ids:
        """Returns an array (n,) of the files that this node has begun to own since the last call.
        The earlier owner of such a file has passed it on, for example for lack of room. This node
        learns of it when a peer that regards it as the owner requests the file."""
        ids = np.zeros(lib.MONARCH_MOVED, dtype=np.uint64)
        count = lib.monarch_holdings_moved(self._c, pointer(ids))
        return ids[:count]

    def be_patient(self, patience: int) -> None:
        """Sets which requests of peers wait while this node computes which files it keeps.

        patience : MONARCH_EVERYBODY_WAITS: all requests. MONARCH_WHO_HAS_TIME_WAITS: only requests
            for which no reader waits. MONARCH_NOBODY_WAITS: none; to be set once the computation is
            complete, or once peers have waited long enough
        """
        lib.monarch_holdings_patience(self._c, patience)

    def answer(self) -> None:
        """Answers the peers that wait for a file of which this node will make no copy."""
        lib.monarch_holdings_answer(self._c)

    def rotten(self) -> tuple[Ids, Uints]:
        """Returns the damaged copies that peers have requested since the last call, as two arrays
        (n,): the files' catalog entries, and the words of these entries (ipc/word.py) at the
        request."""
        ids, words = np.zeros((2, lib.MONARCH_ROTTEN), dtype=np.uint64)
        count = lib.monarch_holdings_rotten(self._c, pointer(ids), pointer(words))
        return ids[:count], words[:count]

    def _begin(self, bounds: Any) -> Any:
        return lib.monarch_holdings_serve(self._c, bounds)

    def _end(self, server: Any) -> None:
        lib.monarch_engine_holdings(self._engine.c, ffi.NULL)
        if server != ffi.NULL:
            lib.monarch_holdings_stop(self._c, server)
        lib.monarch_holdings_catalog(self._c, ffi.NULL)
        self._catalog = None

    def free(self) -> None:
        """Frees the data for serving peers. Call it when no thread of the engine can report a fill
        any more."""
        lib.monarch_holdings_free(self._c)
        self._c = ffi.NULL
