"""From what is wanted to visible copies: placement, orders to the copy engine, their results."""

import logging
import os
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.config import Config
from monarch_py.daemon.keeper import Keeper
from monarch_py.daemon.scanner import Scanner
from monarch_py.daemon.shared import Shared
from monarch_py.manifest import Row
from monarch_py.native import (
    ENTRY,
    RESULT,
    JobKind,
    JobStatus,
    Kind,
    Reason,
    State,
    copy_of,
    ffi,
    lib,
    make_word,
    path_hash,
    pointer,
    state_of,
    tier_of,
)
from monarch_py.placement import NOWHERE, Policy, TierRoom, make_policy
from monarch_py.tiers import Tier

__all__ = ["Filler"]

log = logging.getLogger("monarch.filler")

Ids = npt.NDArray[np.uint64]

# Orders in the engine at a time: enough that its threads never wait for Python, few enough that a
# million wanted files take no memory (an order is some 500 bytes).
ORDERS = 2048
RESULTS = 1024
WANTS = 65536
# A file that changes under its fill is tried again this often before the source keeps it.
TRIES = 3
# Within this time of a change a file may change again without its time showing it [s].
TIME_STEP_S = 2.0
NO_TIER_ROOM = TierRoom(0, 0, 512)


def one(entry: int) -> Ids:
    return np.array([entry], dtype=np.uint64)


