"""The copy engine as Python drives it: orders and results in bulk, as numpy arrays."""

import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py import word
from monarch_py.daemon.copies.concurrency import Counted, ReadsInFlight
from monarch_py.daemon.copies.idle import IdleCores
from monarch_py.daemon.scan.scanner import Scanner
from monarch_py.native import (
    ENTRY,
    HOME,
    PLACED,
    RESULT,
    ROOM,
    Array,
    Bools,
    Int32s,
    JobKind,
    JobStatus,
    Uints,
    ffi,
    lib,
    not_null,
    pointer,
)
from monarch_py.policies.placement import TierRoom
from monarch_py.storage.memory import available_bytes
from monarch_py.storage.tiers import NO_DESCRIPTOR

log = logging.getLogger("monarch.handovers")

# Results taken at a time.
RESULTS = 1024


def block_sums(result: Any) -> bytes:
    """XXH3-64 of every block of the copy that a result tells of, 8 bytes each, little-endian."""
    if not result["blocks"]:
        return b""
    sums = ffi.cast("void *", int(result["block_sums"]))
    return bytes(ffi.buffer(sums, int(result["blocks"]) * 8))


def is_passing(result: Any) -> bool:
    """Whether an order failed only because the daemon, or the node, had no descriptor left."""
    return result["status"] != JobStatus.DONE and result["error"] in NO_DESCRIPTOR


# How many files are taken at a time that were handed over before the catalog knew them.
UNMET = 512
# No more than this of a tier's room is granted at a time [bytes]: each grant looks anew at what
# memory and disk have left.
GRANT_BYTES = 64 << 20
# Each read in flight has a buffer, which takes memory as copies in a RAM tier do. All buffers
# together take no more than BUFFERS_SHARE of the memory that is left, looked at every MEMORY_LOOK_S
# [bytes, s].
BUFFER_BYTES, BUFFERS_SHARE, MEMORY_LOOK_S = 1 << 20, 1 / 16, 0.25
# At least this many fetches from peers that nobody waits for are in flight; no more than this while
# the sources are read.
LEAST_FETCHES = 2
# Until JUDGED_FILLS fills tell how fast the sources are, SOME_OPENS opens by programs do: the
# sources are fast if the mean is below AT_HAND_S [s], less than a source takes that asks a server.
JUDGED_FILLS, SOME_OPENS, AT_HAND_S = 32, 16, 20e-6
# While programs have all processors and find the source at hand, fills go on for WORKED_S of every
# WORKED_EACH_S [s].
WORKED_S, WORKED_EACH_S = 0.1, 1.0


