"""The Python side of the copy engine: passes orders and fetches results, as numpy arrays."""

import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import (
    ENTRY,
    HOME,
    PLACED,
    RESULT,
    ROOM,
    Array,
    Bools,
    Int32s,
    Uints,
    pointer,
)
from monarch_py.daemon.copies.concurrency import Counted, ReadsInFlight
from monarch_py.daemon.copies.idle import IdleCores
from monarch_py.daemon.copies.packs import Packs
from monarch_py.daemon.scan.scanner import Scanner
from monarch_py.daemon.scan.source import Source
from monarch_py.ipc import word
from monarch_py.native import JobKind, JobStatus, ffi, lib, not_null
from monarch_py.policies.placement import TierRoom
from monarch_py.storage.tiers import NO_DESCRIPTOR

log = logging.getLogger("monarch.handovers")

# At most this many results are fetched from the engine at a time.
RESULTS = 1024


def block_sums(result: Any) -> bytes:
    """Returns the checksums of all blocks of a result's copy. Each checksum is an XXH3-64 in 8
    bytes, little-endian."""
    if not result["blocks"]:
        return b""
    sums = ffi.cast("void *", int(result["block_sums"]))
    return bytes(ffi.buffer(sums, int(result["blocks"]) * 8))


def is_passing(result: Any) -> bool:
    """Whether an order has failed only because the daemon, or the whole node, had no free file
    descriptor. Such an order can be repeated later."""
    return result["status"] != JobStatus.DONE and result["error"] in NO_DESCRIPTOR


# A program may hand over a file's descriptor before the file is in the catalog. At most this many
# such files are fetched from the engine at a time.
UNMET = 512
# A grant is room that the engine may use for fills that it orders on its own. It is at most this
# much of a tier's room [bytes]. Before each grant, the free memory and disk space are checked
# again.
GRANT_BYTES = 64 << 20
# Each concurrent read has a buffer of BUFFER_BYTES [bytes]. The buffers and the copies in a RAM
# tier compete for memory. So all buffers together take at most the share BUFFERS_SHARE of the free
# memory.
BUFFER_BYTES, BUFFERS_SHARE = 1 << 20, 1 / 16
# A fetch from a peer is a background fetch if no reader waits for it. While the sources are being
# read, at most this many background fetches run at a time. At other times this is the lowest value
# of a limit that adapts to the throughput.
LEAST_FETCHES = 2
# Sources are called fast if programs hardly wait for them. Usually the durations of fills show
# this. Until JUDGED_FILLS fills have ended, the opens of files by programs show it, if there are at
# least SOME_OPENS. Their mean duration must then be less than AT_HAND_S [s]. (If the file system
# must ask a server, an open takes longer.)
JUDGED_FILLS, SOME_OPENS, AT_HAND_S = 32, 16, 20e-6
# While programs use all processors, and programs' opens show that the sources are fast, background
# fills run only for WORKED_S out of every WORKED_EACH_S [s].
WORKED_S, WORKED_EACH_S = 0.1, 1.0


