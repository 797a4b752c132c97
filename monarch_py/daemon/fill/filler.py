"""Orders the fills of requested files from the copy engine, and processes the engine's results."""

import logging
import math
import os
import time
from collections.abc import Callable

import numpy as np

from monarch_py.arrays import Array, Bools, Floats, Ids
from monarch_py.daemon.copies.copies import Copies
from monarch_py.daemon.copies.engine import Engine
from monarch_py.daemon.copies.outdated import Outdated
from monarch_py.daemon.copies.readahead import ReadAhead
from monarch_py.daemon.copies.staging import Staging
from monarch_py.daemon.fill.checks import Checks
from monarch_py.daemon.fill.failures import FailedFills
from monarch_py.daemon.fill.requests import FillRequests
from monarch_py.daemon.nodes.nodes import Membership, Nodes
from monarch_py.daemon.nodes.remote_copies import PEER_THREADS, RouteChooser
from monarch_py.daemon.scan.scanner import Scanner
from monarch_py.ipc import word
from monarch_py.ipc.catalog import distinct
from monarch_py.native import JobKind, JobStatus, Reason, State, lib
from monarch_py.policies.node import NOBODY, NodePolicy
from monarch_py.policies.placement import NOWHERE, TierRoom
from monarch_py.storage.tiers import Tier

log = logging.getLogger("monarch.filler")

# The engine has at most this many orders of each kind at a time. There are three kinds: fills from
# sources for files in use, fills from peers for files in use, and orders for other files, such as
# fills and checks. This number is enough to keep the engine's threads from waiting for Python. Each
# order takes about 500 bytes.
ORDERS = 2048
# The limit on the total size of the background fills that were ordered and have not ended [bytes].
# It is low, because each of them reserves room from its order on.
AHEAD_BYTES = 256 << 20
# This many background fills may be ordered even if their files exceed AHEAD_BYTES. A thread that
# has ended one fill can then begin another without waiting for Python.
AHEAD_FILES = 4
NO_TIER_ROOM = TierRoom(0, 0, 512)
# If a node's tiers have had no room for this long [s], files that the node should keep for all
# nodes are assigned to other nodes.
LACKS_S = 1.0
# If no fill was ordered for this long [s], the engine is no longer allowed to order fills itself.
GRANTED_S = 2.0


def _is_made(results: Array) -> Bools:
    """Returns an array (n,): for each result, whether it belongs to a successful fill or check."""
    makes = (results["kind"] == JobKind.FILL) | (results["kind"] == JobKind.CHECK)
    return np.asarray(makes & (results["status"] == JobStatus.DONE))