class Engine:
    """The copy engine. MemoryError when not one thread can be started.

    c : struct monarch_engine *;  width : how many threads read from the sources what nobody waits
    for;  reads_ahead : whether PAGE_IN orders are done. Only every other thread does them, so that
    a tier that hangs never keeps all threads; a single thread does none
    """

    def __init__(self, scanner: Scanner, peer_threads: int) -> None:
        config, shared = scanner.config, scanner.shared
        self._reads = ReadsInFlight(config.min_reads, config.copy_threads)
        # The same for fetches that nobody waits for.
        self._fetches = ReadsInFlight(min(LEAST_FETCHES, peer_threads), peer_threads)
        self._fetch_width = self._fetches.least
        self._memory_width, self._memory_until = 0, 0.0
        self.width = min(self._reads.width, self._affordable_width(time.monotonic()))
        # Where sources are fast: how idle the processors are.
        self._idle: IdleCores | None = None
        self._spare = 1
        self._opened = 0, 0.0  # programs' opens, and their time, at the last look
        self._shares = peer_threads > 0  # other nodes wait for what this one fills
        threads = config.copy_threads, self.width, peer_threads
        engine = lib.monarch_engine_start(
            *threads, config.block_size_bytes, shared.clients, shared.fills
        )
        self.c = not_null(engine, "no thread could be started for the copy engine")
        lib.monarch_engine_width(self.c, self.width, self._fetch_width, self.stands_back)
        lib.monarch_engine_publish(self.c, shared.catalog.writer, shared.control)
        limits = config.source_limits
        lib.monarch_engine_limit(self.c, limits.bytes_per_s or 0, limits.ops_per_s or 0)
        for source in scanner.sources:
            lib.monarch_engine_source(self.c, source.number, source.fd)
        for number, tier in enumerate(scanner.tiers):
            if tier is not None:
                lib.monarch_engine_tier(self.c, number, tier.fd)
        for number in (*config.evicting, len(config.tiers)):
            lib.monarch_engine_stamp(self.c, number, shared.catalog.c.salt)
        self.block_bytes = config.block_size_bytes
        self.reads_ahead = config.copy_threads > 1
        self._shared = shared
        self._handovers: list[socket.socket] = []
        self._buffer = np.zeros(RESULTS, dtype=RESULT)
        self._unmet = np.zeros(UNMET, ENTRY), ffi.new("char[]", UNMET * lib.MONARCH_SCAN_HINT_PATH)
        self._placed = np.zeros(lib.MONARCH_PLACED, dtype=PLACED)

    def pending(self, *, in_use: bool | None = None, from_peers: bool | None = None) -> int:
        """The number of orders that are queued or running, except PAGE_IN.

        in_use : those for files in use, those for others, or both (None);  from_peers : those that
        ask peers, those that do not, or both (None)
        """
        ways = {None: lib.MONARCH_WAYS, False: lib.MONARCH_FROM_SOURCE, True: lib.MONARCH_FROM_PEER}
        uses = (False, True) if in_use is None else (in_use,)
        return sum(lib.monarch_engine_pending(self.c, use, ways[from_peers]) for use in uses)

    @property
    def idle(self) -> bool:
        """Whether nothing is filled; what is read ahead does not count."""
        return not self.pending()

    @property
    def stands_back(self) -> bool:
        """Whether fills stand back: programs that hardly wait for a source need the processors, and
        none is idle."""
        return self._idle is not None and self._spare < self._reads.most

    def flows(self, places: int) -> Uints:
        """(places, 2, MONARCH_LEVELS) bytes and times [ns], as struct monarch_flow has them."""
        counts = np.zeros((places, 2, lib.MONARCH_LEVELS), dtype=np.uint64)
        out = ffi.cast("struct monarch_flow *", pointer(counts))
        lib.monarch_engine_flows(self.c, out, places)
        return counts

    @property
    def bytes_from_peers(self) -> int:
        return int(lib.monarch_engine_count(self.c, lib.MONARCH_PEER_BYTES))

    @property
    def bytes_from_source(self) -> int:
        return int(lib.monarch_engine_count(self.c, lib.MONARCH_BYTES))

    def submit(
        self,
        kind: JobKind,
        ids: Array,
        words: Array,
        *,
        in_use: bool = False,
        sums: Array | None = None,
        peers: Int32s | None = None,
    ) -> None:
        """Gives the engine orders for (n,) entries, done in this order; those for files in use come
        before the others.

        words : (n,) with the tiers and numbers of their copies;  sums : (n,) what a CHECK or
        COMPARE expects;  peers : (n, MONARCH_ASKED) nodes that a FILL asks before the source, in
        this order, -1 for nobody, + MONARCH_HAS_IT for one that has it whole
        """
        whose, n = (self.c, self._shared.catalog.c), len(ids)
        places = pointer(word.tier(words), np.uint32), pointer(word.copy(words), np.uint64)
        expected = pointer(np.zeros(n) if sums is None else sums, np.uint64)
        asked = ffi.NULL if peers is None else pointer(peers, np.int32)
        entries = pointer(ids, np.uint64)
        lib.monarch_engine_submit(*whose, kind, in_use, n, entries, *places, expected, asked)

    def grant(self, rooms: list[TierRoom], first_copy: int, meets: int) -> None:
        """Lets the engine order fills by itself, first fit into `rooms`, of files that somebody
        waits for and of which it has no order. Until `end_grant` nobody else sets words of entries
        that are ABSENT or WANTED, or places anything in these tiers.

        first_copy : number of the first copy; MONARCH_PLACED numbers from it on are the engine's;
        meets : a bit for each source whose files the engine may take into the catalog
        """
        granted = np.zeros(len(rooms), dtype=ROOM)
        for given, room in zip(granted, rooms, strict=True):
            given["bytes"] = min(max(room.free_bytes, 0), GRANT_BYTES)
            given["is_part"] = room.free_bytes > GRANT_BYTES
            given["inodes"] = max(room.free_inodes, 0)
            given["block_bytes"], given["entry_bytes"] = room.block_bytes, room.entry_bytes
        where = pointer(granted)
        lib.monarch_engine_grant(self.c, len(rooms), where, first_copy, meets)

    def end_grant(self) -> Array:
        """Ends the grant. Returns the orders that were made under it, (n,) of dtype PLACED, valid
        until the next call."""
        where = pointer(self._placed)
        return self._placed[: lib.monarch_engine_end_grant(self.c, where)]

    def set_homes(self, ids: Array, asked: Array, keeps: Bools) -> None:
        """Tells the engine, for grants where nodes share, which nodes a fill of each of (n,)
        entries asks, (n, MONARCH_ASKED) or -1, and whether this node keeps the entry. From the
        first call on, the engine leaves files of which nothing was said to Python. MemoryError."""
        homes = np.zeros(len(ids), dtype=HOME)
        homes["asked_first"], homes["asked_then"] = asked.T
        homes["is_kept"] = keeps
        where = pointer(homes)
        if lib.monarch_engine_homes(self.c, len(ids), pointer(ids, np.uint64), where) != 0:
            raise MemoryError("no memory for the table of nodes that fills ask")

    def rest(self, limit_s: float) -> bool:
        """Waits until somebody waits for a file that the grant leaves to Python, for limit_s [s] at
        most. Returns whether somebody has since the last rest."""
        return bool(lib.monarch_engine_rest(self.c, int(limit_s * 1e6)))

    def withdraw(self, ids: Uints) -> int:
        """Takes back the fills of (n,) entries that no thread has begun and no program waits for.
        They are among the results at once, as ABANDONED. Returns how many they are."""
        return int(lib.monarch_engine_withdraw(self.c, len(ids), pointer(ids, np.uint64)))

    def queues(self, peers: int) -> npt.NDArray[np.uint32]:
        """(peers,) how many orders without a result yet ask each of the peers first."""
        lengths = np.zeros(peers, dtype=np.uint32)
        lib.monarch_engine_queues(self.c, pointer(lengths), peers)
        return lengths

    def share(self, shares: npt.NDArray[np.uint32]) -> None:
        """Sets how many turns the readers of each rank have, beside those of the others:
        (MONARCH_RANKS,) by the rank's number in a demand, 0 for a number that is no rank's."""
        lib.monarch_engine_shares(self.c, pointer(shares))

    def drop(self, tier: int, ids: Any, copies: Any, sizes: Any) -> None:
        """Orders to remove (n,) copies of one tier, before all other orders.

        ids, sizes : of the copies' files
        """
        entries, *others = (pointer(a, np.uint64) for a in (ids, copies, sizes))
        places = pointer(np.full(len(ids), tier), np.uint32)
        lib.monarch_engine_drop(self.c, len(ids), entries, places, *others)

    def results(self) -> Iterator[Array]:
        """Batches (n,) of dtype RESULT; each is valid until the next is asked for, and its block
        sums until `settle`."""
        count = RESULTS
        while count == RESULTS:
            where = pointer(self._buffer)
            count = lib.monarch_engine_results(self.c, where, RESULTS)
            if count:
                yield self._buffer[:count]

    def adapt(self) -> None:
        """Adapts the number of reads in flight to what the sources and the peers give."""
        before, opened = self.width, self._shared.source_opens()
        rested, fetched = self.stands_back, self._fetch_width
        files = int(lib.monarch_engine_count(self.c, lib.MONARCH_FILES))
        so_far = Counted(self.bytes_from_source, files, *opened)
        # Reads by threads that wait for peers say nothing of the width.
        pending = self.pending(from_peers=False)
        now_s = time.monotonic()
        wanted = self._reads.step(now_s, so_far, is_full=pending > before)
        if pending:
            spare = self._spare = self._spare_width(now_s, so_far)
            self.width = min(wanted, spare, self._affordable_width(now_s))
        else:
            self._idle = None
        self._fetch_width = self._adapted_fetches(now_s)
        if (self.width, self._fetch_width, self.stands_back) != (before, fetched, rested):
            lib.monarch_engine_width(self.c, self.width, self._fetch_width, self.stands_back)

    def _adapted_fetches(self, now_s: float) -> int:
        """How many fetches that nobody waits for are in flight: as many as bring more than fewer
        would. While a source is read they are few: what other nodes have is near, and what only the
        source has comes first."""
        files = int(lib.monarch_engine_count(self.c, lib.MONARCH_PEER_FILES))
        reads = bool(lib.monarch_engine_reads_sources(self.c))
        is_full = self.pending(from_peers=True) > self._fetches.width and not reads
        width = self._fetches.step(now_s, Counted(self.bytes_from_peers, files), is_full=is_full)
        return self._fetches.least if reads else width

    def _affordable_width(self, now_s: float) -> int:
        """How many reads can be in flight without their buffers taking memory for which the kernel
        would kill the job."""
        if now_s >= self._memory_until:
            affordable = int(available_bytes() * BUFFERS_SHARE) // BUFFER_BYTES
            self._memory_width = max(self._reads.least, affordable)
            self._memory_until = now_s + MEMORY_LOOK_S
        return self._memory_width

    def _are_fast(self, so_far: Counted) -> bool:
        """Whether programs hardly wait for any source."""
        if so_far.files < JUDGED_FILLS and so_far.opens >= SOME_OPENS:
            return so_far.open_s < AT_HAND_S * so_far.opens
        control = self._shared.control
        return bool(control.fast_sources == (1 << control.sources) - 1)

    def _spare_width(self, now_s: float, so_far: Counted) -> int:
        """How many threads may fill what nobody waits for. Programs that hardly wait for any source
        need the processors: such files are filled where a processor is idle, and else by one
        thread, which sees when a source is no longer fast. While programs' own opens show that, the
        thread works only part of the time."""
        if not self._are_fast(so_far):
            self._idle = None
            return self._reads.most
        if self._idle is None:
            self._idle = IdleCores()
        if self._idle.has_one(now_s):
            return self._reads.most
        opens, open_s = so_far.opens - self._opened[0], so_far.open_s - self._opened[1]
        self._opened = so_far.opens, so_far.open_s
        is_seen = opens >= SOME_OPENS and open_s < AT_HAND_S * opens
        return 0 if is_seen and not self._shares and now_s % WORKED_EACH_S >= WORKED_S else 1

    def settle(self) -> None:
        """Tells the engine that the catalog says by now what the results so far have told."""
        lib.monarch_engine_settle(self.c)

    def await_results(self, *, is_awaited: bool) -> None:
        """Tells the engine whether something waits for results of fills that went well, so that it
        rings the doorbell for fewer of them."""
        lib.monarch_engine_await(self.c, is_awaited)

    def take_handovers(self) -> bool:
        """From here on descriptors of files that programs have read are taken from the session's
        sockets for handovers. False where these cannot be made, or no thread can be started."""
        session = self._shared.session
        try:
            for path in session.handovers:
                self._handovers.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                session.bind(self._handovers[-1], path)
        except OSError as error:
            log.warning("programs cannot hand over descriptors: %s", error)
            return False
        numbers = [each.fileno() for each in self._handovers]
        return int(lib.monarch_engine_handovers(self.c, numbers, len(numbers))) == 0

    def unmet(self, source: int) -> tuple[Array, Any]:
        """Files of a source that were handed over and that the catalog does not know: (n,) entries
        of dtype ENTRY, whose paths lie in a C array. Their descriptors wait for orders for 50
        ms."""
        entries, pool = self._unmet
        to = pointer(entries)
        n = lib.monarch_engine_unmet(self.c, source, to, len(entries), pool)
        return entries[:n].copy(), pool

    def stop(self, limit_s: float) -> int:
        """Abandons what runs and ends the threads. Returns how many of them have not ended within
        limit_s, because a file system does not answer: what they use has to stay as it is."""
        left = int(lib.monarch_engine_stop(self.c, max(0, int(limit_s * 1000))))
        for each in self._handovers if not left else ():
            each.close()
        return left