class Engine:
    """The copy engine. The constructor raises MemoryError if no thread can be started.

    c : struct monarch_engine *
    width : how many threads do background reads of the sources (reads that no reader waits for)
    reads_ahead : whether the engine accepts PAGE_IN orders, which read a copy into the page cache.
        A tier that hangs must not block all threads, so only every second thread executes such
        orders. An engine with one thread therefore accepts none
    packs : the packs from which the threads read small files
    """

    def __init__(self, scanner: Scanner, peer_threads: int) -> None:
        config, shared = scanner.config, scanner.shared
        self._reads = ReadsInFlight(config.min_reads, config.copy_threads)
        # The limit on concurrent background fetches from peers is adapted separately from `width`.
        self._fetches = ReadsInFlight(min(LEAST_FETCHES, peer_threads), peer_threads)
        self._fetch_width = self._fetches.least
        self._memory_room = scanner.memory_room
        self.width = min(self._reads.width, self._affordable_width())
        # Measures how many processors are idle. None while the sources are not fast, or while no
        # order reads a source.
        self._idle: IdleCores | None = None
        self._spare = 1
        # How often programs had opened files at the sources by the last check, and the total
        # duration of these opens [s].
        self._opened = 0, 0.0
        self._shares = peer_threads > 0  # whether other nodes may wait for this node's fills
        threads = config.copy_threads, self.width, peer_threads
        engine = lib.monarch_engine_start(
            *threads, config.block_size_bytes, shared.clients, shared.fills
        )
        self.c = not_null(engine, "no thread could be started for the copy engine")
        lib.monarch_engine_width(self.c, self.width, self._fetch_width, self.stands_back)
        lib.monarch_engine_publish(self.c, shared.catalog.writer, shared.control)
        limits = config.source_limits
        lib.monarch_engine_limit(self.c, limits.bytes_per_s or 0, limits.ops_per_s or 0)
        lib.monarch_engine_direct_io(self.c, config.direct_io)
        self.packs = Packs(self.c)
        for source in scanner.sources:
            self.add_source(source)
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

    def add_source(self, source: Source) -> None:
        """Registers a source with the engine, before the first order for one of its files."""
        lib.monarch_engine_source(self.c, source.number, source.fd)
        self.packs.add(source.number, source.config)

    def pending(self, *, in_use: bool | None = None, from_peers: bool | None = None) -> int:
        """Returns the number of orders that are queued or running, or whose results were not
        fetched yet. PAGE_IN orders are not counted.

        in_use : True: count only orders for files in use; False: only those for other files; None:
            both
        from_peers : True: count only orders that ask peers; False: only those that do not; None:
            both
        """
        origins = {
            None: lib.MONARCH_ORIGINS,
            False: lib.MONARCH_FROM_SOURCE,
            True: lib.MONARCH_FROM_PEER,
        }
        uses = (False, True) if in_use is None else (in_use,)
        return sum(lib.monarch_engine_pending(self.c, use, origins[from_peers]) for use in uses)

    @property
    def idle(self) -> bool:
        """Whether there is no order that `pending` counts."""
        return not self.pending()

    @property
    def stands_back(self) -> bool:
        """Whether the engine runs fewer background fills, to leave the processors to programs. It
        does so if no processor is idle, and the sources are so fast that programs hardly wait for
        them."""
        return self._idle is not None and self._spare < self._reads.most

    def flows(self, places: int) -> Uints:
        """Returns how many bytes were read, and how long the reads took [ns], as an array (places,
        2, MONARCH_LEVELS); see struct monarch_flow. A place is one node, or all sources together. A
        level is a range of the number of concurrent reads."""
        counts = np.zeros((places, 2, lib.MONARCH_LEVELS), dtype=np.uint64)
        out = ffi.cast("struct monarch_flow *", pointer(counts))
        lib.monarch_engine_flows(self.c, out, places)
        return counts

    @property
    def bytes_from_peers(self) -> int:
        return int(lib.monarch_engine_count(self.c, lib.MONARCH_PEER_BYTES))

    @property
    def files_from_source(self) -> int:
        return int(lib.monarch_engine_count(self.c, lib.MONARCH_FILES))

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
        """Passes orders for files to the engine. The engine first runs all orders for files in use,
        then all others. Within both groups, it keeps the sequence of `ids`.

        ids : (n,) the files' catalog entries
        words : (n,) words (as in the catalog) that contain the tiers and numbers of the copies
        sums : (n,) the checksums that a CHECK or COMPARE expects
        peers : (n, MONARCH_ASKED) the nodes that a FILL asks in turn before it reads the source; -1
            for none. MONARCH_HAS_IT is added to a node's number if the node has a complete copy
        """
        whose, n = (self.c, self._shared.catalog.c), len(ids)
        places = pointer(word.tier(words), np.uint32), pointer(word.copy(words), np.uint64)
        expected = pointer(np.zeros(n) if sums is None else sums, np.uint64)
        asked = ffi.NULL if peers is None else pointer(peers, np.int32)
        entries = pointer(ids, np.uint64)
        lib.monarch_engine_submit(*whose, kind, in_use, n, entries, *places, expected, asked)

    def grant(
        self, rooms: list[TierRoom], first_copy: int, meets: int, *, staged_bytes: int = 0
    ) -> None:
        """Allows the engine to order fills on its own, for files that a reader waits for and whose
        fill is not ordered yet. The engine places each file in the first tier of `rooms` that can
        hold it. Until `end_grant`, the rest of the daemon must place nothing in these tiers. It
        must not set the word of an ABSENT or WANTED entry either.

        rooms : the room that the engine may use in each tier
        staged_bytes : if positive, the last of `rooms` is the room of the staging area. The engine
            uses it for files that this node does not keep and that have at most this size [bytes]
        first_copy : the number of the first copy that the engine makes; the engine may use this
            number and the next MONARCH_PLACED - 1 numbers
        meets : a bit mask of the sources whose unknown files the engine may add to the catalog
        """
        granted = np.zeros(len(rooms), dtype=ROOM)
        for given, room in zip(granted, rooms, strict=True):
            given["bytes"] = min(max(room.free_bytes, 0), GRANT_BYTES)
            given["is_part"] = room.free_bytes > GRANT_BYTES
            given["inodes"] = max(room.free_inodes, 0)
            given["block_bytes"], given["entry_bytes"] = room.block_bytes, room.entry_bytes
        if staged_bytes > 0:
            granted[-1]["is_staging"], granted[-1]["largest"] = 1, staged_bytes
        where = pointer(granted)
        lib.monarch_engine_grant(self.c, len(rooms), where, first_copy, meets)

    def end_grant(self) -> Array:
        """Ends the permission of `grant`. Returns the orders that the engine has made meanwhile, as
        an array (n,) of dtype PLACED. The array is valid until the next call."""
        where = pointer(self._placed)
        return self._placed[: lib.monarch_engine_end_grant(self.c, where)]

    def set_homes(self, ids: Array, asked: Array, keeps: Bools) -> None:
        """Tells the engine which nodes keep these files. In a cluster, the engine needs this for
        the fills that it orders on its own. After the first call, it orders fills only for files
        that were in one of the calls. Python must order the fills of all others. Raises MemoryError
        if there is no memory.

        ids : (n,) the files' catalog entries
        asked : (n, MONARCH_ASKED) the nodes that a fill asks, -1 for none
        keeps : (n,) whether this node keeps the file in its tiers; if not, the engine fills the
            file into the staging area
        """
        homes = np.zeros(len(ids), dtype=HOME)
        homes["asked_first"], homes["asked_then"] = asked.T
        homes["storage"] = np.where(keeps, lib.MONARCH_IN_TIERS, lib.MONARCH_IN_STAGING)
        where = pointer(homes)
        if lib.monarch_engine_homes(self.c, len(ids), pointer(ids, np.uint64), where) != 0:
            raise MemoryError("no memory for the table that lists which nodes keep each file")

    def rest(self, limit_s: float) -> bool:
        """Sleeps for at most limit_s [s]. The sleep ends early if the engine has work that only
        Python can do. There are three cases. A reader waits for a file whose fill only Python may
        order. An order has ended, which may make room for such a file. The engine could not publish
        the copy of a fill that has ended. Returns whether there was such work since the last
        call."""
        return bool(lib.monarch_engine_rest(self.c, int(limit_s * 1e6)))

    def withdraw(self, ids: Uints) -> int:
        """Cancels the fills of these entries. A fill goes on if a thread has begun it, if the file
        is in use, or if a program has handed over a descriptor for it. Cancelled fills are among
        the results at once, with status ABANDONED. Returns how many were cancelled."""
        return int(lib.monarch_engine_withdraw(self.c, len(ids), pointer(ids, np.uint64)))

    def queues(self, peers: int) -> npt.NDArray[np.uint32]:
        """Returns an array (peers,): for each peer, how many unfinished orders ask this peer
        first."""
        lengths = np.zeros(peers, dtype=np.uint32)
        lib.monarch_engine_queues(self.c, pointer(lengths), peers)
        return lengths

    def share(self, shares: npt.NDArray[np.uint32]) -> None:
        """Sets the weights of the ranks, which are the training processes of this node. A demand is
        a part of a file that a reader waits for. The engine divides its time among the ranks'
        demands in proportion to the weights.

        shares : (MONARCH_RANKS,) the weight for each rank number that a demand may contain; 0 for a
            number without a rank
        """
        lib.monarch_engine_shares(self.c, pointer(shares))

    def drop(self, tier: int, ids: Any, copies: Any, sizes: Any) -> None:
        """Orders the removal of copies in one tier. Removals run before all other orders.

        ids : (n,) the catalog entries of the copied files;  copies : (n,) the numbers of the copies
        sizes : (n,) the files' sizes [bytes]
        """
        entries, *others = (pointer(a, np.uint64) for a in (ids, copies, sizes))
        places = pointer(np.full(len(ids), tier), np.uint32)
        lib.monarch_engine_drop(self.c, len(ids), entries, places, *others)

    def results(self) -> Iterator[Array]:
        """Yields the results in batches, arrays (n,) of dtype RESULT. A batch is valid until the
        next one is requested. The block sums of its results are valid until `settle`."""
        count = RESULTS
        while count == RESULTS:
            where = pointer(self._buffer)
            count = lib.monarch_engine_results(self.c, where, RESULTS)
            if count:
                yield self._buffer[:count]

    def adapt(self) -> None:
        """Adapts the number of concurrent reads to the sources' and the peers' throughput."""
        before, opened = self.width, self._shared.source_opens()
        rested, fetched = self.stands_back, self._fetch_width
        so_far = Counted(self.bytes_from_source, self.files_from_source, *opened)
        # Orders that ask peers are not counted, because the width limits only reads of the sources.
        pending = self.pending(from_peers=False)
        now_s = time.monotonic()
        wanted = self._reads.step(now_s, so_far, is_full=pending > before)
        if pending:
            spare = self._spare = self._spare_width(now_s, so_far)
            self.width = min(wanted, spare, self._affordable_width())
        else:
            self._idle = None
        self._fetch_width = self._adapted_fetches(now_s)
        if (self.width, self._fetch_width, self.stands_back) != (before, fetched, rested):
            lib.monarch_engine_width(self.c, self.width, self._fetch_width, self.stands_back)

    def _adapted_fetches(self, now_s: float) -> int:
        """Returns the limit on concurrent background fetches from peers: the smallest limit with
        nearly the highest throughput. While a source is being read, the limit is LEAST_FETCHES.
        Reads of the source take precedence: a file that another node has copied can be fetched
        quickly later."""
        files = int(lib.monarch_engine_count(self.c, lib.MONARCH_PEER_FILES))
        reads = bool(lib.monarch_engine_reads_sources(self.c))
        is_full = self.pending(from_peers=True) > self._fetches.width and not reads
        width = self._fetches.step(now_s, Counted(self.bytes_from_peers, files), is_full=is_full)
        return self._fetches.least if reads else width

    def _affordable_width(self) -> int:
        """Returns how many concurrent reads the free memory allows. The buffers of more reads might
        take so much memory that the kernel kills the job."""
        affordable = int(self._memory_room.free_bytes() * BUFFERS_SHARE) // BUFFER_BYTES
        return max(self._reads.least, affordable)

    def _are_fast(self, so_far: Counted) -> bool:
        """Whether the sources are fast, so that programs hardly wait for them."""
        if so_far.files < JUDGED_FILLS and so_far.opens >= SOME_OPENS:
            return so_far.open_s < AT_HAND_S * so_far.opens
        control = self._shared.control
        return bool(control.fast_sources == (1 << control.sources) - 1)

    def _spare_width(self, now_s: float, so_far: Counted) -> int:
        """Returns how many threads may do background fills.

        Usually, all threads may. If the sources are fast and no processor is idle, only one thread
        may, because programs need the processors more than fills do. This thread shows whether the
        sources stay fast. Under two more conditions, even this thread pauses most of the time.
        First, the latest opens of files by programs also show that the sources are fast. Second, no
        other node can be waiting for this node's fills.
        """
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
        """Tells the engine that the catalog now reflects all results that `results` has yielded so
        far."""
        lib.monarch_engine_settle(self.c)

    def await_results(self, *, is_awaited: bool) -> None:
        """Tells the engine whether any part of the daemon waits for the results of successful
        fills. If none does, the engine wakes the daemon's loop less often."""
        lib.monarch_engine_await(self.c, is_awaited)

    def take_handovers(self) -> bool:
        """Starts to receive descriptors from the session's handover sockets. A program that has
        read a file sends the file's descriptor there. So the daemon can copy the file without
        opening it. Returns False if the sockets cannot be made, or no thread can be started."""
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

    def unmet(self, source: int, renames: int) -> tuple[Array, Any]:
        """Returns an array (n,) of new catalog entries, of dtype ENTRY. They describe files of one
        source that programs have handed over before the catalog contained them. Also returns the C
        array that contains the files' paths. The engine keeps the files' descriptors for at least
        50 ms (csrc/handover/kept.c). Order their fills within that time.

        renames : how many directories programs have renamed so far. Files that were handed over
            before the last of these renames are left out, because their paths may be wrong
        """
        entries, pool = self._unmet
        to = pointer(entries)
        n = lib.monarch_engine_unmet(self.c, source, renames, to, len(entries), pool)
        return entries[:n].copy(), pool

    def stop(self, limit_s: float) -> int:
        """Abandons all orders and ends the threads. Returns how many threads did not end within
        limit_s [s], because a file system does not answer. Do not close or free the descriptors and
        memory that these threads use."""
        left = int(lib.monarch_engine_stop(self.c, max(0, int(limit_s * 1000))))
        for each in self._handovers if not left else ():
            each.close()
        return left
