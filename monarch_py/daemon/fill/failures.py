"""Failed fills: which files are tried again, and which are left to the source."""

import logging
import os
import time
from typing import Any

import numpy as np

from monarch_py.daemon.copies.copies import Copies, one
from monarch_py.daemon.copies.engine import is_passing
from monarch_py.daemon.copies.staging import Staging
from monarch_py.daemon.fill.requests import FillRequests
from monarch_py.native import ENTRY, JobStatus, Kind, Reason, State

log = logging.getLogger("monarch.filler")

# A file that changes under its fill is tried again this often before it is left to the source.
TRIES = 3
# Fills that failed because the daemon had no descriptor left are tried again after this time [s].
PASSING_S = 1.0


class FailedFills:
    """Runs in turns of the daemon's loop and never waits.

    count : fills that the source has failed
    """

    def __init__(self, copies: Copies, staging: Staging, requests: FillRequests) -> None:
        self._copies, self._staging, self._requests = copies, staging, requests
        self._scanner, self._shared = copies.scanner, copies.shared
        self._tries: dict[int, int] = {}
        # Files that were put off, those that programs use and those to be filled ahead.
        self._in_use: list[int] = []
        self._ahead: list[int] = []
        self._try_at_s = 0.0
        self._is_told = False
        self.count = 0

    def __len__(self) -> int:
        """The number of files that wait until the daemon may have a descriptor for them."""
        return len(self._in_use) + len(self._ahead)

    def take(self, result: Any) -> None:
        """Takes in the result of a fill that failed."""
        entry, status, catalog = int(result["id"]), int(result["status"]), self._shared.catalog
        error, in_use, number = int(result["error"]), bool(result["in_use"]), int(result["tier"])
        tier = self._copies.tier(number)
        tier.give_back(int(catalog.entries["size"][entry]))
        if result["left"]:
            tier.adopt(catalog.entries["size"][[entry]])  # what was filled of the file takes room
            tier.fail(int(result["left"]))
        if is_passing(result):
            self._put_off(entry, error, in_use=in_use)
        elif status == JobStatus.TIER_FULL and number == self._staging.number:
            # Others have filled the file system, for a while: what is staged next would not fit
            # either.
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
        """Lets a file wait until the daemon may have a descriptor for it. The source serves it
        meanwhile to programs that use it; a file that is filled ahead stays WANTED, so that the
        command that asked for it waits too, or takes it back."""
        if not self._is_told:
            log.warning("fills have to wait: %s; raise the limit (ulimit -n)", os.strerror(error))
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
        """Wants the files again that were put off, once it is time."""
        if not len(self) or time.monotonic() < self._try_at_s:
            return
        in_use, ahead = (np.array(ids, dtype=np.uint64) for ids in (self._in_use, self._ahead))
        self._in_use, self._ahead = [], []
        self._requests.try_again(in_use)
        # Others may have been taken back, or read by programs meanwhile.
        ahead = ahead[self._shared.catalog.states(ahead) == State.WANTED]
        self._requests.again(ahead, in_use=False)

    def note_filled(self) -> None:
        """Takes note of a fill that went well: the next shortage of descriptors is told again."""
        self._is_told = False

    def _source_changed(self, entry: int, *, in_use: bool) -> None:
        """Looks a few times again at a source's file that is not what the scan saw."""
        catalog = self._shared.catalog
        self._tries[entry] = self._tries.get(entry, 0) + 1
        self._copies.doubt(entry)
        source = self._scanner.sources[int(catalog.entries["source"][entry])]
        fresh = np.zeros(1, dtype=ENTRY)
        error = self._scanner.stat_entry(source, os.fsencode(catalog.path(entry)), fresh)
        if error or fresh["kind"][0] != Kind.FILE or self._tries[entry] > TRIES:
            catalog.set_state(one(entry), State.BYPASS, Reason.CHANGED)
            return
        catalog.set_state(one(entry), State.ABSENT)
        if self._copies.renew(entry, fresh):
            self._requests.again(one(entry), in_use=in_use)
