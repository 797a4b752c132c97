"""The queues of files to be filled: first files in use, then files that are filled in advance."""

from collections import deque
from collections.abc import Callable

import numpy as np

from monarch_py.arrays import NO_IDS, Bools, Ids, Uints
from monarch_py.daemon.fill.prefetch_queue import PrefetchQueue
from monarch_py.daemon.segments import Shared
from monarch_py.ipc import word
from monarch_py.ipc.catalog import distinct
from monarch_py.native import Kind, Reason, State, ffi, lib

# These are plain integers, because comparisons with a member of an enumeration are much slower.
ABSENT, WANTED, FILE = State.ABSENT.value, State.WANTED.value, Kind.FILE.value
NOTHING = word.make(State.BYPASS, Reason.UNSUPPORTED)
# A client that waits for a part of a file writes a demand into shared memory: one integer.
# `demand >> 32 & ENTRY_OF_DEMAND` is the number of the file's catalog entry plus 1
# (monarch_demand_entry in catalog.h).
ENTRY_OF_DEMAND = int(lib.MONARCH_MAX_ENTRIES)


class FillRequests:
    """The queues of files that are to be filled. These files are WANTED in the catalog. A file's
    state may change while it is queued, for example because it is in two queues and has been filled
    already. So the filler checks the state again when the file reaches the head of a queue.

    eager : whether all files are filled: first those that programs use, then those that
        `monarch warm` has requested, then all others
    """

    def __init__(self, shared: Shared, *, eager: bool) -> None:
        self.shared = shared
        # A function that sorts files to be filled in advance into the order in which they can be
        # read fastest. The filler replaces this default, which keeps the order.
        self.arranged: Callable[[Ids], Ids] = lambda ids: ids
        self.ahead = PrefetchQueue(eager=eager)
        # Files that programs use. All enter `_in_use`. `part_ways` then moves them to the two
        # queues `_by_way`: to the first if they are read from the sources, to the second if they
        # are fetched from peers.
        self._in_use: deque[Ids] = deque()
        self._by_way: tuple[deque[Ids], deque[Ids]] = (deque(), deque())
        # Files that readers wait for.
        self._awaited: deque[Ids] = deque()
        # Files for which no tier has room until copies have been removed. Each element is a pair:
        # (files, whether programs use these files).
        self._no_room_yet: list[tuple[Ids, bool]] = []
        demands = ffi.buffer(ffi.addressof(shared.clients, "demand"))
        self._demands: Uints = np.frombuffer(demands, dtype=np.uint64)
        self._demands_seen = self._demands.copy()

    def __len__(self) -> int:
        put_off = sum(len(ids) for ids, in_use in self._no_room_yet if not in_use)
        return sum(map(len, self._all_in_use())) + put_off + len(self.ahead)

    def _all_in_use(self) -> list[Ids]:
        put_off = (ids for ids, in_use in self._no_room_yet if in_use)
        return [*self._awaited, *self._in_use, *self._by_way[0], *self._by_way[1], *put_off]

    # --- requests by programs ----------------------------------------------------------------

    def take_wants(self) -> None:
        """Requests the files that programs have opened since the last iteration and that have no
        copy."""
        self.want(self.shared.take_wanted())

    def take_demands(self) -> None:
        """Puts the WANTED files for which readers wait into the queue that is served first.
        Otherwise they might stay far back in the queue of files that are filled in advance.
        `take_wants` does not report such a file if `prefetch` is `none`, or if the file was opened
        before it became WANTED."""
        now = self._demands.copy()
        fresh = now[(now != self._demands_seen) & (now != 0)]
        self._demands_seen = now
        if len(fresh):
            known = len(self.shared.catalog)
            entries = {(demand >> 32 & ENTRY_OF_DEMAND) - 1 for demand in fresh.tolist()}
            ids = np.array([e for e in entries if 0 <= e < known], dtype=np.uint64)
            ids = ids[word.state(self._words_of_files(ids)) == WANTED]
            if len(ids):
                self._awaited.append(ids)

    def next_awaited(self) -> Ids:
        """Returns an array (n,) of files that readers wait for; it is empty if no reader waits. The
        files are to be filled before all others. There are few of them, because shared memory has
        room for a fixed number of demands."""
        return self._awaited.popleft() if self._awaited else NO_IDS

    def want(self, ids: Ids) -> None:
        """Makes files that programs use WANTED, and queues them in the order of `ids`. Skips
        entries that are not files, and files that are PRESENT, FILLING or BYPASS."""
        if not len(ids):
            return
        states = word.state(self._words_of_files(ids))
        ids = ids[(states == ABSENT) | (states == WANTED)]
        if len(ids):
            self.shared.catalog.want(ids)
            self._in_use.append(ids)

    def part_ways(self, from_peers: Callable[[Ids], Bools]) -> None:
        """Divides the files that programs use between two queues: for reads from the sources, and
        for fetches from peers. Each queue has its own limit on orders. With a single limit, two
        nodes that fetch from each other could deadlock. All orders of each node might wait for the
        other node, so that neither could begin another order.

        from_peers : a function that returns an array (n,): for each file, whether it is fetched
            from another node
        """
        while self._in_use:
            ids = self._in_use.popleft()
            fetched = from_peers(ids)
            for queue, mine in zip(self._by_way, (ids[~fetched], ids[fetched]), strict=True):
                if len(mine):
                    queue.append(mine)

    def next_in_use(self, most: int, *, from_peers: bool) -> Ids:
        """Returns an array (n,) of the next files of one of the two queues, at most `most`. The
        array is empty if the queue is empty."""
        queue = self._by_way[from_peers]
        if not queue:
            return NO_IDS
        ids = queue.popleft()
        if len(ids) > most:
            queue.appendleft(ids[most:])
        return ids[:most]

    # --- files to be filled in advance -------------------------------------------------------

    def fill_met(self) -> bool:
        """With `prefetch: eager`, calls `fill_ahead` for the files that the scan has found since
        the last call, except those with a copy. Returns whether the catalog has more entries that
        are not examined yet."""
        ids, more = self.ahead.meet(len(self.shared.catalog))
        self.fill_ahead(ids[word.state(self._words_of_files(ids)) == State.ABSENT])
        return more

    def warm(self, ids: Ids, ticket: str) -> int:
        """Makes the files of a command WANTED, and queues them in the order of `ids`, behind the
        files that programs use. Files of a pack are queued in the order of the pack. A file is
        queued even if there was no room for it, or if its fill has failed. A file that is being
        filled for another command also gets this command's ticket. Returns how many of the
        command's files are to get a copy."""
        ids = distinct(ids)
        words = self._words_of_files(ids)
        states, reasons = word.state(words), word.reason(words)
        again = (states == State.BYPASS) & np.isin(reasons, (Reason.NO_ROOM, Reason.FAILED))
        ordered = (states == State.FILLING) & self.ahead.had_turn(ids)
        ids = ids[again | ordered | np.isin(states, (State.ABSENT, State.WANTED))]
        self.fill_ahead(ids, ticket)
        return len(ids)

    def make_anew(self, ids: Ids) -> None:
        """With `prefetch: eager`, queues files again to be filled in advance. Otherwise does
        nothing: the files are filled when programs read them. Call this for files that have become
        ABSENT and that no command requests."""
        if self.ahead.eager:
            self.fill_ahead(ids)

    def fill_ahead(self, ids: Ids, ticket: str = "") -> None:
        """Makes files WANTED, and queues them to be filled in advance (see
        `PrefetchQueue.add`)."""
        if len(ids):
            # The states of files that are being filled must not be set here, because the engine may
            # publish their copies at any moment.
            states = self.shared.catalog.states(ids)
            self.shared.catalog.want(ids[~np.isin(states, (State.FILLING, State.PRESENT))])
            self.ahead.add(self.arranged(ids), ticket)

    def take_back(self, ticket: str) -> tuple[int, Ids]:
        """Cancels the fills that a command has requested, except those of files that a program or
        another command wants too. Returns how many queued fills were cancelled. Also returns an
        array (n,) of the files whose fill was already ordered. The caller must tell the engine to
        cancel these fills."""
        catalog, ids = self.shared.catalog, np.unique(self.ahead.take_back(ticket))
        kept = np.zeros(len(catalog), dtype=bool)
        for wanted in (*self._all_in_use(), *self.ahead.meant()):
            kept[wanted] = True
        ids = ids[~kept[ids]]
        states = catalog.states(ids)
        waiting, ordered = ids[states == State.WANTED], ids[states == State.FILLING]
        words = catalog.words[waiting]
        catalog.set_words(waiting, word.make(State.ABSENT, 0, word.tier(words), word.copy(words)))
        self.taken_back(waiting)
        return len(waiting), ordered

    def taken_back(self, ids: Ids) -> None:
        """With `prefetch: eager`, queues files again after a command has cancelled their fills.
        Leaves out the files that `ahead.meet` has not returned yet, because `fill_met` will queue
        them later."""
        self.make_anew(ids[ids < self.ahead.entries_met])

    # --- retries -----------------------------------------------------------------------------

    def again(self, ids: Ids, *, in_use: bool) -> None:
        """Queues files whose fill is to be retried."""
        self.shared.catalog.set_state(ids, State.WANTED)
        self._queue(ids, in_use=in_use)

    def let_in_again(self, ids: Ids, *reasons: Reason) -> Ids:
        """Makes files ABSENT that are BYPASS for one of `reasons`, so that their fill can be
        requested again. Returns an array (n,) of the changed files."""
        words = self.shared.catalog.words[ids]
        still = (word.state(words) == State.BYPASS) & np.isin(word.reason(words), reasons)
        again: Ids = ids[still]
        self.shared.catalog.set_state(again, State.ABSENT)
        return again

    def try_again(self, ids: Ids) -> None:
        """Requests the fills of these files again, if the files are BYPASS for lack of room.
        Programs use these files."""
        if len(again := self.let_in_again(ids, Reason.NO_ROOM)):
            self.again(again, in_use=True)

    def put_off(self, ids: Ids, *, in_use: bool) -> None:
        """Postpones the fill of these files until the copies that are now being removed are gone.
        `let_in` then queues the files."""
        self._no_room_yet.append((ids, in_use))

    @property
    def has_put_off(self) -> bool:
        return bool(self._no_room_yet)

    def let_in(self) -> None:
        """Queues the postponed files again."""
        for ids, in_use in self._no_room_yet:
            self._queue(ids, in_use=in_use)
        self._no_room_yet = []

    def _queue(self, ids: Ids, *, in_use: bool) -> None:
        if in_use:
            self._in_use.append(ids)
        else:
            self.ahead.add_first(ids)

    def _words_of_files(self, ids: Ids) -> Uints:
        """Returns an array (n,) of the words (state, tier and copy number) of these entries. For an
        entry that is not a file, the word is NOTHING, so that callers leave the entry unchanged."""
        catalog = self.shared.catalog
        files = catalog.entries["kind"][ids] == FILE
        words: Uints = catalog.words[ids]
        words[~files] = NOTHING
        return words
