"""Failed fills: which files are retried, and which are left to the source."""

import logging
import os
import time
from typing import Any

import numpy as np

from monarch_py.daemon.copies.copies import Copies, one
from monarch_py.daemon.copies.engine import is_passing
from monarch_py.daemon.copies.staging import Staging
from monarch_py.daemon.fill.requests import FillRequests
from monarch_py.daemon.scan.scanner import Seen
from monarch_py.daemon.scan.unlisted import Path, UnlistedFiles
from monarch_py.ipc import word
from monarch_py.native import JobStatus, Reason, State

log = logging.getLogger("monarch.filler")

# A file that changes during its fill is retried this many times before it is left to the source.
TRIES = 3
# At most this many changed files are being looked up at the source, or wait for the threads that
# look them up.
LOOKS = 64
# Fills that failed for lack of file descriptors are retried after this time [s].
PASSING_S = 1.0


class FailedFills:
    """Decides whether files whose fill has failed are retried or left to the source. Runs in the
    daemon's loop and never blocks.

    count : how many fills have failed because the source could not be read
    """

    def __init__(self, copies: Copies, staging: Staging, requests: FillRequests) -> None:
        self._copies, self._staging, self._requests = copies, staging, requests
        self._scanner, self._shared = copies.scanner, copies.shared
        self._tries: dict[int, int] = {}
        # Entries of files whose fill is postponed for lack of file descriptors. `_in_use` : files
        # that programs use. `_ahead` : files to be filled in advance.
        self._in_use: list[int] = []
        self._ahead: list[int] = []
        self._try_at_s = 0.0
        self._is_told = False
        # Changed files that threads are to look up. Maps a file's path to the file's entry and to
        # whether programs use the file.
        self._changed: dict[Path, tuple[int, bool]] = {}
        self._looks = UnlistedFiles(self._look, self._shared.ring)
        self.count = 0

    def __len__(self) -> int:
        """The number of files whose fill is postponed because the daemon had no free descriptor."""
        return len(self._in_use) + len(self._ahead)

    @property
    def holds_up(self) -> bool:
        """Whether fills ahead must wait, because fills that have failed must be retried first."""
        return len(self) > 0 or len(self._changed) > LOOKS

    @property
    def changed(self) -> int:
        """The number of changed files that are looked up at the source before their fill is
        retried."""
        return len(self._changed)

    def take(self, result: Any) -> None:
        """Processes the result of a failed fill."""
        entry, status, catalog = int(result["id"]), int(result["status"]), self._shared.catalog
        error, in_use, number = int(result["error"]), bool(result["in_use"]), int(result["tier"])
        tier = self._copies.tier(number)
        tier.give_back(int(catalog.entries["size"][entry]))
        if result["left"]:
            # The engine could not remove the unfinished copy, so it still occupies room.
            tier.adopt(catalog.entries["size"][[entry]])
            tier.fail(int(result["left"]))
        if is_passing(result):
            self._put_off(entry, error, in_use=in_use)
        elif status == JobStatus.TIER_FULL and number == self._staging.number:
            # Other data have filled the file system of the staging area, so a retry would fail too.
            self._staging.refuse(one(entry))
        elif status == JobStatus.TIER_FULL:
            tier.note_full()
            self._requests.again(one(entry), in_use=in_use)
        elif status == JobStatus.TIER_ERROR:
            tier.fail(error)
            self._requests.again(one(entry), in_use=in_use)
        elif status == JobStatus.SOURCE_CHANGED:
            self._source_changed(entry, in_use=in_use)
        elif status == JobStatus.SOURCE_ERROR:
            self.count += 1
            log.info("%s cannot be read: %s", catalog.path(entry), os.strerror(error))
            catalog.set_state(one(entry), State.BYPASS, Reason.FAILED)
        else:
            catalog.set_state(one(entry), State.ABSENT)
            self._requests.taken_back(one(entry))

    def _put_off(self, entry: int, error: int, *, in_use: bool) -> None:
        """Postpones a fill that has failed for lack of a free file descriptor. If programs use the
        file, they read it from the source meanwhile. Otherwise the file stays WANTED. A command
        that has requested the fill then still waits for it, and can cancel it."""
        if not self._is_told:
            log.warning(
                "fills wait for a free file descriptor (%s); raise the limit (ulimit -n)",
                os.strerror(error),
            )
            self._is_told = True
        if not len(self):
            self._try_at_s = time.monotonic() + PASSING_S
        catalog = self._shared.catalog
        if in_use:
            catalog.set_state(one(entry), State.BYPASS, Reason.NO_ROOM)
            self._in_use.append(entry)
        else:
            catalog.set_state(one(entry), State.WANTED)
            self._ahead.append(entry)

    def try_again(self) -> None:
        """Queues the postponed files again, once PASSING_S have passed."""
        if not len(self) or time.monotonic() < self._try_at_s:
            return
        in_use, ahead = (np.array(ids, dtype=np.uint64) for ids in (self._in_use, self._ahead))
        self._in_use, self._ahead = [], []
        self._requests.try_again(in_use)
        # If a file is no longer WANTED, its fill was cancelled meanwhile, or a program has opened
        # the file.
        ahead = ahead[self._shared.catalog.states(ahead) == State.WANTED]
        self._requests.again(ahead, in_use=False)

    def note_filled(self) -> None:
        """Notes that a fill has succeeded, so that a later lack of descriptors is logged again."""
        self._is_told = False

    def _source_changed(self, entry: int, *, in_use: bool) -> None:
        """Lets a thread look up a file that has changed since the scan, or during its fill. The
        fill is then retried with the file's new attributes. Until then the file is WANTED, and
        programs read it from the source. After TRIES retries, the file is left to the source."""
        catalog = self._shared.catalog
        place = int(catalog.entries["source"][entry]), catalog.path(entry)
        if place not in self._changed:
            self._tries[entry] = self._tries.get(entry, 0) + 1
            self._copies.doubt(entry)
        if self._tries[entry] > TRIES:
            catalog.set_state(one(entry), State.BYPASS, Reason.CHANGED)
            return
        was_in_use = self._changed.get(place, (entry, False))[1]
        self._changed[place] = entry, in_use or was_in_use
        catalog.set_state(one(entry), State.WANTED)

    def _look(self, number: int, path: str) -> tuple[Seen | None]:
        """Examines one file at the source. A thread calls this method."""
        return (self._scanner.look(number, path),)

    def retry_changed(self) -> None:
        """Retries the fills of changed files that threads have looked up. If there is no file at
        the path any more, leaves the path to the source."""
        if not self._changed:
            return
        catalog, renames = self._shared.catalog, int(self._shared.clients.renames)
        for place, (seen,) in self._looks.take_answers():
            entry, in_use = self._changed[place]
            if self._is_busy(entry) or (seen is not None and seen[3] != renames):
                continue  # the file is looked up once more
            del self._changed[place]
            (state,) = catalog.states(one(entry))
            if state not in (State.WANTED, State.ABSENT):
                continue  # another part of the daemon has filled the file, or left it to the source
            if seen is None:
                catalog.set_state(one(entry), State.BYPASS, Reason.CHANGED)
                continue
            catalog.set_state(one(entry), State.ABSENT)
            # If the file was ABSENT, a command has cancelled its fill meanwhile.
            if self._copies.renew(entry, seen[1]) and state == State.WANTED:
                self._requests.again(one(entry), in_use=in_use)
        self._looks.add(p for p, (entry, _) in self._changed.items() if not self._is_busy(entry))
        self._looks.ask(is_scanned=True, most=LOOKS)

    def _is_busy(self, entry: int) -> bool:
        """Whether a fill of the file is in progress, for example after a program's open, or an old
        copy of the file is being removed."""
        now = self._shared.catalog.words[[entry]]
        is_leaving = (word.copy(now) != 0) & (word.state(now) != State.PRESENT)
        return bool(((word.state(now) == State.FILLING) | is_leaving)[0])

    def close(self) -> None:
        """Ends the threads, without waiting for those that hang in the source."""
        self._looks.close()