class Filler:
    """Works in turns of the daemon's loop; nothing in it waits."""

    def __init__(
        self,
        config: Config,
        shared: Shared,
        scanner: Scanner,
        tiers: list[Tier | None],
        keepers: dict[int, Keeper],
    ) -> None:
        self.shared, self.scanner, self.tiers, self.keepers = shared, scanner, tiers, keepers
        self.policy: Policy = make_policy(config.placement)
        self.block_size_bytes = config.block_size_bytes
        self.engine: Any = lib.monarch_engine_start(
            config.copy_threads,
            config.block_size_bytes,
            ffi.addressof(shared.clients, "doorbell"),
        )
        if self.engine == ffi.NULL:
            raise MemoryError("no thread could be started for the copy engine")
        for source in scanner.sources:
            lib.monarch_engine_source(self.engine, source.number, source.fd)
        for number, tier in enumerate(tiers):
            if tier is not None:
                lib.monarch_engine_tier(self.engine, number, tier.fd)
        self._wanted: deque[Ids] = deque()
        self._to_check: deque[Ids] = deque()
        self._no_room_yet: list[Ids] = []
        self._tries: dict[int, int] = {}
        self._young: dict[int, tuple[float, Any]] = {}  # entry -> (when it may be compared, result)
        self._changes_seen = 0
        self._next_copy = max([Tier.first_number(), *self._numbers_in_use()])
        self._buffer = np.zeros(RESULTS, dtype=RESULT)
        self.fills = self.failures = self.filled_bytes = 0

    def _numbers_in_use(self) -> Iterable[int]:
        for tier in self.tiers:
            if tier is not None:
                names = tier.names()
                if len(names):
                    yield int(names[-1]) + 1

    @property
    def pending(self) -> int:
        """Orders given, wanted files and copies to check."""
        waiting = sum(len(ids) for ids in (*self._wanted, *self._to_check, *self._no_room_yet))
        return waiting + int(lib.monarch_engine_pending(self.engine)) + len(self._young)

    # --- what is wanted ----------------------------------------------------------------------

    def take_wants(self) -> None:
        ids = np.zeros(WANTS, dtype=np.uint64)
        count = lib.monarch_take_wants(
            self.shared.clients, len(self.shared.catalog), pointer(ids, "uint64_t *"), WANTS
        )
        self.want(ids[:count])

    def want(self, ids: Ids) -> None:
        """Files to fill, in this order. What is no file, or has a state, stays as it is."""
        if not len(ids):
            return
        rows = self.shared.catalog.entries[ids]
        ids = ids[(rows["kind"] == Kind.FILE) & (state_of(rows["word"]) == State.ABSENT)]
        if len(ids):
            self.shared.catalog.set_state(ids, State.WANTED)
            self._wanted.append(ids)

    def adopt(self, ids: Ids, rows: npt.NDArray[Any], tier_number: int) -> None:
        """Copies of an earlier session that match their sources: (n,) entries, manifest rows."""
        catalog = self.shared.catalog
        words = make_word(State.FILLING, 0, tier_number, rows["copy"])
        catalog.set_words(ids, words)
        catalog.set_sums(ids, rows["sum"])
        if self.keepers[tier_number].must_check:
            self._to_check.append(ids)
            return
        inodes = np.zeros(len(ids), dtype=np.uint64)
        tier = self.tiers[tier_number]
        assert tier is not None
        lost = np.zeros(len(ids), dtype=bool)
        for i, copy in enumerate(rows["copy"]):
            try:
                found = os.stat(f"{int(copy):013x}", dir_fd=tier.fd, follow_symlinks=False)
                inodes[i] = found.st_ino
                lost[i] = found.st_size != int(rows["size"][i])
            except OSError:
                lost[i] = True
        good = ~lost
        words = make_word(State.PRESENT, 0, tier_number, rows["copy"])
        catalog.publish(ids[good], words[good], inodes[good], rows["sum"][good])
        for entry in ids[lost]:
            self._forget(int(entry), State.ABSENT)

    # --- orders ------------------------------------------------------------------------------

    def feed(self) -> None:
        """Hands the engine as much as it can take."""
        room = ORDERS - int(lib.monarch_engine_pending(self.engine))
        while room > 0 and self._wanted:
            room -= self._order_fills(self._next(self._wanted, room))
        while room > 0 and self._to_check:
            ids = self._next(self._to_check, room)
            words = self.shared.catalog.words[ids]
            sums = self.shared.catalog.entries["sum"][ids]
            self._submit(JobKind.CHECK, ids, tier_of(words), copy_of(words), sums)
            room -= len(ids)

    @staticmethod
    def _next(queue: deque[Ids], most: int) -> Ids:
        ids = queue.popleft()
        if len(ids) > most:
            queue.appendleft(ids[most:])
        return ids[:most]

    def _order_fills(self, ids: Ids) -> int:
        catalog = self.shared.catalog
        ids = ids[state_of(catalog.words[ids]) == State.WANTED]
        sizes = catalog.entries["size"][ids]
        rooms = [tier.room() if tier is not None else NO_TIER_ROOM for tier in self.tiers]
        tiers = self.policy.place(sizes, rooms)
        nowhere = ids[tiers == NOWHERE]
        if len(nowhere):
            self._nowhere(nowhere)
        ids, sizes, tiers = ids[tiers != NOWHERE], sizes[tiers != NOWHERE], tiers[tiers != NOWHERE]
        if not len(ids):
            return 0
        for number, size in zip(tiers.tolist(), sizes.tolist(), strict=True):
            self._tier(number).reserve(size)
        copies = np.arange(self._next_copy, self._next_copy + len(ids), dtype=np.uint64)
        self._next_copy += len(ids)
        catalog.set_words(ids, make_word(State.FILLING, 0, tiers, copies))
        self._submit(JobKind.FILL, ids, tiers, copies)
        return len(ids)

    def _tier(self, number: int) -> Tier:
        tier = self.tiers[number]
        assert tier is not None
        return tier

    def _nowhere(self, ids: Ids) -> None:
        """No room now. Copies of other datasets go first; then what runs may still give some back;
        only then the source keeps these files."""
        if self._drop_foreign() or lib.monarch_engine_pending(self.engine):
            self._no_room_yet.append(ids)
        else:
            self.shared.catalog.set_state(ids, State.BYPASS, Reason.NO_ROOM)

    def _drop_foreign(self) -> bool:
        dropped = False
        for number, rows in self.scanner.foreign.items():
            for row in rows:
                self._tier(number).remove(int(row["copy"]))
                self._tier(number).release(int(row["size"]))
            self.keepers[number].remove([int(n) for n in rows["copy"]])
            dropped |= len(rows) > 0
        self.scanner.foreign = {}
        return dropped

    def _submit(
        self,
        kind: JobKind,
        ids: Ids,
        tiers: npt.NDArray[Any],
        copies: npt.NDArray[Any],
        sums: npt.NDArray[Any] | None = None,
    ) -> None:
        columns: list[npt.NDArray[Any]] = [
            np.ascontiguousarray(ids, dtype=np.uint64),
            np.ascontiguousarray(tiers, dtype=np.uint32),
            np.ascontiguousarray(copies, dtype=np.uint64),
        ]
        expected = ffi.NULL
        if sums is not None:
            sums = np.ascontiguousarray(sums, dtype=np.uint64)
            expected = pointer(sums, "uint64_t *")
        lib.monarch_engine_submit(
            self.engine,
            self.shared.catalog.c,
            kind,
            0,
            len(ids),
            pointer(columns[0], "uint64_t *"),
            pointer(columns[1], "uint32_t *"),
            pointer(columns[2], "uint64_t *"),
            expected,
        )

    # --- results -----------------------------------------------------------------------------

    def collect(self) -> None:
        """Takes the engine's results; also lets files try again that had no room."""
        while True:
            count = lib.monarch_engine_results(
                self.engine, pointer(self._buffer, "struct monarch_result *"), RESULTS
            )
            self._handle(self._buffer[:count])
            if count < RESULTS:
                break
        if self._no_room_yet and not lib.monarch_engine_pending(self.engine):
            self._wanted.extend(self._no_room_yet)
            self._no_room_yet = []

    def _handle(self, results: npt.NDArray[Any]) -> None:
        if not len(results):
            return
        done = (results["status"] == JobStatus.DONE) & np.isin(
            results["kind"], (JobKind.FILL, JobKind.CHECK)
        )
        self._publish(results[done])
        for result in results[~done]:
            if result["kind"] == JobKind.COMPARE:
                self._compared(result)
            else:
                self._failed(result)
            lib.monarch_free(ffi.cast("void *", int(result["block_sums"])))

    def _publish(self, results: npt.NDArray[Any]) -> None:
        if not len(results):
            return
        catalog = self.shared.catalog
        ids = np.ascontiguousarray(results["id"])
        changed = self._changed(ids)
        fills = results["kind"] == JobKind.FILL
        good = results[~changed]
        words = make_word(State.PRESENT, 0, good["tier"].astype(np.uint64), good["copy"])
        catalog.publish(good["id"], words, good["copy_ino"], good["sum"])
        sizes = catalog.entries["size"][ids]
        for result, size in zip(results[fills], sizes[fills].tolist(), strict=True):
            self._tier(int(result["tier"])).settle(size, int(result["copy_bytes"]))
        self.fills += int(fills.sum())
        self.filled_bytes += int(results["bytes"][fills].sum())
        for entry in ids[changed]:
            self._forget(int(entry), State.BYPASS, Reason.CHANGED)
        self._record(results[fills & ~changed])
        for result in results[changed | ~fills]:
            lib.monarch_free(ffi.cast("void *", int(result["block_sums"])))

    def _record(self, results: npt.NDArray[Any]) -> None:
        """Durable tiers remember the copy, once its source has been still for a while."""
        now = time.time()
        rows: dict[int, list[Row]] = {}
        for result in results:
            tier = int(result["tier"])
            if tier in self.keepers:
                row = self._row(result)
                latest = max(row.mtime_ns, row.ctime_ns) / 1e9
                # The fill may have begun before this moment by as long as it took.
                if now - latest < 2 * TIME_STEP_S:
                    when = time.monotonic() + 2 * TIME_STEP_S
                    self._young[int(result["id"])] = (when, (tier, row))
                else:
                    rows.setdefault(tier, []).append(row)
            lib.monarch_free(ffi.cast("void *", int(result["block_sums"])))
        for tier, new in rows.items():
            self.keepers[tier].add(new)

    def _row(self, result: Any) -> Row:
        catalog = self.shared.catalog
        entry = catalog.entries[int(result["id"])]
        path = os.fsencode(catalog.path(int(result["id"])))
        sums = ffi.cast("void *", int(result["block_sums"]))
        source = self.scanner.sources[int(entry["source"])]
        return Row(
            copy=int(result["copy"]),
            source=str(source.config.real_path),
            path=path,
            path_hash=path_hash(path),
            size=int(entry["size"]),
            ino=int(entry["ino"]),
            mtime_ns=int(result["mtime_ns"]),
            ctime_ns=int(result["ctime_ns"]),
            sum=int(result["sum"]),
            block_size=self.block_size_bytes,
            blocks=ffi.buffer(sums, int(result["blocks"]) * 8)[:] if result["blocks"] else b"",
        )

    def _failed(self, result: Any) -> None:
        entry, status = int(result["id"]), int(result["status"])
        tier = self._tier(int(result["tier"]))
        size = int(self.shared.catalog.entries["size"][entry])
        if result["kind"] == JobKind.CHECK:
            if status == JobStatus.ABANDONED:
                self.keepers[int(result["tier"])].distrust()
            else:
                log.warning(
                    "a copy of %s is damaged; it is made anew when it is read",
                    self.shared.catalog.path(entry),
                )
                self._forget(entry, State.ABSENT)
            return
        tier.settle(size, None)
        if status == JobStatus.TIER_FULL:
            tier.note_full()
            self._again(entry)
        elif status == JobStatus.TIER_ERROR:
            log.warning("tier %s goes unused: %s", tier.root, os.strerror(int(result["error"])))
            tier.usable = False
            self._again(entry)
        elif status == JobStatus.SOURCE_CHANGED:
            self._source_changed(entry)
        elif status == JobStatus.SOURCE_ERROR:
            self.failures += 1
            log.info("%s: %s", self.shared.catalog.path(entry), os.strerror(int(result["error"])))
            self.shared.catalog.set_state(one(entry), State.BYPASS, Reason.FAILED)
        else:
            self.shared.catalog.set_state(one(entry), State.ABSENT)

    def _again(self, entry: int) -> None:
        self.shared.catalog.set_state(one(entry), State.WANTED)
        self._wanted.append(one(entry))

    def _source_changed(self, entry: int) -> None:
        """The source's file is not what the scan saw: look again, a few times."""
        catalog = self.shared.catalog
        self._tries[entry] = self._tries.get(entry, 0) + 1
        source = self.scanner.sources[int(catalog.entries["source"][entry])]
        fresh = np.zeros(1, dtype=ENTRY)
        error = self.scanner.stat_entry(source, os.fsencode(catalog.path(entry)), fresh)
        if error or fresh["kind"][0] != Kind.FILE or self._tries[entry] > TRIES:
            catalog.set_state(one(entry), State.BYPASS, Reason.CHANGED)
            return
        catalog.set_state(one(entry), State.ABSENT)
        catalog.update(entry, ffi.cast("struct monarch_entry *", ffi.from_buffer(fresh)))
        self._again(entry)

    def _forget(self, entry: int, state: State, reason: int = 0) -> None:
        """Drops an entry's copy: nobody is sent to it any more, then its file goes."""
        catalog = self.shared.catalog
        word = catalog.words[entry : entry + 1].copy()
        number, copy = int(tier_of(word)[0]), int(copy_of(word)[0])
        size = int(catalog.entries["size"][entry])
        # Tier and number stay: descriptors of the dropped copy are still the file's.
        catalog.set_words(one(entry), make_word(state, reason, number, copy))
        self._young.pop(entry, None)
        tier = self._tier(number)
        tier.remove(copy)
        tier.release(size)
        if number in self.keepers:
            self.keepers[number].remove([copy])

    # --- changes and young files ---------------------------------------------------------------

    def _changed(self, ids: Ids) -> npt.NDArray[np.bool_]:
        flags = np.zeros(len(ids), dtype=np.uint8)
        lib.monarch_find_changed(
            self.shared.clients,
            self.shared.control,
            self.shared.catalog.c,
            len(ids),
            pointer(ids, "uint64_t *"),
            pointer(flags, "uint8_t *"),
        )
        return flags.astype(bool)

    def drop_changed(self) -> None:
        """Clients never open a changed file's copy; here its room is given back."""
        marks = int(self.shared.clients.changes)
        if marks == self._changes_seen:
            return
        self._changes_seen = marks
        states = state_of(self.shared.catalog.words)
        files = self.shared.catalog.entries["kind"] == Kind.FILE
        candidates = np.isin(states, (State.PRESENT, State.ABSENT, State.WANTED))
        ids = np.flatnonzero(candidates & files).astype(np.uint64)
        ids = ids[self._changed(ids)]
        for entry in ids:
            if state_of(self.shared.catalog.words[entry : entry + 1])[0] == State.PRESENT:
                self._forget(int(entry), State.BYPASS, Reason.CHANGED)
            else:
                self.shared.catalog.set_state(one(int(entry)), State.BYPASS, Reason.CHANGED)

    def compare_young(self) -> None:
        """A file changed just before its fill is recorded only when a second reading agrees."""
        now = time.monotonic()
        due = [entry for entry, (when, _) in self._young.items() if when <= now]
        for entry in due:
            _, (tier, row) = self._young[entry]
            self._young[entry] = (float("inf"), (tier, row))
            sums = np.array([row.sum], dtype=np.uint64)
            columns = np.array([tier]), np.array([row.copy])
            self._submit(JobKind.COMPARE, one(entry), *columns, sums)

    def _compared(self, result: Any) -> None:
        entry = int(result["id"])
        _, (tier, row) = self._young.pop(entry, (0.0, (0, None)))
        if row is None or result["status"] == JobStatus.ABANDONED:
            return
        if result["status"] == JobStatus.DONE:
            self.keepers[tier].add([row])
        else:
            self._forget(entry, State.BYPASS, Reason.CHANGED)

    # --- on request --------------------------------------------------------------------------

    def clear(self) -> int:
        """Drops every copy; files are filled again when they are read. Returns how many went."""
        ids = np.flatnonzero(state_of(self.shared.catalog.words) == State.PRESENT)
        for entry in ids:
            self._forget(int(entry), State.ABSENT)
        self._drop_foreign()
        full = make_word(State.BYPASS, Reason.NO_ROOM)
        back = np.flatnonzero(self.shared.catalog.words == full).astype(np.uint64)
        self.shared.catalog.set_state(back, State.ABSENT)
        for tier in self.tiers:
            if tier is not None:
                tier.cap_bytes = None
        return len(ids)

    def drop(self, entries: list[int]) -> None:
        """Drops damaged copies that somebody else has found."""
        for entry in entries:
            if 0 <= entry < len(self.shared.catalog):
                word = self.shared.catalog.words[entry : entry + 1]
                if state_of(word)[0] == State.PRESENT:
                    self._forget(entry, State.ABSENT)

    def close(self) -> None:
        """Abandons what runs. Copies that wait for a check or a second look are not trusted."""
        for ids in self._to_check:
            words = self.shared.catalog.words[ids]
            for number in np.unique(tier_of(words)):
                self.keepers[int(number)].distrust()
        self._finish_running_checks()
        lib.monarch_engine_stop(self.engine)

    def _finish_running_checks(self) -> None:
        """A check in the engine is abandoned with it, and its copy remains unchecked."""
        words = self.shared.catalog.words
        for number in self.keepers:
            if self.keepers[number].must_check:
                running = (state_of(words) == State.FILLING) & (tier_of(words) == number)
                if running.any():
                    self.keepers[number].distrust()
