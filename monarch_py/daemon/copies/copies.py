"""Copies after their fill: they are published, recorded in manifests, and dropped."""

import logging
import os
import time
from collections import deque
from typing import Any

import numpy as np

from monarch_py.arrays import Array, Bools, Ids
from monarch_py.daemon.copies.engine import Engine, block_sums, is_passing
from monarch_py.daemon.scan.scanner import Scanner
from monarch_py.ipc import word
from monarch_py.native import JobKind, JobStatus, Kind, Reason, State, lib
from monarch_py.storage.manifest import Row
from monarch_py.storage.tiers import Tier

log = logging.getLogger("monarch.copies")

# If a file changes twice within this time [s], its timestamps may be the same after both changes.
TIME_STEP_S = 2.0
# Removals are passed to the engine in batches of at most DROPS. The next batch follows once fewer
# than DROPS removals are unfinished.
DROPS = 1024


def one(entry: int) -> Ids:
    return np.array([entry], dtype=np.uint64)


class Copies:
    """Publishes, records and drops copies. Runs in the daemon's loop and never blocks."""

    def __init__(self, scanner: Scanner, engine: Engine) -> None:
        self.scanner, self.engine = scanner, engine
        self.shared, self.tiers, self.keepers = scanner.shared, scanner.tiers, scanner.keepers
        self.block_size_bytes = scanner.config.block_size_bytes
        # The published copies that must still be compared with a second read of the source. If the
        # content is the same, and the copy's tier has a manifest, the copy is recorded there. Maps
        # the file's catalog entry to (time of the second read [s], tier, row for the manifest).
        # During the read, the time is infinite.
        self._young: dict[int, tuple[float, int, Row]] = {}
        # Files that changed during a fill. The next copy of such a file is compared with a second
        # read of the source.
        self._doubted: set[int] = set()
        self._is_index_full = False
        # `_drops` : batches of copies to remove. Each is (tier, catalog entries of the files,
        #     numbers of the copies, sizes of the files).
        # `_dropping` : how many removals were passed to the engine and have not ended.
        self._drops: deque[tuple[int, Ids, Array, Array]] = deque()
        self._dropping = 0
        # For each tier, the room that dropped copies still occupy, because their files are not
        # removed yet [bytes].
        self.leaving = [0] * len(self.tiers)
        self._changes_seen = 0
        self.fills = self.filled_bytes = 0

    @property
    def unsettled(self) -> int:
        """The number of published copies that must still be compared with the source."""
        return len(self._young)

    @property
    def dropping(self) -> int:
        """The number of dropped copies whose files are not removed yet, so that they still occupy
        room. Another thread may add to `_drops` meanwhile, so a snapshot is counted."""
        return self._dropping + sum(len(ids) for _, ids, _, _ in tuple(self._drops))

    def tier(self, number: int) -> Tier:
        tier = self.tiers[number]
        assert tier is not None
        return tier

    # --- publishing ---------------------------------------------------------------------------

    def made(self, results: Array) -> Bools:
        """Processes the results of successful FILL and CHECK orders. The engine has already
        published nearly all of their copies. This method publishes or drops the others. Returns an
        array (n,): for each result, whether its copy is published now."""
        fills = results[results["kind"] == JobKind.FILL]
        self._count(fills)
        self._decide(results[results["is_published"] == 0])
        # Another part of the daemon may have dropped a copy since the engine published it.
        ids = np.ascontiguousarray(results["id"])
        words = word.make(State.PRESENT, 0, results["tier"], results["copy"])
        serves: Bools = self.shared.catalog.words[ids] == words
        # A program may have changed a file while its copy was published. If `drop_changed` ran
        # before that, it has not dropped the copy. So the copy is dropped here.
        changed = serves & self.shared.changed(ids)
        self.forget(ids[changed], State.BYPASS, Reason.CHANGED)
        serves &= ~changed
        self._record(results[serves & (results["kind"] == JobKind.FILL)])
        return serves

    def _count(self, fills: Array) -> None:
        sizes = self.shared.catalog.entries["size"][fills["id"]]
        for number in set(fills["tier"].tolist()):
            here = fills["tier"] == number
            done = fills[here]
            self.tier(number).settle(done["copy"], sizes[here], done["copy_bytes"])
        self.fills += len(fills)
        self.filled_bytes += int(fills["bytes"].sum())

    def _decide(self, results: Array) -> None:
        """Publishes or drops the copies that the engine has not published. There are three possible
        reasons. A program has changed the file. The tier is lost. The catalog's index of copies
        must grow first."""
        if not len(results):
            return
        ids = np.ascontiguousarray(results["id"])
        changed = self.shared.changed(ids)
        lost = self._is_lost(results["tier"]) & ~changed
        good = results[~(changed | lost)]
        words = word.make(State.PRESENT, 0, good["tier"], good["copy"])
        made = good["kind"] == JobKind.FILL
        self.forget(ids[changed], State.BYPASS, Reason.CHANGED)
        self.forget(ids[lost], State.ABSENT)
        if len(good) and not self._show(good["id"], words, good["copy_ino"], good["sum"], made):
            self.forget(ids[~(changed | lost)], State.BYPASS, Reason.NO_ROOM)

    def adopt(self, ids: Ids, rows: Array, tier_number: int) -> None:
        """Publishes copies that earlier sessions have made. The caller must know that each copy
        matches its file at the source, and is intact.

        ids : (n,) the catalog entries of the copied files
        rows : (n,) the copies' rows of the manifest
        """
        if self.tier(tier_number).gone:
            self.forget(ids, State.ABSENT)
            return
        words = word.make(State.PRESENT, 0, tier_number, rows["copy"])
        made = np.zeros(len(ids), dtype=bool)
        if not self._show(ids, words, rows["copy_ino"], rows["sum"], made):
            self.shared.catalog.set_state(ids, State.BYPASS, Reason.NO_ROOM)

    def _show(self, ids: Ids, words: Any, inodes: Any, sums: Any, made: Any) -> bool:
        """Publishes copies. Returns False if shared memory has no room for a larger index of
        copies. Of several such failures in a row, only the first is logged."""
        try:
            self.shared.catalog.publish(ids, words, inodes, sums, made)
        except OSError as error:
            if not self._is_index_full:
                log.warning(
                    "copies cannot be published (%s): the source serves the copied files;"
                    " free room in shared memory",
                    error.strerror,
                )
            self._is_index_full = True
            return False
        self._is_index_full = False
        return True

    # --- recording ----------------------------------------------------------------------------

    def doubt(self, entry: int) -> None:
        """Notes that the file has changed during its fill, and may still be changing. Its next copy
        is kept only if a second read of the source returns the same content. This holds even if the
        copy's tier has no manifest."""
        self._doubted.add(entry)

    def _record(self, results: Array) -> None:
        """Records copies in the manifests of persistent tiers. If a file may have changed during
        its fill, or shortly before, its copy is recorded later. A second read of the source must
        first return the same content."""
        if not (self.keepers or self._doubted):
            return
        kept = np.isin(results["tier"], list(self.keepers))
        if self._doubted:
            kept |= np.isin(results["id"], list(self._doubted))
        rows: dict[int, list[Row]] = {}
        for result in results[kept]:
            tier, entry = int(result["tier"]), int(result["id"])
            doubted = entry in self._doubted
            row = self._row(result)
            age_s = (int(result["started_ns"]) - max(row.mtime_ns, row.ctime_ns)) / 1e9
            if age_s < TIME_STEP_S or doubted:
                self._young[entry] = (time.monotonic() + TIME_STEP_S, tier, row)
            else:
                rows.setdefault(tier, []).append(row)
        for tier, new in rows.items():
            self.keepers[tier].add(new)

    def _row(self, result: Any) -> Row:
        catalog = self.shared.catalog
        entry = catalog.entries[int(result["id"])]
        source = self.scanner.sources[int(entry["source"])]
        return Row(
            copy=int(result["copy"]),
            source=str(source.config.real_path),
            path=os.fsencode(catalog.path(int(result["id"]))),
            size=int(entry["size"]),
            ino=int(entry["ino"]),
            mtime_ns=int(result["mtime_ns"]),
            ctime_ns=int(result["ctime_ns"]),
            sum=int(result["sum"]),
            block_size=self.block_size_bytes,
            blocks=block_sums(result),
        )

    def compare_young(self) -> None:
        now = time.monotonic()
        due = [entry for entry, (when, _, _) in self._young.items() if when <= now]
        for entry in due:
            _, tier, row = self._young[entry]
            self._young[entry] = (float("inf"), tier, row)
            words = word.make(State.PRESENT, 0, [tier], [row.copy])
            self.engine.submit(JobKind.COMPARE, one(entry), words, sums=one(row.sum))

    def compared(self, result: Any) -> None:
        """Processes the result of a COMPARE order: the engine has read a file from the source
        again, and has compared its content with the copy."""
        entry = int(result["id"])
        young = self._young.pop(entry, None)
        if young is None or result["status"] == JobStatus.ABANDONED:
            return
        _, tier, row = young
        if is_passing(result):
            self._young[entry] = (time.monotonic() + TIME_STEP_S, tier, row)
            return
        self._doubted.discard(entry)
        if result["status"] != JobStatus.DONE:
            self.forget(one(entry), State.BYPASS, Reason.CHANGED)
        elif tier in self.keepers:
            self.keepers[tier].add([row])

    # --- lost tiers -------------------------------------------------------------------

    def lose_tier(self, number: int) -> None:
        """Drops the copies of a lost tier. Clients stop opening these copies, and the files can get
        new copies in other tiers."""
        lib.monarch_lose_tier(self.shared.catalog.writer, number)
        words = self.shared.catalog.words
        here = (word.state(words) == State.PRESENT) & (word.tier(words) == number)
        self.forget(np.flatnonzero(here).astype(np.uint64), State.ABSENT)

    def _is_lost(self, tiers: Array) -> Bools:
        """Returns an array (n,): for each of these tier numbers, whether the tier is lost."""
        lost = [n for n, tier in enumerate(self.tiers) if tier is not None and tier.gone]
        return np.isin(tiers, lost)

    # --- dropping -----------------------------------------------------------------------------

    def forget(self, ids: Ids, state: State, reason: int = 0) -> None:
        """Drops the copies of these files. Clients stop opening the copies now. The copies
        themselves are removed later.

        ids : (n,) the files' catalog entries
        state, reason : the new state of the entries
        """
        if not len(ids):
            return
        catalog = self.shared.catalog
        words = catalog.words[ids]
        tiers, numbers = word.tier(words), word.copy(words)
        # An entry's word contains the state, and the tier and number of the copy. Tier and number
        # stay in the word until the copy's file is removed. They identify open descriptors of the
        # copy, and they keep the source file from getting a new copy.
        catalog.set_words(ids, word.make(state, reason, tiers, numbers))
        for entry in ids.tolist() if self._young else ():
            self._young.pop(entry, None)
        sizes = catalog.entries["size"][ids]
        for tier in set(tiers.tolist()):
            here = tiers == tier
            self._drop(tier, ids[here], numbers[here], sizes[here])

    def _drop(self, tier: int, ids: Ids, numbers: Any, sizes: Any) -> None:
        if tier in self.keepers:
            self.keepers[tier].remove(numbers.tolist())
        self.leaving[tier] += int(self.tier(tier).rounded_all(sizes).sum())
        for at in range(0, len(numbers), DROPS):
            part = slice(at, at + DROPS)
            self._drops.append((tier, ids[part], numbers[part], sizes[part]))

    def _drop_rows(self, tier: int, rows: Array) -> None:
        """Drops copies of files that are not in the catalog.

        rows : the copies' rows of the manifest
        """
        nobody = np.full(len(rows), lib.MONARCH_MAX_ENTRIES, dtype=np.uint64)
        self._drop(tier, nobody, rows["copy"], rows["size"])

    def feed_drops(self) -> None:
        """Passes the engine a batch of copies to remove. A copy's room is regarded as used until
        the copy is removed. Otherwise new copies could exceed the tier's quota."""
        for tier, rows in self.scanner.take_stale().items():
            self._drop_rows(tier, rows)
        if self._drops and self._dropping < DROPS:
            tier, ids, numbers, sizes = self._drops.popleft()
            self._dropping += len(ids)
            self.engine.drop(tier, ids, numbers, sizes)

    def dropped(self, result: Any) -> None:
        """Processes the engine's result of a removal. If the copy could not be removed, its room is
        still regarded as used."""
        self._dropping -= 1
        number, size = int(result["tier"]), int(result["bytes"])
        if result["left"]:
            self.tier(number).fail(int(result["left"]))
        else:
            self.tier(number).release(int(result["copy"]), size)
        self.leaving[number] -= self.tier(number).rounded(size)
        entry, catalog = int(result["id"]), self.shared.catalog
        if entry < len(catalog) and word.copy(now := catalog.words[entry]) == result["copy"]:
            catalog.set_state(one(entry), State(int(word.state(now))), int(word.reason(now)))

    def renew(self, entry: int, fresh: Array) -> bool:
        """Writes a file's present attributes to the file's entry. The file must have no copy. If
        shared memory is full, returns False, and the source serves the file for the rest of the
        session.

        fresh : (1,) of dtype ENTRY
        """
        catalog = self.shared.catalog
        try:
            catalog.update(entry, fresh)
        except OSError as full:
            log.warning(
                "%s gets no copy, because the catalog has no room: %s", catalog.path(entry), full
            )
            catalog.set_state(one(entry), State.BYPASS, Reason.CHANGED)
            return False
        return True

    def drop_changed(self) -> None:
        """Drops the copies of files that a program has changed at the source. Programs have stopped
        opening these copies, so the copies' room can be freed."""
        self.shared.take_changes()
        marks = int(self.shared.clients.changes)
        if marks == self._changes_seen:
            return
        self._changes_seen = marks
        states = word.state(self.shared.catalog.words)
        files = self.shared.catalog.entries["kind"] == Kind.FILE
        candidates = np.isin(states, (State.PRESENT, State.ABSENT, State.WANTED))
        ids = np.flatnonzero(candidates & files).astype(np.uint64)
        ids = ids[self.shared.changed(ids)]
        present = self.shared.catalog.states(ids) == State.PRESENT
        self.forget(ids[present], State.BYPASS, Reason.CHANGED)
        self.shared.catalog.set_state(ids[~present], State.BYPASS, Reason.CHANGED)

    def drop_foreign(self) -> bool:
        """Drops the copies of datasets that are not configured. Returns whether there were any."""
        foreign = self.scanner.take_foreign()
        for number, rows in foreign.items():
            self._drop_rows(number, rows)
        return any(map(len, foreign.values()))

    def clear(self) -> int:
        """Drops every copy. Returns how many copies of files in the catalog were dropped."""
        ids = np.flatnonzero(word.state(self.shared.catalog.words) == State.PRESENT)
        self.forget(ids.astype(np.uint64), State.ABSENT)
        self.drop_foreign()
        return len(ids)

    def drop(self, entries: list[int]) -> int:
        """Drops the copies of these files for a command. Returns how many copies were dropped."""
        known = [entry for entry in entries if 0 <= entry < len(self.shared.catalog)]
        ids = np.array(known, dtype=np.uint64)
        present = self.shared.catalog.states(ids) == State.PRESENT
        self.forget(ids[present], State.ABSENT)
        return int(present.sum())