class Filler:
    """Orders fills, and processes their results. Runs in the daemon's loop and never blocks."""

    def __init__(self, scanner: Scanner, membership: Membership | None = None) -> None:
        """Creates the engine. `scanner.tiers` must list the configured tiers, followed by the tier
        of the staging area, or by None without a staging area."""
        config = scanner.config
        self.shared, self.scanner = scanner.shared, scanner
        self.tiers, self.keepers = scanner.tiers, scanner.keepers
        peer_threads = PEER_THREADS if membership else 0
        self.engine = Engine(scanner, peer_threads)
        self.nodes = Nodes(membership, self.shared, self.engine, self.tiers) if membership else None
        # The size of the largest file whose descriptor programs hand over [bytes]. Unless the
        # configuration requests a fill for every file that a program opens, the size is 0, and
        # programs hand over nothing.
        is_wanted = config.prefetch != "none" and not config.fill_after and config.handover_bytes
        takes = is_wanted and self.engine.take_handovers()
        self.shared.control.handed_bytes = config.handover_bytes if takes else 0
        self.shared.control.shares = membership is not None
        self.routes = RouteChooser.of(config, self.engine, self.nodes.peers) if self.nodes else None
        self.policy = self.nodes.policy if self.nodes else NodePolicy()
        # A function that returns, for each file, the time until its next use [s], or infinity if
        # that time is not known. `PlanManager` replaces this default.
        self.seconds_to_use: Callable[[Ids], Floats] = lambda ids: np.full(len(ids), np.inf)
        # With `prefetch: auto` on a single node, `DirectoryPrefetch` replaces the next two
        # functions.
        # `give_way` : takes files that programs use, and drops copies to make room for them.
        #     Returns the files that will have room.
        # `beside` : takes files, and returns those that `prefetch: auto` has requested.
        self.give_way: Callable[[Ids], Ids] = lambda ids: ids[:0]
        self.beside: Callable[[Ids], Ids] = lambda ids: ids[:0]
        self.copies = Copies(scanner, self.engine)
        self.outdated = Outdated(scanner, self.copies)
        area = self.tiers[len(config.tiers)]
        self.staging = Staging(len(config.tiers), area, self.copies, self.policy)
        self.readahead = ReadAhead(self.shared, self.engine, self.tiers[: len(config.tiers)])
        self.requests = FillRequests(self.shared, eager=config.prefetch == "eager")
        self.requests.arranged = lambda ids: self.engine.packs.arranged(ids, self.shared.catalog)
        self.checks = Checks(self.copies, self.requests)
        self.failed = FailedFills(self.copies, self.staging, self.requests)
        self._refused: list[Ids] = []
        shm = os.stat(self.shared.session.path).st_dev
        # The tiers on the catalog's file system. While the catalog may grow, `rooms` reserves some
        # room of these tiers for the catalog.
        self._beside = {n for n, tier in enumerate(self.tiers) if tier and tier.is_on(shm)}
        self._early: list[Ids] = []
        self._ordered_at = -math.inf  # when a fill was last ordered [s]
        # When this node last lacked room for a file that it should keep [s], and when this lack of
        # room began [s].
        self._refused_s = self._lacks_since_s = -math.inf
        used = (tier.last_number() for tier in self.tiers if tier is not None)
        # The number of this daemon's first copy. The copies of earlier daemons have smaller
        # numbers.
        self.first_copy = max(Tier.first_number(), *(number + 1 for number in used))
        self._next_copy = self.first_copy

    @property
    def pending(self) -> int:
        """The number of unfinished orders, requested files, files to be retried, and copies to be
        checked or compared."""
        waiting = len(self.requests) + len(self.checks) + self.copies.unsettled
        return waiting + len(self.failed) + self.failed.changed + self.engine.pending()

    # --- grants ------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """Withdraws the engine's permission to order fills on its own, and registers the orders
        that the engine has made. `end_turn` grants the permission again."""
        placed = self.engine.end_grant()
        if not len(placed):
            return
        self._ordered_at = time.monotonic()
        ids, sizes = placed["id"], self.shared.catalog.entries["size"][placed["id"]]
        for number in set(placed["tier"].tolist()):
            self.copies.tier(number).reserve(sizes[placed["tier"] == number])
        self._next_copy = int(placed["copy"][-1]) + 1
        self.readahead.filled(np.ascontiguousarray(ids))

    def end_turn(self) -> None:
        """Grants the engine room in the tiers. Until the next iteration, the engine may use it to
        order fills on its own, for files that readers wait for. It places each file in the tier
        that the filler would choose. No room is granted while a plan assigns files to tiers, or if
        the last fill was ordered at least GRANTED_S ago. Without a grant, the loop does not measure
        the tiers' free room, so a tier that hangs does not block it."""
        is_ready = self.nodes is None or self.nodes.is_ready
        is_used = time.monotonic() - self._ordered_at < GRANTED_S
        may = is_used and is_ready and not (self.policy.follows_plan or self.shared.control.off)
        meets = 0 if self.nodes is not None else self.scanner.met_by_engine
        rooms = self.rooms() if may else []
        area = self.staging.tier
        staged_bytes = self._staged_bytes() if may and area and area.usable else 0
        if staged_bytes and area:
            rooms.append(area.room())
        self.engine.grant(rooms, self._next_copy, meets, staged_bytes=staged_bytes)

    def _staged_bytes(self) -> int:
        """Returns the size [bytes] of the largest file that the engine may fill into the staging
        area on its own. A larger file may be read faster from the source than from another node, so
        the filler chooses between them. While files wait for room, returns 0, because free room
        goes to these files first."""
        if self.routes is None or self.requests.has_put_off:
            return 0
        return self.routes.sure_bytes()

    # --- orders ------------------------------------------------------------------------------

    def feed(self) -> bool:
        """Passes orders to the engine. Passes as many as possible for files in use, and a limited
        number for files to be filled in advance. Returns whether there are more of the latter that
        the engine could take now."""
        if self.nodes is not None:
            self.nodes.step(scanned=self.scanner.scanned)
            if not self.nodes.is_ready:
                if not self.nodes.may_wait:
                    self._leave_to_source()
                return False
            self._take_from_source()
            self._drop_rotten(self.nodes)
            if len(moved := self.nodes.replicas.moved_here()):
                self.nodes.adopt(moved)
                self.requests.want(self.requests.let_in_again(moved, Reason.NO_ROOM))
        while len(ids := self.requests.next_awaited()):
            self._order_fills(ids, in_use=True)
        self.requests.part_ways(self._is_fetched)
        for fetched in (False, True):
            room = ORDERS - self.engine.pending(in_use=True, from_peers=fetched)
            # Some files that should be fetched are read from the source after all, because that is
            # faster (`RouteChooser.choose`). The limit on orders that ask peers does not count
            # these files. So the total number of both kinds of orders is limited too.
            room = min(room, 2 * ORDERS - self.engine.pending(in_use=True))
            while room > 0 and len(ids := self.requests.next_in_use(room, from_peers=fetched)):
                room -= self._order_fills(ids, in_use=True)
        room = ORDERS - self.engine.pending(in_use=False)
        room -= self.checks.order(room)
        # While files wait for room, for descriptors, or for a look-up at the source, no fill is
        # ordered in advance. It might have to wait for the same reason.
        is_short = self.requests.has_put_off or self.failed.holds_up
        may_more = room > 0 and not is_short and len(self.requests.ahead) > 0
        return may_more and self._order_ahead(room)

    def _is_fetched(self, ids: Ids) -> Bools:
        """Returns an array (n,): for each file, whether it is fetched from another node. While the
        nodes are not ready, every element is False."""
        if self.nodes is None or not self.nodes.is_ready:
            return np.zeros(len(ids), dtype=bool)
        return np.asarray(self.policy.others(ids)[:, 0] != NOBODY)

    def _leave_to_source(self) -> None:
        """Leaves the requested files to the source, so that readers need not wait until the nodes
        have determined which node keeps which file."""
        self.requests.part_ways(self._is_fetched)
        while (
            len(ids := self.requests.next_awaited())
            or len(ids := self.requests.next_in_use(ORDERS, from_peers=False))
            or len(ids := self.requests.next_in_use(ORDERS, from_peers=True))
        ):
            ids = ids[self.shared.catalog.states(ids) == State.WANTED]
            self.shared.catalog.set_state(ids, State.BYPASS, Reason.NO_ROOM)
            self._early.append(ids)

    def _take_from_source(self) -> None:
        """Queues the files that `_leave_to_source` has left to the source. Their fills can be
        ordered now."""
        for ids in self._early:
            self.requests.want(self.requests.let_in_again(ids, Reason.NO_ROOM))
        self._early = []

    def _drop_rotten(self, nodes: Nodes) -> None:
        """Drops copies that proved to be damaged when peers requested them. The peers have not
        received them. This node's own programs must not read them either."""
        ids, words = nodes.replicas.rotten()
        for entry in ids[self.shared.catalog.words[ids] == words].tolist():
            self.checks.make_anew(entry)

    def _order_ahead(self, room: int) -> bool:
        """Orders at most `room` fills of files that are to be filled in advance. Stops after ORDERS
        files, because many of them may find no room in any tier. Returns True if it has stopped for
        this reason, and the engine could take more orders. The caller may then go on at once."""
        catalog, looked_at = self.shared.catalog, 0
        sizes = catalog.entries["size"]
        begun = np.unique(self.requests.ahead.settle(self._is_open))
        while room > 0 and looked_at < ORDERS:
            begun = begun[catalog.states(begun) == State.FILLING]
            room_bytes = AHEAD_BYTES - float(sizes[begun].sum(dtype=np.float64))
            ids = self.requests.ahead.next(AHEAD_FILES - len(begun), room, sizes, room_bytes)
            if not len(ids):
                return False
            begun = np.union1d(begun, ids)
            looked_at += len(ids)
            room -= self._order_fills(ids, in_use=False)
        return room > 0

    def _is_open(self, ids: Ids) -> Bools:
        """Returns an array (n,): for each file, whether it is still WANTED or FILLING."""
        return np.isin(self.shared.catalog.states(ids), (State.WANTED, State.FILLING))

    def order_planned(self, ids: Ids, horizon: int) -> Ids:
        """Orders fills of files that a plan needs next, in the order of `ids`. Returns the files
        that stay ABSENT, because there is no room for them. If the staging area has no room for a
        file, all later files for this area stay ABSENT too.

        ids : (n,) the files' entries
        horizon : to make room in the staging area, a copy may be dropped if at least this many
            files are used before the copy's next use
        """
        self.shared.catalog.want(ids)
        self._order_fills(ids, in_use=False, horizon=horizon)
        return np.asarray(ids[self.shared.catalog.states(ids) == State.ABSENT])

    def _order_fills(self, ids: Ids, *, in_use: bool, horizon: int | None = None) -> int:
        """Orders a fill of each WANTED file among these files. Returns the number of orders. If
        `ids` contains a file twice, orders only one fill: a second copy would occupy room and never
        be published.

        horizon : as in `order_planned`; None if the files are not ordered for a plan
        """
        ids = distinct(ids)
        words = self.shared.catalog.words[ids]
        wanted, leaving = word.state(words) == State.WANTED, word.copy(words) != 0
        if (wanted & leaving).any():
            self.requests.put_off(ids[wanted & leaving], in_use=in_use)
        ids = ids[wanted & ~leaving]
        kept = self.policy.keeps(ids)
        nowhere, ordered = self._order_kept(ids[kept], in_use=in_use)
        if len(nowhere):
            kept[np.isin(ids, nowhere)] = False
        return ordered + self._order_staged(ids[~kept], in_use=in_use, horizon=horizon)

    def _order_kept(self, ids: Ids, *, in_use: bool) -> tuple[Ids, int]:
        """Orders fills of files that this node keeps. Returns the files that go to the staging area
        because no tier has room for them, and the number of orders."""
        if not len(ids):
            return ids, 0
        sizes = self.shared.catalog.entries["size"][ids]
        tiers = self.policy.tier_of(ids, sizes, self.rooms())
        nowhere = tiers == NOWHERE
        ordered = self._submit(ids[~nowhere], tiers[~nowhere], in_use=in_use)
        return self._nowhere(ids[nowhere], in_use=in_use), ordered

    def _order_staged(self, ids: Ids, *, in_use: bool, horizon: int | None) -> int:
        """Orders fills into the staging area, for files that have no place in a tier. Returns the
        number of orders. Skips files that are neither in use nor needed by a plan (`horizon`),
        because their copies would be dropped before they are used. A skipped file is staged when a
        program opens it."""
        catalog = self.shared.catalog
        if not len(ids) or (not in_use and horizon is None):
            catalog.set_state(ids, State.ABSENT, Reason.NO_ROOM)
            return 0
        sizes = catalog.entries["size"][ids]
        possible = self.staging.can_hold(sizes)
        catalog.set_state(ids[~possible], State.BYPASS, Reason.NO_ROOM)
        ids, sizes = ids[possible], sizes[possible]
        now = self.staging.admits(sizes)
        if horizon is not None:
            # If there is no room for a file, all files after it wait too. Otherwise smaller files
            # would always take the room that a large file needs.
            now = np.logical_and.accumulate(now)
        if not now.all():
            least_use = -1 if horizon is None else horizon
            coming = self.staging.make_room(sizes, least_use)
            if horizon is not None:
                catalog.set_state(ids[~now], State.ABSENT)
            elif coming:
                self.requests.put_off(ids[~now], in_use=in_use)
            else:
                self.staging.refuse(ids[~now])
        tiers = np.full(int(now.sum()), self.staging.number, dtype=np.int32)
        return self._submit(ids[now], tiers, in_use=in_use)

    def _submit(self, ids: Ids, tiers: Array, *, in_use: bool) -> int:
        """Orders n fills: file ids[i] is filled into the tier tiers[i], which has room for the
        file. Returns n."""
        catalog = self.shared.catalog
        sizes = catalog.entries["size"][ids]
        if not len(ids):
            return 0
        self._ordered_at = time.monotonic()
        for number in set(tiers.tolist()):
            self.copies.tier(number).reserve(sizes[tiers == number])
        copies = np.arange(self._next_copy, self._next_copy + len(ids), dtype=np.uint64)
        self._next_copy += len(ids)
        words = word.make(State.FILLING, 0, tiers, copies)
        catalog.set_words(ids, words)
        self.readahead.filled(ids)
        peers = None
        if self.nodes is not None and self.routes is not None:
            due_s = np.zeros(len(ids)) if in_use else self.seconds_to_use(ids)
            peers = self.nodes.asked(ids)
            self.routes.choose(ids, peers, sizes, due_s)
        self.engine.submit(JobKind.FILL, ids, words, in_use=in_use, peers=peers)
        return len(ids)

    def rooms(self) -> list[TierRoom]:
        """Returns the free room of each tier, from which the policy chooses a tier. While the
        catalog may grow (until `Scanner.is_settled`), some room is reserved for it in the tiers on
        its file system. The catalog has precedence, because a file without an entry can never get a
        copy."""
        growing = set() if self.scanner.is_settled else self._beside
        return [
            NO_TIER_ROOM if tier is None else tier.room(is_shared=number in growing)
            for number, tier in enumerate(self.tiers[: self.staging.number])
        ]

    def _nowhere(self, ids: Ids, *, in_use: bool) -> Ids:
        """Handles files for which no tier has room now. Returns those that go to the staging area.
        If copies may be dropped for a file, the file waits until they are removed. Copies of
        datasets that are not configured are dropped first. All other files go to the staging area.
        Without such an area, they are left to the source at once, because readers may wait for
        them. Their fills are retried when no fill runs any more."""
        if not len(ids):
            return ids
        leaves = any(self.copies.leaving[: self.staging.number])
        coming = ids if self.copies.drop_foreign() or leaves else ids[:0]
        if not len(coming):
            coming = self._drop_spare(ids)
        if in_use and not len(coming):
            coming = self.give_way(ids)
        if len(coming):
            self.requests.put_off(coming, in_use=in_use)
            ids = ids[~np.isin(ids, coming)]
        if in_use and self.nodes is not None and self._lacks_room():
            self.nodes.pass_on(ids)
        if self.staging.tier is not None:
            return ids
        if not in_use:
            # Files in use have taken the room of the files `beside`, which `prefetch: auto` has
            # requested. These files are requested again when programs open them.
            beside = self.beside(ids)
            self.shared.catalog.set_state(beside, State.ABSENT, Reason.NO_ROOM)
            ids = ids[~np.isin(ids, beside)]
        self.shared.catalog.set_state(ids, State.BYPASS, Reason.NO_ROOM)
        self._refused.append(ids)
        return ids[:0]

    def _drop_spare(self, ids: Ids) -> Ids:
        """Makes room for the files in `ids` that this node owns: drops copies of files that other
        nodes own. Returns the files that will have room. Does nothing under a plan, which itself
        assigns files to nodes."""
        if self.nodes is None or self.policy.follows_plan:
            return ids[:0]
        sizes = self.shared.catalog.entries["size"]
        largest = max((t.quota_for_copies() for t in self.tiers if t is not None), default=0)
        own = ids[self.policy.owns(ids)]
        own = own[sizes[own] <= largest]
        if not len(own):
            return own
        spare = self.policy.second_copies()
        words = self.shared.catalog.words[spare]
        is_here = word.tier(words) < self.staging.number
        is_coming = is_here & (word.state(words) == State.FILLING)
        is_whole = is_here & (word.state(words) == State.PRESENT)
        # `spare` : files that other nodes own, and of which this node should keep a second copy.
        #     Those without a copy here are given up first. Otherwise their copies would later
        #     occupy the freed room.
        self.nodes.give_up(spare[~(is_whole | is_coming)])
        spare = spare[is_whole]
        freed = np.cumsum(sizes[spare], dtype=np.float64)
        needed = float(sizes[own].sum(dtype=np.float64))
        spare = spare[: int(np.searchsorted(freed, needed)) + 1]
        self.nodes.give_up(spare)
        self.copies.forget(spare, State.ABSENT)
        return own if len(spare) or is_coming.any() else own[:0]

    def _lacks_room(self) -> bool:
        """Whether the lack of room for files has lasted LACKS_S. A shorter lack may be temporary.
        For example, a running fill's room may be counted twice for a while: as reserved, and as
        used on the disk."""
        now_s = time.monotonic()
        if now_s - self._refused_s > LACKS_S:
            self._lacks_since_s = now_s
        self._refused_s = now_s
        return now_s - self._lacks_since_s >= LACKS_S

    # --- results -----------------------------------------------------------------------------

    def collect(self) -> bool:
        """Processes the engine's results, and retries files that had no room. Returns whether the
        engine had any results."""
        unstaged = found = False
        for results in self.engine.results():
            found = True
            made = _is_made(results)
            self._made(results[made])
            for result in results[~made]:
                if result["kind"] == JobKind.DROP:
                    self.copies.dropped(result)
                    unstaged |= result["tier"] == self.staging.number
                elif result["kind"] == JobKind.COMPARE:
                    self.copies.compared(result)
                elif result["kind"] == JobKind.CHECK:
                    self.checks.failed(result)
                elif result["kind"] == JobKind.PAGE_IN:
                    self.readahead.ended(result)
                else:
                    self.failed.take(result)
        self.engine.settle()
        self.engine.packs.look()
        self.outdated.step()
        self.failed.try_again()
        self.failed.retry_changed()
        if unstaged:
            self.staging.let_in()
        # Files that wait for room are retried once all dropped copies have been removed. In the
        # staging area, copies are dropped all the time. So files are also retried whenever such a
        # copy was removed.
        if unstaged or not self.copies.dropping:
            self.requests.let_in()
        # Until `is_settled`, `rooms` reserves room for the catalog in the tiers on its file system
        # (`_beside`). If there is such a tier, files for which there was no room are retried only
        # after that.
        if self._refused and self.engine.idle and (self.scanner.is_settled or not self._beside):
            self._try_refused()
        return found

    def await_results(self, *, follows_plan: bool) -> None:
        """Tells the engine whether anything waits for the results of successful fills. If so, these
        results wake the loop. A plan may wait for them, or files whose fill is not ordered yet,
        files that had no room, or copies that await a check."""
        waits = follows_plan or len(self.requests) or self._refused or self.staging.refused
        self.engine.await_results(is_awaited=bool(waits or self.checks))

    def _made(self, results: Array) -> None:
        """Processes the results of successful fills and checks."""
        if not len(results):
            return
        results = results[self.copies.made(results)]
        self.staging.arrived(results["id"][results["tier"] == self.staging.number])
        filled = results[results["kind"] == JobKind.FILL]
        if len(filled):
            self.failed.note_filled()
        self.readahead.filled(filled["id"])
        if self.routes is not None:
            self.routes.know(filled["id"], filled["giver"])
        if self.nodes is not None:
            homes = filled["home"]
            moved = filled[(homes >= 0) & (homes < len(self.nodes.cluster.members))]
            here = moved["home"] == self.nodes.cluster.rank
            self.nodes.adopt(np.ascontiguousarray(moved["id"][here]))
            self.nodes.move(moved["id"][~here], moved["home"][~here])

    def _try_refused(self) -> None:
        """Retries files for which there was no room while fills were running. There may be room
        now, because a running fill's room is counted twice: as reserved, and as used on the disk.
        Also, failed fills have freed their room. The files that fit now become WANTED."""
        catalog, ids = self.shared.catalog, np.unique(np.concatenate(self._refused))
        self._refused = []
        tiers = self.policy.tier_of(ids, catalog.entries["size"][ids], self.rooms())
        self.requests.try_again(ids[tiers != NOWHERE])

    def answer(self) -> None:
        """Wakes the readers of each file for which it is now certain that there is a copy, or that
        there will be none."""
        lib.monarch_answer_settled(self.shared.clients, self.shared.catalog.c)
        if self.nodes is not None:
            self.nodes.replicas.answer()

    # --- what commands request ---------------------------------------------------------------

    def take_back(self, ticket: str) -> int:
        """Cancels the fills that a command has requested. Two kinds of fills go on: those that have
        begun, and those of files that a program or another command has requested too. Returns the
        number of cancelled fills.

        ticket : a string that identifies the command
        """
        # `collect` queues failed fills for a retry, so that `take_back` can cancel them too.
        self.collect()
        waiting, ordered = self.requests.take_back(ticket)
        withdrawn = self.engine.withdraw(ordered)
        # This call makes the cancelled files ABSENT, so that another command can request them.
        self.collect()
        return waiting + withdrawn

    def clear(self) -> int:
        """Drops every copy; files are filled again when they are read. Returns how many copies were
        dropped."""
        dropped = self.copies.clear()
        words = self.shared.catalog.words
        everything = np.arange(len(words), dtype=np.uint64)
        self.requests.let_in_again(everything, Reason.NO_ROOM, Reason.FAILED)
        for tier in self.tiers:
            if tier is not None:
                tier.cap_bytes = None
        return dropped

    def close(self, limit_s: float) -> int:
        """Abandons all orders. Marks the tiers in which copies still await a check, so that the
        next daemon checks them. Returns how many of the engine's threads have not ended within
        limit_s [s]."""
        self.begin_turn()
        self.failed.close()
        words = self.shared.catalog.words
        unchecked = word.state(words) == State.FILLING
        for number, keeper in self.keepers.items():
            here = bool((unchecked & (word.tier(words) == number)).any())
            if keeper.must_check and (here or self.scanner.has_unmet(number)):
                keeper.distrust()
        if self.nodes is not None:
            self.nodes.close()
        # Process the results of fills that have ended, so that their copies are recorded in the
        # manifests.
        for results in self.engine.results():
            self._made(results[_is_made(results)])
        left = self.engine.stop(limit_s)
        if self.nodes is not None and not left:
            self.nodes.free()
        return left
